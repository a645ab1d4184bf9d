"""Read access to a store, also during a sweep, after a kill or on a read-only disk: index, outcomes and curves."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from inexact_muon._text import nearest
from inexact_muon_lab.errors import LabError, warn
from inexact_muon_lab.spec.spec import from_json
from inexact_muon_lab.store import curves, pack
from inexact_muon_lab.store.outcome import CURVES, Outcome, Run, checked_outcome, unseal

INDEX = "store.sqlite"
REFERENCE = "reference"
"""Name of a folder beside stores with reference evidence."""
TRIES = 5
"""Attempts to copy a log that changes while it is copied."""


def about(folder: Path) -> dict[str, str]:
    """Name, title, figure and varied fields of the study."""
    return read(folder)[0]


def runs(folder: Path) -> list[Run]:
    """All runs of a store in the order of its study; unreadable rows are left out with a warning."""
    return read(folder)[1]


def places(folder: Path) -> list[Path]:
    """Stores in the folder itself, up to two levels below it, or in packed files there (FILE/NAME).

    The folder "reference", which contains evidence from elsewhere, must be named explicitly.
    """
    if folder.is_file():
        packs = pack.read(folder)
        return [folder] if len(packs) == 1 else [folder / one.name for one in packs]
    if is_store(folder):
        return [folder]
    depths = ("*", "*/*")
    stores = sorted(path.parent for depth in depths for path in folder.glob(f"{depth}/{INDEX}"))
    files = sorted(path for depth in depths for path in folder.glob(f"{depth}{pack.SUFFIX}") if path.is_file())
    lent = folder / REFERENCE
    own = [location for location in stores if lent not in (location, *location.parents)]
    return own + [location for file in files if lent not in file.parents for location in _inside(file)]


def is_store(location: Path) -> bool:
    """Whether this is a store or packed evidence."""
    return (location / INDEX).is_file() or pack.is_packed(location)


def _inside(file: Path) -> list[Path]:
    """The stores of a packed file; the file itself if it cannot be read, so that the reader reports the error."""
    try:
        return places(file)
    except LabError:
        return [file]


def read(folder: Path) -> tuple[dict[str, str], list[Run]]:
    """Description and runs of a store (or packed evidence); warns about what is left out."""
    if pack.is_packed(folder):
        one = pack.read_one(folder)
        return one.about, list(one.runs)
    query = f"select {', '.join(Run.__struct_fields__)} from runs order by position, id"
    with reading(folder / INDEX) as index:
        if index is None:
            return {}, []
        about = dict(index.execute("select key, value from about").fetchall())
        rows = index.execute(query).fetchall()
    runs, bad = [], []
    for row in rows:
        try:
            runs.append(_run(folder, row))
        except (LabError, msgspec.MsgspecError, ValueError, TypeError) as error:
            bad.append(f"{row[0]}: {error}")
    if bad:
        warn(f"{folder}: {len(bad)} of {len(rows)} runs cannot be read and are left out ({'; '.join(bad[:3])})")
    if about and (about.get("sha256") != checksum(about) or about["runs"] != str(len(rows))):
        warn(f"{folder / INDEX} is damaged: it has lost runs or its description; the same sweep mends it")
    return about, runs


def _run(folder: Path, row: tuple[Any, ...]) -> Run:
    """A row of the index; a run whose outcome is not in the index yet has ended nevertheless."""
    values = dict(zip(Run.__struct_fields__, row, strict=True))
    spec, sealed = from_json(values["spec"]), values["outcome"]
    if spec.id != values["id"]:
        raise LabError("its spec is that of another run")
    outcome = unseal(sealed.encode()) if sealed else None
    if outcome is not None and outcome.run not in ("", values["id"]):
        raise LabError(f"its outcome is that of run {outcome.run}")
    if outcome is None and values["state"] in ("waiting", "running"):
        outcome = checked_outcome(run_folder(folder, spec.id), spec.id)
        values["state"] = outcome.state if outcome else values["state"]
    run = msgspec.convert(values | {"spec": spec, "outcome": outcome}, Run)
    if not run.consistent:
        raise LabError(f"it is {run.state} but its outcome says {outcome.state if outcome else 'nothing'}")
    return run


def find(folder: Path, text: str) -> Run:
    """The run whose id begins with a text."""
    every = runs(folder)
    matching = [run for run in every if run.id.startswith(text)]
    if len(matching) != 1:
        why = f"{len(matching)} runs begin" if matching else "no run begins"
        raise LabError(f"{folder}: {why} with {text!r}: {nearest(text, [run.id for run in matching or every][:12])}")
    return matching[0]


def run_folder(folder: Path, run: str) -> Path:
    """The folder of a run's files."""
    return folder / "runs" / run


