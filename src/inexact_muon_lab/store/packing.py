"""The `pack` command, and sweeps that continue from packed evidence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

import msgspec
from rich.console import Console

from inexact_muon_lab.errors import LabError, writing
from inexact_muon_lab.spec.study import DECLARED, StudyRuns
from inexact_muon_lab.store import curves, pack, store
from inexact_muon_lab.store.outcome import CURVES, OUTCOME, checked_outcome, united, write_outcome
from inexact_muon_lab.store.pack import PackedRun, PackedStore
from inexact_muon_lab.store.store import Store


def pack_all(places: Sequence[Path], file: Path, console: Console) -> None:
    """Pack the stores below these folders and in these files into one file; stores of the same name are merged."""
    if file.is_dir():
        raise LabError(f"{file} is a folder; the last word names the file to write")
    if file.exists():
        pack.read(file)  # raises unless it is packed evidence: other files are never replaced
    sources = [packed(location) for source in places for location in store.places(source)]
    if not sources:
        raise LabError(f"{', '.join(map(str, places))}: no store to pack; make one with `inexact-muon sweep`")
    stores = merged(sources)
    pack.write(file, stores)
    runs = sum(len(one.runs) for one in stores)
    size = file.stat().st_size / 1e6
    console.print(f"{file}: {len(stores)} studies, {runs} runs, {size:.2f} MB", highlight=False, soft_wrap=True)


def packed(location: Path) -> PackedStore:
    """A store in packed form."""
    if pack.is_packed(location):
        return pack.read_one(location)
    about, stored = store.read(location)
    runs = [
        PackedRun(**msgspec.structs.asdict(run), curves=pack.thinned(store.read_curves(location, run.id, run.outcome)))
        for run in stored
    ]
    return PackedStore(about=about, runs=runs)


def merged(stores: Iterable[PackedStore]) -> list[PackedStore]:
    """Merge stores of the same name: each run once, preferring runs that have ended."""
    by_name: dict[str, list[PackedRun]] = {}
    about: dict[str, dict[str, str]] = {}

    def refuse(run: PackedRun, other: PackedRun) -> None:
        ways = " and ".join(str(ended.outcome.result) for ended in (run, other) if ended.outcome is not None)
        raise LabError(f"{one.name}: run {run.id} ended in two ways, {ways}; pack one of them")

    for one in stores:
        first = about.setdefault(one.name, one.about)
        changed = any(one.about.get(key, first.get(key)) != first.get(key) for key in DECLARED)
        if "redeclared" in one.about or changed:
            about[one.name] = first | {"redeclared": "yes"}
        by_name[one.name] = united(by_name.get(one.name, []), one.runs, refuse)
    return [PackedStore(about=about[name], runs=runs) for name, runs in by_name.items()]


def serves(file: Path, plan: StudyRuns) -> bool:
    """Whether `import_packed` finds a run for this plan in the packed evidence, or in the stores of a folder."""
    return bool(_ended(_stores(file), plan))


def _stores(file: Path) -> list[PackedStore]:
    if not (file.exists() or pack.is_packed(file)):  # FILE/STUDY names one of several
        raise LabError(f"{file}: no such file or folder of evidence")
    return [packed(location) for location in store.places(file)]


def _ended(stores: Sequence[PackedStore], plan: StudyRuns) -> dict[str, PackedRun]:
    """Finished runs by id: all of the same study, and those of other studies that the plan has."""
    ids = {spec.id for spec in plan.runs}
    usable = (run for one in stores for run in one.runs if one.name == plan.name or run.id in ids)
    return {run.id: run for run in usable if run.outcome}


def import_packed(files: Sequence[Path], folder: Path, plan: StudyRuns) -> int:
    """Import finished runs from packed evidence into the plan's store; returns the number of new ones.

    Runs of the same study that the plan does not have, such as other seeds, are imported as well, and runs of other
    studies that it has. A declaration that differs from the evidence's is marked as changed.
    """
    stores = merged(one for file in files for one in _stores(file))
    ended = _ended(stores, plan)
    if not ended:
        raise LabError(f"{', '.join(map(str, files))}: no run of the study {plan.name!r} to go on from")
    new = 0
    for run in ended.values():
        own_folder = store.run_folder(folder, run.id)
        if checked_outcome(own_folder, run.id) is not None or run.outcome is None:
            continue
        with writing(own_folder):
            own_folder.mkdir(parents=True, exist_ok=True)
            (own_folder / OUTCOME).unlink(missing_ok=True)
        with closing(curves.Curves(own_folder / CURVES)) as writer:
            for record in run.curves:
                rest = {key: value for key, value in record.items() if key not in curves.RESERVED}
                writer.append(record["kind"], record["step"], rest)
            writer.sync()
        write_outcome(own_folder, msgspec.structs.replace(run.outcome, curves=writer.mark, run=run.id))
        new += 1
    union = {spec.id: spec for spec in (*plan.runs, *(run.spec for run in ended.values()))}
    earlier = next((one.about for one in stores if one.name == plan.name), {})
    Store(folder, msgspec.structs.replace(plan, runs=tuple(union.values())), earlier).close()
    return new
