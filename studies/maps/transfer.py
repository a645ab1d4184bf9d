"""Which rule predicts how the best step size moves from one oracle to another: against keeping it.

The step size that is best for five Polar Express steps, or for three poles, is carried to every other oracle of a grid.
Error: the distance of the logarithm of what a rule asks for to that of the oracle's own best. Regret: how much higher
the parabola through the oracle's mean losses is there than at its lowest point, nothing trained.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import log
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "cotuning"))
from carry import Layers, carried
from grids import Grid, between, lowest

from inexact_muon_lab.statistics import Interval, interval

FIVE = ("polar-express(steps=5)", "polar-express(steps=5, normalise=frobenius)")
"""Five Polar Express steps, with either normaliser."""
SOURCES = (*FIVE, "zolotarev(poles=3)")
"""The first that a grid has: nearly exact oracles, all with the same best step size."""
KEEP, DESCENT = "keep", "descent"


@dataclass(frozen=True)
class Carried:
    """What one rule did on one target."""

    rule: str
    target: str
    asked: float
    best: float
    regret: float

    @property
    def error(self) -> float:
        """|log asked - log best|."""
        return abs(log(self.asked / self.best))


def tried(grid: Grid, layers: Layers) -> list[Carried]:
    """Every rule on every other oracle of a grid whose best is not on the edge; none without five steps."""
    source = next((name for name in SOURCES if name in grid.tunable), None)
    if source is None:
        return []
    start = lowest(grid.means(source)).lr
    found = []
    for target in grid.tunable:
        means = grid.means(target)
        best = lowest(means)
        if target == source or best.edge:
            continue
        for rule, factors in carried(source, target, layers).items():
            asked = start * factors.lr
            regret = between(means, asked) - between(means, best.lr)
            found.append(Carried(rule, target, asked, best.lr, regret))
    return found


def against_keeping(found: list[Carried], rule: str) -> tuple[Interval, Interval]:
    """Error and regret of a rule minus those of keeping, over targets."""
    kept = {one.target: one for one in found if one.rule == KEEP}
    mine = [one for one in found if one.rule == rule]
    return (
        interval([one.error - kept[one.target].error for one in mine]),
        interval([one.regret - kept[one.target].regret for one in mine]),
    )


def third_of_keeping(found: list[Carried], rule: str) -> Interval:
    """A third of keeping's regret minus that of a rule, over targets: the claim `some-rule` of the page."""
    kept = {one.target: one for one in found if one.rule == KEEP}
    return interval([kept[one.target].regret / 3 - one.regret for one in found if one.rule == rule])
