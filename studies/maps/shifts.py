"""How the best step size moves from five Polar Express iterations to two, and what two cost: the paper's Figure 1b."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import exp, log

from compare import Span, span
from grids import Grid, by_momentum, grid

from inexact_muon_lab.report.load import StudyRecord
from inexact_muon_lab.statistics import Interval, interval, paired

FEW, MANY = (f"polar-express(steps={n}, normalise=frobenius)" for n in (2, 5))
PAPER = 0.60
"""The ratio in the paper's heat maps, 124M parameters."""


@dataclass(frozen=True)
class Shift:
    """One study at one momentum.

    Attributes:
        lrs: the best step sizes of few and of many iterations.
        edges: seeds with a best step size at an end of its grid: the true one may lie outside, and the ratio is open.
        ratio: the first over the second, by seed; without an interval if it is open.
        own: loss of few minus loss of many, each at its own step size.
    """

    study: str
    layers: int
    momentum: float
    seeds: int
    edges: int
    lrs: tuple[float, float]
    ratio: Span
    own: Span


def shifts(studies: Iterable[StudyRecord]) -> list[Shift]:
    """Of every study and momentum that has both, and three step sizes of each."""
    found = []
    for (name, momentum), runs in by_momentum(studies).items():
        made = grid(runs)
        if {FEW, MANY} <= set(made.judged):
            found.append(_shift(name, runs[0].spec.problem.layers, momentum, made))
    return found


def _shift(study: str, layers: int, momentum: float, made: Grid) -> Shift:
    bests = [made.by_seed(name) for name in (FEW, MANY)]
    moved = interval(paired(*({seed: log(best.lr) for seed, best in one.items()} for one in bests)))
    ends = {seed for one in bests for seed, best in one.items() if best.edge}
    ratio = span(Interval(exp(moved.mean), exp(moved.low), exp(moved.high), moved.n))
    lrs = [made.best(name, made.seeds(name)).lr for name in (FEW, MANY)]
    return Shift(
        study,
        layers,
        momentum,
        moved.n,
        len(ends),
        (round(lrs[0], 5), round(lrs[1], 5)),
        replace(ratio, low=None, high=None) if ends else ratio,
        span(interval(paired(made.own(FEW), made.own(MANY)))),
    )
