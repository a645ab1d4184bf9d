"""Local extrema of a function of log s on an interval: bracketed on a grid, then by ternary search."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from inexact_muon.schedules.scalar_map import Array

THIRDS = 80
"""Steps of the ternary search; each keeps two thirds of an interval."""


def extrema(f: Callable[[Array], Array], low: float, high: float, points: int) -> Array:
    """Interior local extrema s of f on [low, high], ascending; `points` must be enough to separate them."""
    grid = np.linspace(np.log(low), np.log(high), points)
    values = f(np.exp(grid))
    rise = np.diff(values)
    turns = 1 + np.flatnonzero(rise[:-1] * rise[1:] <= 0.0)
    signs = np.where(values[turns] >= values[turns - 1], 1.0, -1.0)
    start, end = grid[turns - 1], grid[turns + 1]
    for _ in range(THIRDS):
        x, y = start + (end - start) / 3.0, end - (end - start) / 3.0
        first = signs * f(np.exp(x)) < signs * f(np.exp(y))
        start, end = np.where(first, x, start), np.where(first, end, y)
    return np.clip(np.exp(0.5 * (start + end)), low, high)
