"""Optimum of a grid of step size and momentum, interpolated between cells; extension of a grid at an edge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, isfinite, log

import numpy as np

from inexact_muon_lab.statistics.intervals import ROUNDING

Cell = tuple[float, float]
"""(step size, momentum)"""


@dataclass(frozen=True)
class GridOptimum:
    """The best cell, and the minimum of a quadratic in (log lr, log alpha) fitted to its neighbourhood.

    Attributes:
        cell: of several cells with the same value, one on the edge if there is one.
        edge: the step size of a best cell has no finite neighbour on one side: the optimum may lie outside.
        alpha_edge: the same for alpha = 1 - momentum; alpha = 1 is the end of its range, not an edge.
    """

    cell: Cell
    value: float
    lr: float
    alpha: float
    edge: bool
    alpha_edge: bool


def optimum(table: Mapping[Cell, float], sign: float = 1.0) -> GridOptimum | None:
    """The optimum of the lowest sign * value; None for an empty table.

    The quadratic has six terms and is fitted to the 3 x 3 cells around the best one. If some are missing, or the fit
    has no minimum, a parabola along each axis is used instead, and at an edge the cell itself. If several cells are
    best, the optimum is their geometric mean.
    """
    values = {cell: sign * value for cell, value in table.items() if isfinite(value)}
    if not values:
        return None
    least = min(values.values())
    tied = [_fit(values, cell) for cell, value in values.items() if value <= least + ROUNDING * abs(least)]
    first = max(tied, key=lambda fit: (fit.edge, fit.alpha_edge))
    if len(tied) > 1:
        lr, alpha = (_mean(axis) for axis in zip(*((fit.cell[0], 1.0 - fit.cell[1]) for fit in tied), strict=True))
        first = replace(first, lr=lr, alpha=alpha, alpha_edge=any(fit.alpha_edge for fit in tied))
    return replace(first, value=table[first.cell])


def _fit(values: Mapping[Cell, float], best: Cell) -> GridOptimum:
    """The optimum near a best cell."""
    rates, alphas = _axis(values, 0), [1.0 - m for m in reversed(_axis(values, 1))]
    here = (best[0], 1.0 - best[1])
    near = [_near(axis, value) for axis, value in zip((rates, alphas), here, strict=True)]
    points = {(lr, alpha): v for (lr, m), v in values.items() if (lr in near[0]) and (alpha := 1.0 - m) in near[1]}
    fitted = _quadratic(points, here) if len(points) == 9 else None
    rows = [sorted((p[k], v) for p, v in points.items() if p[1 - k] == here[1 - k]) for k in (0, 1)]
    lr, alpha = fitted or (_parabola(rows[0], here[0]), _parabola(rows[1], here[1]))
    edge, alpha_edge = len(rows[0]) < 3, len(rows[1]) < 3 and here[1] < 1.0
    return GridOptimum(best, values[best], lr, min(1.0, alpha), edge, alpha_edge)


def _mean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return exp(sum(map(log, values)) / len(values))


def extended(axis: Sequence[float], end: float, most: float = float("inf")) -> float | None:
    """The next value beyond an end of an ascending axis, in the same ratio; None if `end` is no end of it."""
    if len(axis) < 2 or end not in (axis[0], axis[-1]):
        return None
    ratio = axis[0] / axis[1] if end == axis[0] else axis[-1] / axis[-2]
    value = min(most, float(f"{end * ratio:.3g}"))
    return value if value not in axis else None


def _axis(table: Mapping[Cell, float], index: int) -> list[float]:
    return sorted({cell[index] for cell in table})


def _near(axis: Sequence[float], value: float) -> Sequence[float]:
    index = axis.index(value)
    return axis[max(0, index - 1) : index + 2]


def _quadratic(points: Mapping[Cell, float], centre: Cell) -> Cell | None:
    """The minimum of the quadratic through 3 x 3 points, clipped to them; None if it has none."""
    x, y = np.log(np.array(list(points))).T - np.log(np.array(centre))[:, None]
    terms = np.stack([np.ones_like(x), x, y, x * x, x * y, y * y], axis=1)
    _, bx, by, xx, xy, yy = np.linalg.lstsq(terms, np.array(list(points.values())), rcond=None)[0]
    bend = 4.0 * xx * yy - xy * xy  # determinant of the Hessian
    if bend <= 0.0 or xx <= 0.0:
        return None
    moves = (xy * by - 2.0 * yy * bx) / bend, (xy * bx - 2.0 * xx * by) / bend
    lr, alpha = (min(max(move, axis.min()), axis.max()) for move, axis in zip(moves, (x, y), strict=True))
    return centre[0] * exp(lr), centre[1] * exp(alpha)


def _parabola(row: Sequence[tuple[float, float]], centre: float) -> float:
    """The vertex, in the logarithm, of the parabola through three points; the centre if there are fewer."""
    if len(row) < 3:
        return centre
    (x0, y0), (x1, y1), (x2, y2) = ((log(x), value) for x, value in row)
    slope_before, slope_after = (y1 - y0) / (x1 - x0), (y2 - y1) / (x2 - x1)
    if slope_after <= slope_before:
        return centre
    return float(exp(0.5 * (x0 + x1 - slope_before * (x2 - x0) / (slope_after - slope_before))))
