"""Claims about step size and momentum: the crudest oracle of a grid against the most precise one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import wraps
from itertools import pairwise
from math import inf, isnan, log2, nan
from statistics import fmean
from typing import TypeVar

from inexact_muon_lab.report.finding import Finding, joined
from inexact_muon_lab.report.ladders import Grid, iterations
from inexact_muon_lab.statistics import OPEN, Cell, GridOptimum, Interval, PValues, difference, optimum

T = TypeVar("T")

NEAR = 1.05
"""A step size is stable if its loss is at most this times the oracle's own best."""
HIGH = 0.95
"""An accuracy is high from this share of the best one on."""
NARROW = "the smallest or the largest step size is stable: the region may go on beyond the grid"
TIED = "weight decay is tied to lr and moves with it"
EDGE = "an optimum is on the edge of the grid: the true one may lie outside"


def _pairs(grid: Grid, of: Callable[[int, int], T | None]) -> dict[int, tuple[T, T]]:
    """of(iterations, seed) for the crudest and the most precise oracle, for each seed whose runs have all ended."""
    few, many = grid.counts[0], grid.counts[-1]
    values = {seed: (of(few, seed), of(many, seed)) for seed in grid.seeds if grid.whole(seed, few, many)}
    return {seed: (a, b) for seed, (a, b) in values.items() if a is not None and b is not None}


def over_shared_cells(judge: Callable[[Grid], Finding]) -> Callable[[Grid], Finding]:
    """Judge without cells that the crudest or the most precise oracle lacks: a larger grid has the better best."""

    @wraps(judge)
    def judged(grid: Grid) -> Finding:
        few, many = (grid.cells[count] for count in (grid.counts[0], grid.counts[-1]))
        if few.keys() == many.keys():
            return judge(grid)
        shared = few.keys() & many.keys()
        if not shared:
            return Finding(grid.evidence, "", grid.interval({}), OPEN, "the oracles have no cell in common")
        cells = {count: {c: cells[c] for c in cells.keys() & shared} for count, cells in grid.cells.items()}
        finding = judge(replace(grid, cells={count: rows for count, rows in cells.items() if rows}))
        said = f"{len(few.keys() | many.keys()) - len(shared)} cells that one of the oracles lacks are left out"
        return replace(finding, note=joined(finding.note, said))

    return judged


def _note(grid: Grid, pairs: Mapping[int, object], *more: str) -> str:
    """What the row says of seeds that are left out, beside `more`."""
    missing = len(grid.seeds) - len(pairs)
    why = f"{missing} of {len(grid.seeds)} seeds are left out: runs are missing or none has a result"
    return joined(*more, why if missing else "")


def _lost(grid: Grid, count: int) -> list[int]:
    """The seeds of which no run of this oracle has a result although all have ended."""
    ended = [seed for seed in grid.seeds if grid.whole(seed, count)]
    return [seed for seed in ended if not grid.table(count, seed, "loss")]


def lr_moves_down(grid: Grid) -> Finding:
    """log2 of the best step size of the crudest oracle over that of the most precise one, by seed."""
    return _shift(grid, "lr", lambda best: best.lr, lambda best: best.edge, Interval.below)


def alpha_moves_up(grid: Grid) -> Finding:
    """log2 of the best alpha of the crudest oracle over that of the most precise one, by seed."""
    if len(grid.momenta) < 2:
        return Finding(grid.evidence, "", grid.interval({}), OPEN, "needs two momenta or more")
    # on the edge of the step sizes the best alpha is that of one step size, not of the grid
    return _shift(grid, "alpha", lambda best: best.alpha, lambda best: best.alpha_edge or best.edge, Interval.above)


def _shift(
    grid: Grid,
    name: str,
    of: Callable[[GridOptimum], float],
    edge: Callable[[GridOptimum], bool],
    side: Callable[[Interval], PValues],
) -> Finding:
    optima = _pairs(grid, lambda count, seed: optimum(grid.table(count, seed, "loss")))
    shift = grid.interval({seed: _log_ratio(of(a), of(b)) for seed, (a, b) in optima.items()})
    few, many = grid.counts[0], grid.counts[-1]
    text = f"best {name} at {iterations(few)} over that at {many}: {2**shift.mean:.2f}"
    on_edge = any(edge(best) for pair in optima.values() for best in pair)
    censored = bool(_lost(grid, few) or _lost(grid, many)) and grid.lost_runs(few, many) > 0
    zone = (-inf, 0.0) if side is Interval.below else (0.0, inf)
    p = OPEN if on_edge or censored else side(shift)
    lost = grid.lost(few, many) if censored else ""
    note = _note(grid, optima, EDGE if on_edge else TIED if grid.runs[0].tied else "", lost)
    return Finding(grid.evidence, text if optima else "", shift, p, note, zone=zone, on_edge=on_edge)


def _log_ratio(a: float, b: float) -> float:
    return difference(log2(a), log2(b)) if difference(a, b) else 0.0


@over_shared_cells
def region_widens(grid: Grid) -> Finding:
    """Fraction of the step sizes within NEAR of the oracle's own best, most precise minus crudest, by seed."""
    return _wider(grid, "the best", lambda count, seed: grid.table(count, seed, "loss").values())


@over_shared_cells
def region_at_one_loss(grid: Grid) -> Finding:
    """Fraction of the step sizes within NEAR of the lower best of both oracles, most precise minus crudest, by seed.

    What a colour scale shared by two heat maps shows: an oracle that is lower everywhere has the larger region.
    """
    both = (grid.counts[0], grid.counts[-1])
    return _wider(
        grid, "the lower best of both", lambda _, seed: [v for c in both for v in grid.table(c, seed, "loss").values()]
    )