def read_curves(folder: Path, run: str, outcome: Outcome | None = None) -> list[curves.Record]:
    """The curves of a run so far; of an ended run, checked against its outcome."""
    if pack.is_packed(folder):
        return next((list(one.curves) for one in pack.read_one(folder).runs if one.id == run), [])
    return curves.read(run_folder(folder, run) / CURVES, outcome.curves if outcome else None)


def intact_curves(folder: Path, run: str, outcome: Outcome | None = None) -> list[curves.Record]:
    """The curves of a run; none, with a warning, if they are damaged."""
    try:
        return read_curves(folder, run, outcome)
    except LabError as error:
        warn(str(error))
        return []


def checksum(about: dict[str, str]) -> str:
    """The checksum of a description."""
    plain = {key: value for key, value in about.items() if key != "sha256"}
    return hashlib.sha256(msgspec.json.encode(plain, order="sorted")).hexdigest()


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection | None]:
    """The index, checked; None if it has no tables because a sweep was killed while creating it."""
    if not path.exists():
        raise LabError(f"{path.parent} is not a store (it has no {path.name}); make one with `inexact-muon sweep`")
    try:
        with closing(_open(path)) as index:
            index.text_factory = readable
            damage = index.execute("pragma integrity_check(1)").fetchone()[0]
            if damage != "ok":
                raise sqlite3.DatabaseError(damage.splitlines()[-1])
            tables = index.execute("select count(*) from sqlite_master where name in ('about', 'runs')").fetchone()[0]
            yield index if tables == 2 else None
    except sqlite3.DatabaseError as error:
        raise damaged_index(path, error) from None


def damaged_index(path: Path, error: sqlite3.DatabaseError) -> LabError:
    """The error for a damaged index."""
    return LabError(
        f"{path} cannot be read: {error}; delete it and run the same sweep again, which recovers the runs that ended"
    )


readable = partial(str, encoding="utf-8", errors="backslashreplace")
"""A text of the index, also if it is damaged."""


def _open(path: Path) -> sqlite3.Connection:
    try:
        return _connect(path, "mode=ro")
    except sqlite3.OperationalError:  # on a read-only disk SQLite cannot create its -shm file
        log = path.with_name(f"{path.name}-wal")
        if log.exists() and log.stat().st_size:
            return _copied(path, log)
        return _connect(path, "immutable=1")


def _connect(path: Path, options: str) -> sqlite3.Connection:
    index = sqlite3.connect(f"{path.absolute().as_uri()}?{options}", uri=True)
    try:
        index.execute("select count(*) from sqlite_master").fetchone()
    except BaseException:
        index.close()
        raise
    return index


def _copied(path: Path, log: Path) -> sqlite3.Connection:
    """Index and log combined in a copy: without its -shm file SQLite would ignore the log."""
    for _ in range(TRIES):
        with tempfile.TemporaryDirectory() as name:
            before = [(p.stat().st_mtime_ns, p.stat().st_size) for p in (path, log)]
            for file in (path, log):
                shutil.copyfile(file, Path(name) / file.name)
            if before == [(p.stat().st_mtime_ns, p.stat().st_size) for p in (path, log)]:
                memory = sqlite3.connect(":memory:")
                with closing(sqlite3.connect(Path(name) / path.name)) as copy:
                    copy.backup(memory)
                return memory
    raise LabError(f"{path} is being written and its disk is read-only here; try again")
