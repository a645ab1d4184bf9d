"""Stores as plain frozen records. A folder is a store, or contains stores (one or two levels down)."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from inexact_muon.lab.errors import LabError, LabWarning, warn
from inexact_muon.lab.spec.study import Decide, field_of
from inexact_muon.lab.store import store
from inexact_muon.lab.store.curves import Record, thin
from inexact_muon.lab.store.store import REFERENCE, Outcome
from inexact_muon.report import tables
from inexact_muon.report.tables import Tables
from inexact_muon.schedules import oracles
from inexact_muon.schedules.oracles import OracleText

STEPPED = ("data", "forward", "backward", "oracle", "optimizer")
"""Timed parts that belong to a training step."""

LEAST_PARTS = 5
"""Fewest parts of a run of whose times a median is taken."""

POLICIES = ("adaptive", "budget")
"""Policies that choose an oracle per layer, without a number of iterations."""


def _stepped(seconds: Mapping[str, Any]) -> float:
    return sum(float(seconds.get(part) or 0.0) for part in STEPPED)


@dataclass(frozen=True)
class RunRecord:
    """One run: spec and results."""

    folder: Path
    study: str
    id: str
    spec: Any
    state: str
    step: int
    result: dict[str, float | None]
    seconds: dict[str, float]
    outcome: Outcome | None = None

    @cached_property
    def curves(self) -> list[Record]:
        """The records of the run, read on first access."""
        return store.intact_curves(self.folder, self.id, self.outcome)

    def records(self, kind: str) -> list[Record]:
        """The records of one kind."""
        return [record for record in self.curves if record["kind"] == kind]

    @cached_property
    def oracle(self) -> OracleText | None:
        """The oracle; None for an optimizer without one."""
        text = field_of(self.spec, "optimizer.polar")
        return oracles.parts(text, but=POLICIES) if text else None

    @property
    def optimizer(self) -> str:
        """muon, scion, ..."""
        return str(field_of(self.spec, "optimizer.name"))

    @property
    def problem(self) -> str:
        """nanogpt, cnn or custom."""
        return str(field_of(self.spec, "problem.name"))

    @property
    def lr(self) -> float:
        """gamma."""
        return float(field_of(self.spec, "optimizer.lr"))

    @property
    def momentum(self) -> float | None:
        """beta = 1 - alpha."""
        return field_of(self.spec, "optimizer.momentum")

    @property
    def seed(self) -> int:
        """The seed."""
        return int(self.spec.seed)

    @cached_property
    def milliseconds(self) -> float | None:
        """Wall time of a training step, without evaluation, telemetry and storage.

        The median over the parts of the run between two records, since a shared machine is slow for a while; the mean
        if the run has fewer than LEAST_PARTS.
        """
        times = {int(record["step"]): _stepped(record) for record in thin(self.records("time"))}
        parts = [(b - a) / (t - s) for (s, a), (t, b) in pairwise(sorted(times.items()))]
        if len(parts) < LEAST_PARTS:
            parts = [_stepped(self.seconds) / self.step] if self.step else []
        return 1000.0 * median(parts) if parts and median(parts) > 0.0 else None

    def value(self, metric: str) -> float | None:
        """The final value of a metric; None unless the run finished."""
        return self.result.get(metric) if self.state == "finished" else None

    @cached_property
    def setting(self) -> str:
        """Key of comparable runs: everything but oracle, step size, momentum, seed and recording options."""
        plain = json.loads(msgspec.json.encode(self.spec, order="sorted"))
        for name in ("seed", "telemetry", "record_every", "evaluate_every", "checkpoint_every", "device"):
            plain.pop(name)
        for name in ("polar", "lr", "momentum"):
            plain["optimizer"].pop(name, None)
        return json.dumps(plain)


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
    place = folder / REFERENCE
    there = place.is_dir() and bool(store.places(place) or tables.find(place))
    return load(place, f"{REFERENCE}: ") if there else None


def load(folder: Path, prefix: str = "") -> Results:
    """All stores below a folder except reference evidence; names of studies get the prefix."""
    places = store.places(folder)
    if not places and not tables.find(folder):
        raise LabError(f"{folder} holds no store; make one with `inexact-muon sweep STUDY.toml --out {folder}/NAME`")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LabWarning)
        found_here = [
            made
            for place in places
            if (made := _study(place, prefix, alone=len(places) == 1 and not prefix)) is not None
        ]
        studies = [alike(made) for made in merged(found_here)]
        for run in (run for made in studies for run in made.runs):
            _ = run.curves  # read now, to detect damage before plotting
    messages = tuple(str(one.message) for one in caught if issubclass(one.category, LabWarning))
    for one in caught:
        if not issubclass(one.category, LabWarning):
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    found = tables.read(folder, prefix.removesuffix(": "))
    stuck = tuple(line for made in studies for line in _skipping(made))
    return Results(folder, tuple(studies), replace(found, problems=(*found.problems, *messages, *stuck)))


def merged(studies: Iterable[StudyRecord]) -> list[StudyRecord]:
    """Merge studies of the same name, such as seeds of several machines; each run once, preferring ended ones."""
    by_name: dict[str, StudyRecord] = {}
    for study in studies:
        first = by_name.setdefault(study.name, study)
        if first is study:
            continue
        runs = {run.id: run for run in first.runs}
        for run in study.runs:
            kept = runs.get(run.id)
            if kept is None or kept.outcome is None:
                runs[run.id] = run
            elif run.outcome is not None and run.result != kept.result:
                warn(
                    f"{study.name}: run {run.id} ended otherwise in {study.folder} than in {kept.folder}, which counts"
                )
        other = study.redeclared or (study.declared is not None and study.declared != first.declared)
        by_name[study.name] = replace(first, runs=tuple(runs.values()), redeclared=first.redeclared or other)
    return list(by_name.values())


def alike(study: StudyRecord) -> StudyRecord:
    """Drop runs whose environment (data, versions, CPU) differs from the others of their setting and seed.

    Of each setting and seed the largest set with one environment is kept.
    """
    groups: dict[tuple[str, int], dict[tuple[tuple[str, str], ...], list[RunRecord]]] = {}
    for run in study.runs:
        if run.outcome is not None:
            key = tuple(sorted(run.outcome.environment.items()))
            groups.setdefault((run.setting, run.seed), {}).setdefault(key, []).append(run)
    out: set[str] = set()
    for (_, seed), by_environment in groups.items():
        (kept, _), *others = sorted(by_environment.items(), key=lambda item: -len(item[1]))
        for other, runs in others:
            first, second = dict(kept), dict(other)
            names = [n for n in sorted(first.keys() | second.keys()) if first.get(n) != second.get(n)]
            what = ", ".join(f"{n} {_short(second.get(n))} instead of {_short(first.get(n))}" for n in names)
            warn(f"{study.name}: {len(runs)} of the runs of seed {seed} do not compare and are left out: {what}")
            out |= {run.id for run in runs}
    return replace(study, runs=tuple(run for run in study.runs if run.id not in out)) if out else study


def _short(value: str | None) -> str:
    return "none" if value is None else value[:12]


def _skipping(made: StudyRecord) -> list[str]:
    """A sentence if runs of a study skipped steps."""
    runs = [run for run in made.runs if run.outcome and run.outcome.skipped]
    if not runs:
        return []
    where = f"the first is {runs[0].id}, by `inexact-muon show {made.folder} {runs[0].id}`"
    return [f"{made.name}: {len(runs)} runs skipped steps because a gradient was not finite; {where}"]


def _study(folder: Path, prefix: str, alone: bool) -> StudyRecord | None:
    """The records of a store; None, with a warning, if one of several cannot be read."""
    try:
        about, found = store.read(folder)
        declared = msgspec.json.decode(about["decide"], type=Decide) if "decide" in about else None
    except (LabError, msgspec.MsgspecError) as error:
        if alone:
            raise
        warn(f"left out: {error}")
        return None
    name = prefix + (about.get("name") or folder.name)
    runs = []
    for run in found:
        outcome = run.outcome
        runs.append(
            RunRecord(
                folder=folder,
                study=name,
                id=run.id,
                spec=run.spec,
                state=run.state,
                step=outcome.step if outcome else 0,
                result=dict(outcome.result) if outcome else {},
                seconds=dict(outcome.seconds) if outcome else {},
                outcome=outcome,
            )
        )
    return StudyRecord(folder, name, about.get("title") or name, tuple(runs), declared, "redeclared" in about)
