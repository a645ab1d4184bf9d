"""Recommends an oracle and step size from the runs of a study."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import inf

from inexact_muon.lab.spec.study import field_of
from inexact_muon.report.load import Results, RunRecord
from inexact_muon.report.precision import MARGIN
from inexact_muon.statistics import CONFIRMED, Interval, interval, paired

Setting = tuple[float, float | None]
"""(step size, momentum)"""


@dataclass(frozen=True)
class Tuned:
    """An oracle at its best step size and momentum, by mean loss over the seeds that all cells share."""

    oracle: str
    iterations: float
    at: Setting
    losses: dict[int, float]
    edge: bool

    @property
    def loss(self) -> Interval:
        """Interval of the loss over seeds."""
        return interval(self.losses)

    @property
    def words(self) -> str:
        """Oracle, step size and momentum as text."""
        momentum = "" if self.at[1] is None else f", momentum {self.at[1]:g}"
        return f"{self.oracle} at lr {self.at[0]:.3g}{momentum}"


def advice(results: Results) -> list[str]:
    """One sentence for each problem on which at least two oracles were trained."""
    return [sentence(study, found) for study, found in tuned(results) if len(found) >= 2]


def sentence(study: str, found: list[Tuned]) -> str:
    """The cheapest oracle significantly within MARGIN of the best one's loss, each at its own best step size."""
    best = min(found, key=lambda t: t.loss.mean)
    margin = MARGIN * abs(best.loss.mean)
    same = [t for t in found if t is not best and _no_worse(t, best, margin)]
    chosen = min([best, *same], key=lambda t: (t.iterations, t.loss.mean))
    half = chosen.loss.high - chosen.loss.mean
    loss = f"loss {chosen.loss.mean:.4g}{f' ± {half:.2g}' if half < inf else ''}, {chosen.loss.n} seeds"
    why = f"the best of {len(found)} oracles, and no cheaper one is sure to be within {MARGIN:.2%} of its loss"
    if chosen is not best:
        why = f"the cheapest of {len(found)} oracles sure to be within {MARGIN:.2%} of the best loss ({best.words})"
    edge = "; its lr is the first or last that was tried, so look beyond" if chosen.edge else ""
    return f"{study}: use {chosen.words} ({loss}): {why}{edge}"


def tuned(results: Results) -> list[tuple[str, list[Tuned]]]:
    """(study, every oracle at its best), for each problem."""
    groups: dict[tuple[str, str], dict[str, list[RunRecord]]] = defaultdict(lambda: defaultdict(list))
    for run in results.runs:
        if run.oracle is not None and run.value("loss") is not None:
            groups[run.study, run.setting][str(field_of(run.spec, "optimizer.polar"))].append(run)
    return [
        (study, [t for text, runs in by_oracle.items() if (t := _best(text, runs)) is not None])
        for (study, _), by_oracle in groups.items()
    ]


def _best(oracle: str, runs: list[RunRecord]) -> Tuned | None:
    cells: dict[Setting, dict[int, float]] = defaultdict(dict)
    for run in runs:
        loss = run.value("loss")
        if loss is not None:
            cells[run.lr, run.momentum][run.seed] = loss
    shared = set.intersection(*(set(found) for found in cells.values()))
    if not shared:
        return None
    at = min(cells, key=lambda cell: sum(cells[cell][seed] for seed in shared))
    rates = sorted({lr for lr, _ in cells})
    count = runs[0].oracle.iterations if runs[0].oracle else None
    edge = len(rates) > 1 and at[0] in (rates[0], rates[-1])
    return Tuned(oracle, inf if count is None else count, at, cells[at], edge)


def _no_worse(t: Tuned, best: Tuned, margin: float) -> bool:
    return interval(paired(t.losses, best.losses)).no_worse(margin).verdict() == CONFIRMED
