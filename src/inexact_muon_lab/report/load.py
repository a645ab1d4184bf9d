"""Stores as plain frozen records. A folder is a store, or contains stores (one or two levels down)."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from inexact_muon_lab.errors import LabError, LabWarning, warn
from inexact_muon_lab.report import tables
from inexact_muon_lab.report.records import Arm
from inexact_muon_lab.report.records import RunRecord as RunRecord
from inexact_muon_lab.report.tables import Tables
from inexact_muon_lab.spec.arms import Compare
from inexact_muon_lab.spec.study import Decide
from inexact_muon_lab.store import store
from inexact_muon_lab.store.outcome import united
from inexact_muon_lab.store.store import REFERENCE


@dataclass(frozen=True)
class StudyRecord:
    """One store."""

    folder: Path
    name: str
    title: str
    runs: tuple[RunRecord, ...]
    declared: Decide | None = None
    """The claims it declares to decide, if any."""
    redeclared: bool = False
    """The declaration was changed after runs had ended."""
    compare: Compare | None = None
    """The arms it declares to compare, if any."""


@dataclass(frozen=True)
class Results:
    """All stores of a folder, and the tables beside them."""

    folder: Path
    studies: tuple[StudyRecord, ...]
    tables: Tables

    @property
    def runs(self) -> list[RunRecord]:
        """All runs of all studies."""
        return [run for study in self.studies for run in study.runs]


def reference(folder: Path) -> Results | None:
    """The reference evidence in the folder "reference"; None if there is none."""
    lent = folder / REFERENCE
    there = lent.is_dir() and bool(store.places(lent) or tables.find(lent))
    return load(lent, REFERENCE) if there else None


def load(folder: Path, origin: str = "") -> Results:
    """All stores below a folder except reference evidence; names of studies begin with their origin, if any."""
    prefix = f"{origin}: " if origin else ""
    stores = store.places(folder)
    if not stores and not tables.find(folder):
        raise LabError(f"{folder} holds no store; make one with `inexact-muon sweep STUDY.toml --out {folder}/NAME`")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LabWarning)
        read = [
            study
            for path in stores
            if (study := _study(path, prefix, alone=len(stores) == 1 and not origin)) is not None
        ]
        studies = [replace(study, runs=_comparable(study.name, study.runs)) for study in merged(read)]
        for run in (run for study in studies for run in study.runs):
            _ = run.curves  # read now, to detect damage before plotting
    messages = tuple(str(one.message) for one in caught if issubclass(one.category, LabWarning))
    for one in caught:
        if not issubclass(one.category, LabWarning):
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    beside = tables.read(folder, origin)
    stuck = tuple(line for study in studies for line in _skipping(study))
    return Results(folder, tuple(studies), replace(beside, problems=(*beside.problems, *messages, *stuck)))


def merged(studies: Iterable[StudyRecord]) -> list[StudyRecord]:
    """Merge studies of the same name, such as seeds of several machines; each run once, preferring ended ones."""
    by_name: dict[str, StudyRecord] = {}
    for study in studies:
        first = by_name.setdefault(study.name, study)
        if first is study:
            continue
        runs = united(first.runs, study.runs, _warn_of_two)
        tables = ((study.declared, first.declared), (study.compare, first.compare))
        other = study.redeclared or any(new is not None and new != old for new, old in tables)
        by_name[study.name] = replace(first, runs=tuple(runs), redeclared=first.redeclared or other)
    return list(by_name.values())


def _warn_of_two(run: RunRecord, other: RunRecord) -> None:
    warn(f"{run.study}: run {run.id} ended otherwise in {other.folder} than in {run.folder}, which counts")


def _skipping(study: StudyRecord) -> list[str]:
    """A sentence if runs of a study skipped steps."""
    runs = [run for run in study.runs if run.outcome and run.outcome.skipped]
    if not runs:
        return []
    where = f"the first is {runs[0].id}, by `inexact-muon show {study.folder} {runs[0].id}`"
    return [f"{study.name}: {len(runs)} runs skipped steps because a gradient was not finite; {where}"]


def _study(folder: Path, prefix: str, alone: bool) -> StudyRecord | None:
    """The records of a store; None, with a warning, if one of several cannot be read."""
    try:
        about, stored = store.read(folder)
        declared = msgspec.json.decode(about["decide"], type=Decide) if "decide" in about else None
        compare = msgspec.json.decode(about["compare"], type=Compare) if "compare" in about else None
    except (LabError, msgspec.MsgspecError) as error:
        if alone:
            raise
        warn(f"left out: {error}")
        return None
    name = prefix + (about.get("name") or folder.name)
    runs = tuple(RunRecord(folder, name, run.id, run.spec, run.state, run.outcome) for run in stored)
    title = prefix + about["title"] if about.get("title") else name
    return StudyRecord(folder, name, title, runs, declared, "redeclared" in about, compare)


def _comparable(study: str, every: Sequence[RunRecord]) -> tuple[RunRecord, ...]:
    """The runs without those that do not compare, about which it warns."""
    for left_out in (_alike, _distinct):
        out = left_out(study, every)
        every = [run for run in every if run.id not in out]
    return tuple(every)


def _alike(study: str, every: Sequence[RunRecord]) -> set[str]:
    """Runs whose environment (data, versions, CPU) differs from the others of their setting and seed.

    Of each setting and seed the largest set with one environment is kept. Runs of earlier versions do not say which
    code a custom problem had.
    """
    known = [run.outcome.environment for run in every if run.outcome is not None]
    unsaid = {"code"} if any("code" not in environment for environment in known) else set()
    groups: dict[tuple[str, int], dict[tuple[tuple[str, str], ...], list[RunRecord]]] = {}
    for run in every:
        if run.outcome is not None:
            key = tuple(sorted((k, v) for k, v in run.outcome.environment.items() if k not in unsaid))
            groups.setdefault((run.setting, run.seed), {}).setdefault(key, []).append(run)
    out: set[str] = set()
    for (_, seed), by_environment in groups.items():
        (common, _), *others = sorted(by_environment.items(), key=lambda item: -len(item[1]))
        for other, runs in others:
            first, second = dict(common), dict(other)
            names = [n for n in sorted(first.keys() | second.keys()) if first.get(n) != second.get(n)]
            what = ", ".join(f"{n} {_shortened(second.get(n))} instead of {_shortened(first.get(n))}" for n in names)
            warn(f"{study}: {len(runs)} of the runs of seed {seed} do not compare and are left out: {what}")
            out |= {run.id for run in runs}
    return out


def _distinct(study: str, every: Sequence[RunRecord]) -> set[str]:
    """What would count one sample twice, or two samples as one.

    Seeds that ended bit for bit as another one in all runs they share are that seed again. Runs of one arm and seed
    that ended in two ways, such as an oracle written in two ways, do not say which of them counts.
    """
    arms: dict[str, dict[int, dict[Arm, list[RunRecord]]]] = {}
    for run in every:
        if run.state == "finished":
            arms.setdefault(run.setting, {}).setdefault(run.seed, {}).setdefault(run.arm, []).append(run)
    out: set[str] = set()
    for by_seed in arms.values():
        several = [runs for by_arm in by_seed.values() for runs in by_arm.values() if len(runs) > 1]
        for runs in (runs for runs in several if not all(_same(runs[0], run) for run in runs)):
            ids = ", ".join(run.id for run in runs)
            warn(f"{study}: runs {ids} are one arm and seed {runs[0].seed} with two results; they are left out")
            out |= {run.id for run in runs}
        seeds = sorted(by_seed)
        for seed in seeds:
            first = next((s for s in seeds if s < seed and _copies(by_seed[s], by_seed[seed])), None)
            if first is not None:
                warn(f"{study}: seed {seed} ended bit for bit as seed {first}: one sample; it is left out")
                out |= {run.id for runs in by_seed[seed].values() for run in runs}
    return out


def _copies(first: Mapping[Arm, list[RunRecord]], second: Mapping[Arm, list[RunRecord]]) -> bool:
    shared = first.keys() & second.keys()
    return bool(shared) and all(_same(first[arm][0], second[arm][0]) for arm in shared)


def _same(one: RunRecord, two: RunRecord) -> bool:
    """Whether all metrics that both have are equal."""
    return all(one.result[name] == two.result[name] for name in one.result.keys() & two.result.keys())


def _shortened(value: str | None) -> str:
    return "none" if value is None else value[:12]
