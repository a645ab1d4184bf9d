"""Read access to the index of a store: during a sweep, after a kill, or on a read-only disk."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from inexact_muon_lab.errors import LabError

TRIES = 5
"""Attempts to copy a log that changes while it is copied."""


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


def readable(text: bytes) -> str:
    """A text of the index, also if it is damaged."""
    return text.decode(errors="backslashreplace")


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
