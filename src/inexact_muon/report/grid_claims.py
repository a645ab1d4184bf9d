"""Claims about step size and momentum: the crudest oracle of a grid against the most precise one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from math import inf, isnan, log2, nan
from statistics import fmean
from typing import TypeVar

from inexact_muon.report.finding import Finding
from inexact_muon.report.series import ENDED, Grid, iterations
from inexact_muon.statistics import OPEN, Cell, GridOptimum, Interval, PValues, optimum

T = TypeVar("T")

NEAR = 1.05
"""A step size is stable if its loss is at most this times the oracle's own best."""
NARROW = "the smallest or the largest step size is stable: the region may go on beyond the grid"
EDGE = "an optimum is on the edge of the grid: the true one may lie outside"


def _pairs(grid: Grid, of: Callable[[int, int], T | None]) -> dict[int, tuple[T, T]]:
    """of(iterations, seed) for the crudest and the most precise oracle, for each seed whose runs have all ended.

    The best cell of an unfinished grid may be another one than that of the whole.
    """
    few, many = grid.counts[0], grid.counts[-1]
    waiting = {run.seed for count in (few, many) for run in grid.by_count[count] if run.state not in ENDED}
    found = {seed: (of(few, seed), of(many, seed)) for seed in grid.seeds if seed not in waiting}
    return {seed: (a, b) for seed, (a, b) in found.items() if a is not None and b is not None}


def lr_moves_down(grid: Grid) -> Finding:
    """log2 of the best step size of the crudest oracle over that of the most precise one, by seed."""
    return _shift(grid, "lr", lambda best: best.lr, lambda best: best.edge, Interval.below)


def alpha_moves_up(grid: Grid) -> Finding:
    """log2 of the best alpha of the crudest oracle over that of the most precise one, by seed."""
    if len(grid.momenta) < 2:
        return Finding(grid.title, "", grid.interval({}), OPEN, "needs two momenta or more")
    # on the edge of the step sizes the best alpha is that of one step size, not of the grid
    return _shift(grid, "alpha", lambda best: best.alpha, lambda best: best.alpha_edge or best.edge, Interval.above)


def _shift(
    grid: Grid,
    name: str,
    of: Callable[[GridOptimum], float],
    edge: Callable[[GridOptimum], bool],
    side: Callable[[Interval], PValues],
) -> Finding:
    found = _pairs(grid, lambda count, seed: optimum(grid.table(count, seed, "loss")))
    shift = grid.interval({seed: log2(of(a) / of(b)) for seed, (a, b) in found.items()})
    ratio = f"{2**shift.mean:.2f}; log2 {shift.mean:+.2f}"
    text = f"best {name} at {iterations(grid.counts[0])} over that at {grid.counts[-1]}: {ratio}"
    on_edge = any(edge(best) for pair in found.values() for best in pair)
    zone = (-inf, 0.0) if side is Interval.below else (0.0, inf)
    p, note = (OPEN, EDGE) if on_edge else (side(shift), "")
    return Finding(grid.title, text if found else "", shift, p, note, zone=zone)


def region_widens(grid: Grid) -> Finding:
    """Fraction of the step sizes within NEAR of the oracle's own best, most precise minus crudest, by seed."""
    shares = _pairs(grid, lambda count, seed: _stable(grid, count, seed))
    if not shares or any(isnan(share) for pair in shares.values() for share in pair):
        return Finding(grid.title, "", grid.interval({}), OPEN, NARROW if shares else "")
    growth = grid.interval({seed: b - a for seed, (a, b) in shares.items()})
    text = f"step sizes within {NEAR - 1:.0%} of the best: {_means(grid, shares, '.0%')}"
    return Finding(grid.title, text, growth, growth.above())


def _stable(grid: Grid, count: int, seed: int) -> float | None:
    """Stable fraction of the range of log lr, loss linear between step sizes; the mean over momenta.

    Diverged runs are unstable up to the neighbouring step size. None if none has a loss; nan if there is one step size
    only, or if the smallest or the largest is stable, since the region may go on beyond it.
    """
    runs = [run for run in grid.by_count[count] if run.seed == seed]
    table = grid.table(count, seed, "loss")
    if not table:
        return None
    limit = NEAR * min(table.values())
    shares = []
    for momentum in grid.momenta:
        rates = sorted({run.lr for run in runs if run.momentum == momentum})
        row = [(log2(lr), table.get((lr, momentum), inf)) for lr in rates]
        if len(row) < 2 or min(row[0][1], row[-1][1]) <= limit:
            return nan
        parts = [_share_below(y0, y1, limit) * (x1 - x0) for (x0, y0), (x1, y1) in pairwise(row)]
        shares.append(sum(parts) / (row[-1][0] - row[0][0]))
    return fmean(shares)


def _share_below(first: float, last: float, limit: float) -> float:
    """The share of a segment on which its value, linear from first to last, is at most a limit."""
    low, high = sorted((first, last))
    return 1.0 if high <= limit else 0.0 if low > limit or high == inf else (limit - low) / (high - low)


def best_accuracy_rises(grid: Grid) -> Finding:
    """Highest accuracy of the grid, most precise minus crudest, by seed."""
    found = _pairs(grid, lambda count, seed: max(grid.table(count, seed, "accuracy").values(), default=None))
    rise = grid.interval({seed: b - a for seed, (a, b) in found.items()})
    text = f"best accuracy at {grid.counts[-1]} iterations minus at {grid.counts[0]}: {rise.mean:+.4f}"
    return Finding(grid.title, text if found else "", rise, rise.above())


def gap_shrinks(grid: Grid) -> Finding:
    """Mean over step sizes of best minus worst accuracy over momentum, crudest minus most precise, by seed."""
    gaps = _pairs(grid, lambda count, seed: _gap(grid.table(count, seed, "accuracy")))
    shrink = grid.interval({seed: a - b for seed, (a, b) in gaps.items()})
    text = f"best minus worst accuracy: {_means(grid, gaps, '.3f')}"
    return Finding(grid.title, text if gaps else "", shrink, shrink.above())


def _gap(table: dict[Cell, float]) -> float | None:
    rows = [[v for (lr, _), v in table.items() if lr == rate] for rate in {lr for lr, _ in table}]
    spreads = [max(row) - min(row) for row in rows if len(row) > 1]
    return sum(spreads) / len(spreads) if spreads else None


def _means(grid: Grid, pairs: Mapping[int, tuple[float, float]], form: str) -> str:
    crude, precise = (sum(pair[i] for pair in pairs.values()) / max(1, len(pairs)) for i in (0, 1))
    return f"{crude:{form}} at {iterations(grid.counts[0])}, {precise:{form}} at {grid.counts[-1]}"
