"""The best cell of a grid, and where a rule says that it should be for another oracle."""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np

from inexact_muon.report.load import Results
from inexact_muon.report.series import Cell, Grid
from inexact_muon.tune.rules import RULES

SHOWN = ("paper", "descent")
"""Rules whose prediction is drawn."""


@dataclass(frozen=True)
class Optimum:
    """Where the loss is lowest; `lr` is refined by a parabola in log lr through the neighbours of the best cell."""

    cell: Cell
    value: float
    lr: float
    edge: bool
    """The best step size is the first or last that was tried: the true one may lie outside."""

    @property
    def alpha(self) -> float:
        """The paper's momentum weight, 1 - momentum."""
        return 1.0 - self.cell[1]


def optimum(table: dict[Cell, float], sign: float = 1.0) -> Optimum | None:
    """The cell of the lowest sign * value; None for an empty table."""
    if not table:
        return None
    cell = min(table, key=lambda c: sign * table[c])
    row = sorted((lr, sign * value) for (lr, momentum), value in table.items() if momentum == cell[1])
    place = [lr for lr, _ in row].index(cell[0])
    edge = place in (0, len(row) - 1)
    lr = cell[0] if edge else _vertex(row[place - 1 : place + 2])
    return Optimum(cell, table[cell], lr, edge)


def _vertex(points: list[tuple[float, float]]) -> float:
    (x0, y0), (x1, y1), (x2, y2) = ((log(lr), value) for lr, value in points)
    left, right = (y1 - y0) / (x1 - x0), (y2 - y1) / (x2 - x1)
    if right <= left:
        return points[1][0]
    return float(np.exp(0.5 * (x0 + x1 - left * (x2 - x0) / (right - left))))


@dataclass(frozen=True)
class Inexact:
    """Mean delta, gap and overshoot over layers and records."""

    delta: float
    gap: float
    overshoot: float


def inexactness(results: Results, problem: str, family: str, count: int) -> Inexact | None:
    """What was measured for an oracle on a kind of problem, in any study; None if nothing was."""
    sums: dict[str, list[float]] = {"delta": [], "gap": [], "overshoot": []}
    for run in results.runs:
        oracle = run.oracle
        if oracle and run.problem == problem and (oracle.label, oracle.iterations) == (family, count):
            if not run.spec.telemetry.every:
                continue
            for record in run.records("lmo"):
                for name, values in sums.items():
                    values += [v for v in record[name].values() if v is not None]
    if not sums["delta"]:
        return None
    return Inexact(*(float(np.mean(values)) for values in sums.values()))


def predicted(results: Results, grid: Grid, found: dict[int, Optimum]) -> dict[int, dict[str, Cell]]:
    """{iterations: {rule: (lr, momentum)}}: the optimum of the most precise oracle carried to the others."""
    carried: dict[int, dict[str, Cell]] = {}
    if not found:
        return carried
    source, problem = max(found), grid.runs[0].problem
    a, best = inexactness(results, problem, grid.family, source), found[source]
    for count in found.keys() - {source}:
        b = inexactness(results, problem, grid.family, count)
        if a and b and b.gap < 1:
            factors = {name: RULES[name](a, b) for name in SHOWN}
            carried[count] = {n: (best.lr * f.lr, 1.0 - min(1.0, best.alpha * f.alpha)) for n, f in factors.items()}
    return carried