def _wider(grid: Grid, level: str, losses: Callable[[int, int], Iterable[float]]) -> Finding:
    """The stable fraction of the most precise oracle minus that of the crudest, by seed."""
    shares = _pairs(grid, lambda count, seed: _stable(grid, count, seed, NEAR * min(losses(count, seed), default=0.0)))
    if not shares or any(isnan(share) for pair in shares.values() for share in pair):
        return Finding(grid.evidence, "", grid.interval({}), OPEN, NARROW if shares else "")
    growth = grid.interval({seed: difference(b, a) for seed, (a, b) in shares.items()})
    text = f"step sizes within {NEAR - 1:.0%} of {level}: {_means(grid, shares, '.0%')}"
    lost = grid.lost(grid.counts[0], grid.counts[-1])
    return Finding(grid.evidence, text, growth, growth.above(), _note(grid, shares, lost and f"unstable: {lost}"))


def _stable(grid: Grid, count: int, seed: int, limit: float) -> float:
    """Fraction of the range of log lr with a loss up to the limit, linear between step sizes; the mean over momenta.

    Diverged runs are unstable up to the neighbouring step size: 0 if all did. nan if there is one step size only, or if
    the smallest or the largest is stable, since the region may go on beyond it.
    """
    runs = [run for run in grid.by_count[count] if run.seed == seed]
    table = grid.table(count, seed, "loss")
    if not table:
        return 0.0
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


@over_shared_cells
def best_accuracy_rises(grid: Grid) -> Finding:
    """Highest accuracy of the grid, most precise minus crudest, by seed.

    A best on the edge of the grid may be higher outside, and nothing is known of the best where every run diverged.
    """
    few, many = grid.counts[0], grid.counts[-1]
    optima = _pairs(grid, lambda count, seed: optimum(grid.table(count, seed, "accuracy"), sign=-1.0))
    rise = grid.interval({seed: difference(b.value, a.value) for seed, (a, b) in optima.items()})
    several = len(grid.momenta) > 1
    edges = [any(pair[i].edge or (several and pair[i].alpha_edge) for pair in optima.values()) for i in (0, 1)]
    rise = rise.censored(below=edges[0] or bool(_lost(grid, many)), above=edges[1] or bool(_lost(grid, few)))
    text = f"best accuracy at {many} iterations minus at {few}: {rise.mean:+.4f}"
    lost = grid.lost(few, many) if _lost(grid, few) or _lost(grid, many) else ""
    note = _note(grid, optima, EDGE if any(edges) else "", lost)
    return Finding(grid.evidence, text if optima else "", rise, rise.above(), note, on_edge=any(edges))


@over_shared_cells
def gap_shrinks(grid: Grid) -> Finding:
    """Mean over step sizes of best minus worst accuracy over momentum, crudest minus most precise, by seed.

    A momentum at which a run diverged is the worst one: the gap of its oracle is larger than that of the others.
    """
    few, many = grid.counts[0], grid.counts[-1]
    gaps = _pairs(grid, lambda count, seed: _gap(grid.table(count, seed, "accuracy")))
    shrink = grid.interval({seed: difference(a, b) for seed, (a, b) in gaps.items()})
    shrink = shrink.censored(below=grid.lost_runs(many) > 0, above=grid.lost_runs(few) > 0)
    text = f"best minus worst accuracy: {_means(grid, gaps, '.3f')}"
    return Finding(grid.evidence, text if gaps else "", shrink, shrink.above(), _note(grid, gaps, grid.lost(few, many)))


@over_shared_cells
def accuracy_region_grows(grid: Grid) -> Finding:
    """Fraction of the cells with HIGH of the best accuracy of both oracles, most precise minus crudest, by seed."""
    few, many = grid.counts[0], grid.counts[-1]

    def share(count: int, seed: int) -> float | None:
        tables = [grid.table(c, seed, "accuracy") for c in (few, many)]
        best = max((value for table in tables for value in table.values()), default=None)
        cells = grid.cells[count]
        mine = grid.table(count, seed, "accuracy")
        return None if best is None else sum(value >= HIGH * best for value in mine.values()) / len(cells)

    shares = _pairs(grid, share)
    growth = grid.interval({seed: difference(b, a) for seed, (a, b) in shares.items()}, 1.0 / len(grid.cells[many]))
    text = f"cells with {HIGH:.0%} of the best accuracy of both: {_means(grid, shares, '.0%')}"
    lost = grid.lost(few, many)
    return Finding(
        grid.evidence, text if shares else "", growth, growth.above(), _note(grid, shares, lost and f"low: {lost}")
    )


def _gap(table: dict[Cell, float]) -> float | None:
    rows = [[v for (lr, _), v in table.items() if lr == rate] for rate in {lr for lr, _ in table}]
    spreads = [max(row) - min(row) for row in rows if len(row) > 1]
    return sum(spreads) / len(spreads) if spreads else None


def _means(grid: Grid, pairs: Mapping[int, tuple[float, float]], form: str) -> str:
    crude, precise = (sum(pair[i] for pair in pairs.values()) / max(1, len(pairs)) for i in (0, 1))
    return f"{crude:{form}} at {iterations(grid.counts[0])}, {precise:{form}} at {grid.counts[-1]}"
