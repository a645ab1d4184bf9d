"""Status of each claim of a study, what it still needs, and the runs for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from inexact_muon_lab.report.claims import CLAIMS, Judged
from inexact_muon_lab.report.finding import unknown
from inexact_muon_lab.report.ladders import Series
from inexact_muon_lab.report.open_costs import mean_seconds
from inexact_muon_lab.spec.spec import RunSpec
from inexact_muon_lab.spec.study import Decide, StudyRuns
from inexact_muon_lab.statistics import OPEN, extended, optimum
from inexact_muon_lab.store import store

ROUNDS = 4
"""Maximum number of values by which an axis of a grid may be extended."""


@dataclass(frozen=True)
class Need:
    """Status and needs of a claim on a study.

    Attributes:
        has: number of seeds that are complete for every arm of the claim.
        required: number of seeds; 0 until the pilot is complete.
        runs: runs to train; empty if nothing is missing, or if it cannot be decided (`why`).
        seconds: time that they take on this machine, estimated from ended runs of this study.
    """

    study: str
    item: Judged
    has: int
    required: int
    runs: tuple[RunSpec, ...]
    seconds: float | None
    why: str

    @property
    def record(self) -> dict[str, Any]:
        """Status and needs as plain data."""
        numbers = {"has": self.has, "wanted": self.required, "runs": [spec.id for spec in self.runs]}
        return {"study": self.study, **self.item.record, **numbers, "seconds": self.seconds, "why": self.why}


def needs(judged: Iterable[Judged], plan: StudyRuns, folder: Path, slots: int, claims: Sequence[str]) -> list[Need]:
    """Needs of every claim for which the study declares a width; its store is in the folder."""
    declared = plan.decide
    assert declared is not None
    stored = store.runs(folder)
    rate = mean_seconds(stored)
    specs = [msgspec.structs.replace(spec, seed=declared.pilot[0]) for spec in (*plan.runs, *(r.spec for r in stored))]
    cells = list({spec.id: spec for spec in specs}.values())  # one run per cell, regardless of its seed
    ended = {run.id for run in stored if run.outcome is not None}
    names = [name for name in declared.width if not claims or name in claims]
    mine = [item for item in judged if item.study == plan.name and item.claim.id in names]
    judged_here = {item.claim.id for item in mine}
    without = [claim for claim in CLAIMS if claim.id in names and claim.id not in judged_here]
    mine += [Judged(claim, unknown(plan.name), OPEN) for claim in without]
    statuses = []
    for item in mine:
        runs, why = _missing(item, plan.runs, declared, cells)
        untrained = tuple(spec for spec in runs if spec.id not in ended)
        cost = len(untrained) * rate / slots if rate is not None else None
        statuses.append(Need(plan.name, item, item.finding.interval.n, item.finding.required, untrained, cost, why))
    return statuses


def with_seeds(cells: Iterable[RunSpec], chosen: Iterable[int]) -> tuple[RunSpec, ...]:
    """All cells with all seeds, seed by seed, so that an interrupted sweep has complete seeds."""
    listed = list(cells)
    return tuple(msgspec.structs.replace(cell, seed=seed) for seed in chosen for cell in listed)


def _missing(
    item: Judged, pilot: Sequence[RunSpec], declared: Decide, cells: Sequence[RunSpec]
) -> tuple[tuple[RunSpec, ...], str]:
    """(runs, why): the pilot, or cells beyond an edge, or seeds."""
    finding = item.finding
    if not finding.testable:
        return (), "not testable on this machine"
    if not finding.required:
        return with_seeds(cells, declared.pilot), "the pilot is not complete"
    if finding.on_edge:
        more = _beyond(item.series, pilot, declared.pilot) if item.series else ()
        return more, "an optimum is on the grid's edge" if more else "an optimum is on an edge that cannot be extended"
    if finding.required > declared.most:
        return (), f"needs {finding.required} seeds, the study allows {declared.most}"
    if finding.interval.n < finding.required:
        following = range(max(declared.pilot) + 1, max(declared.pilot) + 1 + finding.required - len(declared.pilot))
        return with_seeds(cells, (*declared.pilot, *following)), "seeds"
    return (), ""


def _beyond(grid: Series, pilot: Sequence[RunSpec], seeds: Sequence[int]) -> tuple[RunSpec, ...]:
    """Cells beyond the edges at which optima of a grid lie, for all of its seeds and oracles."""
    rates, alphas = _next(grid)
    for field, axis, more in (("lr", grid.rates, rates), ("momentum", grid.momenta, alphas)):
        planned = {getattr(spec.optimizer, field, None) for spec in pilot}
        if len(axis) + len(more) > len(planned) + ROUNDS:
            return ()
    momenta = sorted({*grid.momenta, *(round(1.0 - alpha, 6) for alpha in alphas)})
    known = set(product(grid.rates, grid.momenta))
    cells = [cell for cell in product(sorted({*grid.rates, *rates}), momenta) if cell not in known]
    beyond: dict[str, RunSpec] = {}
    for runs in grid.by_count.values():
        template = runs[0].spec
        for lr, momentum in cells:
            options: Any = msgspec.structs.replace(template.optimizer, lr=lr, momentum=momentum)
            spec = msgspec.structs.replace(template, optimizer=options)
            beyond |= {one.id: one for one in with_seeds([spec], sorted({*grid.seeds, *seeds}))}
    return tuple(beyond.values())


def _next(grid: Series) -> tuple[set[float], set[float]]:
    """New step sizes and alphas, one beyond each end at which some seed has its optimum."""
    rates, alphas = set[float](), set[float]()
    known = [1.0 - momentum for momentum in reversed(grid.momenta)]
    metric, sign = ("accuracy", -1.0) if grid.images else ("loss", 1.0)
    for count, seed in product((grid.counts[0], grid.counts[-1]), grid.seeds):
        best = optimum(grid.table(count, seed, metric), sign)
        if best is not None and best.edge:
            rates |= {extended(grid.rates, best.cell[0]) or 0.0}
        if best is not None and best.alpha_edge:
            alphas |= {extended(known, 1.0 - best.cell[1], most=1.0) or 0.0}
    return rates - {0.0}, alphas - {0.0}
