"""Stores as plain frozen records. A folder is a store, or contains stores (one or two levels down)."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
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
    """One store.

    Attributes:
        declared: the claims it declares to decide, if any.
        redeclared: a declaration was changed after runs had ended.
        compare: the arms it declares to compare, if any.
    """

    folder: Path
    name: str
    title: str
    runs: tuple[RunRecord, ...]
    declared: Decide | None = None
    redeclared: bool = False
    compare: Compare | None = None


@dataclass
class Results:
    """All stores of a folder, and the tables beside them; `family` are the claims that the studies declare."""

    folder: Path
    studies: tuple[StudyRecord, ...]
    tables: Tables

    def __post_init__(self) -> None:
        self.runs = [run for study in self.studies for run in study.runs]
        self.family = {name for study in self.studies if study.declared for name in study.declared.family}


def reference(folder: Path) -> Results | None:
    """The reference evidence in the folder "reference"; None if there is none."""
    lent = folder / REFERENCE
    return load(lent, REFERENCE) if lent.is_dir() and (store.places(lent) or tables.find(lent)) else None


def load(folder: Path, origin: str = "") -> Results:
    """All stores below a folder except reference evidence; names of studies begin with their origin, if any."""
    prefix = f"{origin}: " if origin else ""
    stores = store.places(folder)
    if not stores and not tables.find(folder):
        raise LabError(f"{folder} holds no store; make one with `inexact-muon sweep STUDY.toml --out {folder}/NAME`")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LabWarning)
        alone = len(stores) == 1 and not origin
        studies = _merged(study for path in stores if (study := _study(path, prefix, alone)) is not None)
        studies = [replace(study, runs=_comparable(study.name, study.runs)) for study in studies]
        for run in (run for study in studies for run in study.runs):
            _ = run.curves  # read now, to detect damage before plotting
    messages = [str(one.message) for one in caught if issubclass(one.category, LabWarning)]
    for one in caught:
        if not issubclass(one.category, LabWarning):
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    beside = tables.read(folder, origin)
    skipping = [line for study in studies for line in _skipping(study)]
    return Results(folder, tuple(studies), replace(beside, problems=(*beside.problems, *messages, *skipping)))


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


def _merged(studies: Iterable[StudyRecord]) -> list[StudyRecord]:
    """Merge studies of the same name, such as seeds of several machines; each run once, preferring ended ones."""

    def conflict(run: RunRecord, other: RunRecord) -> None:
        warn(f"{run.study}: run {run.id} ended otherwise in {other.folder} than in {run.folder}, which counts")

    by_name: dict[str, StudyRecord] = {}
    for study in studies:
        first = by_name.setdefault(study.name, study)
        if first is not study:
            runs = tuple(united(first.runs, study.runs, conflict))
            declared = ((study.declared, first.declared), (study.compare, first.compare))
            changed = first.redeclared or study.redeclared or any(new not in (None, old) for new, old in declared)
            by_name[study.name] = replace(first, runs=runs, redeclared=changed)
    return list(by_name.values())


def _skipping(study: StudyRecord) -> list[str]:
    """A sentence if runs of a study skipped steps."""
    runs = [run for run in study.runs if run.outcome and run.outcome.skipped]
    if not runs:
        return []
    where = f"the first is {runs[0].id}, by `inexact-muon show {study.folder} {runs[0].id}`"
    return [f"{study.name}: {len(runs)} runs skipped steps because a gradient was not finite; {where}"]


def _comparable(study: str, runs: Sequence[RunRecord]) -> tuple[RunRecord, ...]:
    """The runs without those that do not compare, about which it warns."""
    for incomparable in (_other_environments, _twofold):
        out = incomparable(study, runs)
        runs = [run for run in runs if run.id not in out]
    return tuple(runs)


def _other_environments(study: str, every: Sequence[RunRecord]) -> set[str]:
    """Runs whose environment (data, versions, CPU) differs from the others of their setting and seed.

    Of each setting and seed the largest set with one environment stays. Runs of earlier versions do not say which
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
            what = [f"{n} {second.get(n, 'none')[:40]} instead of {first.get(n, 'none')[:40]}" for n in names]
            warn(f"{study}: {len(runs)} of the runs of seed {seed} do not compare and are left out: {', '.join(what)}")
            out |= {run.id for run in runs}
    return out


def _twofold(study: str, every: Sequence[RunRecord]) -> set[str]:
    """What would count one sample twice, or two samples as one.

    A run that ended bit for bit as that of another seed is that seed again. Runs of one arm and seed that ended in two
    ways, such as an oracle written in two ways, do not say which of them counts.
    """
    arms: dict[tuple[str, Arm], dict[int, list[RunRecord]]] = {}
    for run in every:
        if run.state == "finished" and not run.lost:
            arms.setdefault((run.setting, run.arm), {}).setdefault(run.seed, []).append(run)
    out: set[str] = set()
    copies: Counter[tuple[str, int, int]] = Counter()
    for (setting, _), by_seed in arms.items():
        seeds: dict[tuple[tuple[str, float | None], ...], int] = {}
        for seed, runs in sorted(by_seed.items()):
            results = {tuple(sorted(run.result.items())) for run in runs}
            if len(results) > 1:
                ids = ", ".join(run.id for run in runs)
                warn(f"{study}: runs {ids} are one arm and seed {seed} with two results; they are left out")
                out |= {run.id for run in runs}
            elif (first := seeds.setdefault(results.pop(), seed)) != seed:
                copies[setting, seed, first] += 1
                out |= {run.id for run in runs}
    for (_, seed, first), count in copies.items():
        said = "1 run" if count == 1 else f"{count} runs"
        warn(f"{study}: {said} of seed {seed} ended bit for bit as seed {first}: one sample; left out")
    return out
