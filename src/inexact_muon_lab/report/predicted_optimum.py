"""The optimum that a rule predicts for another oracle of a grid."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inexact_muon_lab.report.ladders import Grid
from inexact_muon_lab.report.load import Results
from inexact_muon_lab.statistics import Cell, GridOptimum
from inexact_muon_lab.tune.rules import RULES

SHOWN = ("paper", "descent")
"""Rules whose prediction is plotted."""


@dataclass(frozen=True)
class Inexact:
    """Mean delta, gap and overshoot over layers and records."""

    delta: float
    gap: float
    overshoot: float


def inexactness(results: Results, grid: Grid, count: int) -> Inexact | None:
    """Inexactness measured for an oracle of a grid on its kind of problem, in any study; None if there is none."""
    sums: dict[str, list[float]] = {"delta": [], "gap": [], "overshoot": []}
    same = grid.by_count[count][0]
    for run in results.runs:
        if run.spec.telemetry.every and run.problem == same.problem and run.oracle == same.oracle:
            for record in run.records("lmo"):
                for name, values in sums.items():
                    values += [v for v in record[name].values() if v is not None]
    if not sums["delta"]:
        return None
    return Inexact(*(float(np.mean(values)) for values in sums.values()))


def predicted(results: Results, grid: Grid, optima: dict[int, GridOptimum]) -> dict[int, dict[str, Cell]]:
    """{iterations: {rule: (lr, momentum)}}: the optimum of the most precise oracle transferred to the others."""
    carried: dict[int, dict[str, Cell]] = {}
    if not optima:
        return carried
    source = max(optima)
    a, best = inexactness(results, grid, source), optima[source]
    for count in optima.keys() - {source}:
        b = inexactness(results, grid, count)
        if a and b and b.gap < 1:
            factors = {name: RULES[name](a, b) for name in SHOWN}
            carried[count] = {n: (best.lr * f.lr, 1.0 - min(1.0, best.alpha * f.alpha)) for n, f in factors.items()}
    return carried
