"""Claims about step size and momentum: the crudest oracle of a grid against the most precise one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import wraps
from itertools import pairwise
from math import inf, isnan, log2, nan
from statistics import fmean
from typing import Literal, TypeVar

from inexact_muon_lab.report.finding import Finding, joined, unknown
from inexact_muon_lab.report.ladders import Series, iterations
from inexact_muon_lab.statistics import OPEN, Cell, Interval, PValues, difference, optimum

T = TypeVar("T")

NEAR = 1.05
"""A step size is stable if its loss is at most this times the oracle's own best."""
HIGH = 0.95
"""An accuracy is high from this share of the best one on."""
NARROW = "the smallest or the largest step size is stable: the region may go on beyond the grid"
TIED = "weight decay is tied to lr and moves with it"
EDGE = "an optimum is on the edge of the grid: the true one may lie outside"


def _pairs(grid: Series, of: Callable[[int, int], T | None]) -> dict[int, tuple[T, T]]:
    """of(iterations, seed) for the crudest and the most precise oracle, for each seed whose runs have all ended."""
    few, many = grid.ends
    values = {seed: (of(few, seed), of(many, seed)) for seed in grid.seeds if grid.whole(seed, few, many)}
    return {seed: (a, b) for seed, (a, b) in values.items() if a is not None and b is not None}


def over_shared_cells(judge: Callable[[Series], Finding]) -> Callable[[Series], Finding]:
    """Judge without cells that the crudest or the most precise oracle lacks: a larger grid has the better best."""

    @wraps(judge)
    def judged(grid: Series) -> Finding:
        few, many = (grid.cells[count] for count in grid.ends)
        if few.keys() == many.keys():
            return judge(grid)
        shared = few.keys() & many.keys()
        if not shared:
            return unknown(grid.evidence, "the oracles have no cell in common")
        cells = {count: {c: cells[c] for c in cells.keys() & shared} for count, cells in grid.cells.items()}
        finding = judge(replace(grid, cells={count: rows for count, rows in cells.items() if rows}))
        said = f"{len(few.keys() | many.keys()) - len(shared)} cells that one of the oracles lacks are left out"
        return replace(finding, note=joined(finding.note, said))

    return judged


def _note(grid: Series, pairs: Mapping[int, object], *more: str) -> str:
    """What the row says of seeds that are left out, beside `more`."""
    missing = len(grid.seeds) - len(pairs)
    why = f"{missing} of {len(grid.seeds)} seeds are left out: runs are missing or none has a result"
    return joined(*more, why if missing else "")


def _lost(grid: Series, count: int) -> list[int]:
    """The seeds of which no run of this oracle has a result although all have ended."""
    ended = [seed for seed in grid.seeds if grid.whole(seed, count)]
    return [seed for seed in ended if not grid.table(count, seed, "loss")]


def lr_moves_down(grid: Series) -> Finding:
    """log2 of the best step size of the crudest oracle over that of the most precise one, by seed."""
    return _shift(grid, "lr", Interval.below)


def alpha_moves_up(grid: Series) -> Finding:
    """log2 of the best alpha of the crudest oracle over that of the most precise one, by seed."""
    if len(grid.momenta) < 2:
        return unknown(grid.evidence, "needs two momenta or more")
    return _shift(grid, "alpha", Interval.above)


def _shift(grid: Series, name: Literal["lr", "alpha"], side: Callable[[Interval], PValues]) -> Finding:
    few, many = grid.ends
    optima = _pairs(grid, lambda count, seed: optimum(grid.table(count, seed, "loss")))
    shift = grid.interval({seed: _log_ratio(getattr(a, name), getattr(b, name)) for seed, (a, b) in optima.items()})
    text = f"best {name} at {iterations(few)} over that at {many}: {2**shift.mean:.2f}"
    # on the edge of the step sizes the best alpha is that of one step size, not of the grid
    edges = [best.edge or (name == "alpha" and best.alpha_edge) for pair in optima.values() for best in pair]
    censored = bool(_lost(grid, few) or _lost(grid, many)) and grid.lost_runs(few, many) > 0
    p = OPEN if any(edges) or censored else side(shift)
    tied = TIED if grid.runs[0].tied else ""
    note = _note(grid, optima, EDGE if any(edges) else tied, grid.lost(few, many) if censored else "")
    zone = (-inf, 0.0) if side is Interval.below else (0.0, inf)
    return Finding(grid.evidence, text if optima else "", shift, p, note, zone=zone, on_edge=any(edges))


def _log_ratio(a: float, b: float) -> float:
    return difference(log2(a), log2(b)) if difference(a, b) else 0.0


@over_shared_cells
def region_widens(grid: Series) -> Finding:
    """Fraction of the step sizes within NEAR of the oracle's own best, most precise minus crudest, by seed."""
    return _wider(grid, "the best", lambda count, seed: grid.table(count, seed, "loss").values())


@over_shared_cells
def region_at_one_loss(grid: Series) -> Finding:
    """Fraction of the step sizes within NEAR of the lower best of both oracles, most precise minus crudest, by seed.

    What a colour scale shared by two heat maps shows: an oracle that is lower everywhere has the larger region.
    """
    return _wider(
        grid,
        "the lower best of both",
        lambda _, seed: [v for count in grid.ends for v in grid.table(count, seed, "loss").values()],
    )


def _wider(grid: Series, level: str, losses: Callable[[int, int], Iterable[float]]) -> Finding:
    """The stable fraction of the most precise oracle minus that of the crudest, by seed."""
    shares = _pairs(grid, lambda count, seed: _stable(grid, count, seed, NEAR * min(losses(count, seed), default=0.0)))
    if not shares or any(isnan(share) for pair in shares.values() for share in pair):
        return unknown(grid.evidence, NARROW if shares else "")
    lost = grid.lost(*grid.ends)
    text = f"step sizes within {NEAR - 1:.0%} of {level}: {_means(grid, shares, '.0%')}"
    return _change(grid, shares, text, lost and f"unstable: {lost}")


def _change(
    grid: Series,
    pairs: Mapping[int, tuple[float, float]],
    text: str,
    *notes: str,
    missing: tuple[bool, bool] = (False, False),
    grain: float = 0.0,
) -> Finding:
    """The second of each pair minus the first, by seed, above zero.

    Args:
        missing: whether values are missing that would be lower; whether some are that would be higher.
    """
    change = grid.interval({seed: difference(b, a) for seed, (a, b) in pairs.items()}, grain).censored(*missing)
    return Finding(grid.evidence, text if pairs else "", change, change.above(), _note(grid, pairs, *notes))


def _stable(grid: Series, count: int, seed: int, limit: float) -> float:
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
        rates = sorted({run.cell[0] for run in runs if run.cell[1] == momentum})
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
def best_accuracy_rises(grid: Series) -> Finding:
    """Highest accuracy of the grid, most precise minus crudest, by seed.

    A best on the edge of the grid may be higher outside, and nothing is known of the best where every run diverged.
    """
    few, many = grid.ends
    optima = _pairs(grid, lambda count, seed: optimum(grid.table(count, seed, "accuracy"), sign=-1.0))
    several = len(grid.momenta) > 1
    edges = [any(pair[i].edge or (several and pair[i].alpha_edge) for pair in optima.values()) for i in (0, 1)]
    gone = [bool(_lost(grid, count)) for count in (few, many)]
    values = {seed: (a.value, b.value) for seed, (a, b) in optima.items()}
    notes = (EDGE if any(edges) else "", grid.lost(few, many) if any(gone) else "")
    rise = _change(grid, values, "", *notes, missing=(edges[0] or gone[1], edges[1] or gone[0]))
    text = f"best accuracy at {many} iterations minus at {few}: {rise.interval.mean:+.4f}"
    return replace(rise, statistic=text if optima else "", on_edge=any(edges))


@over_shared_cells
def gap_shrinks(grid: Series) -> Finding:
    """Mean over step sizes of best minus worst accuracy over momentum, crudest minus most precise, by seed.

    A momentum at which a run diverged is the worst one: the gap of its oracle is larger than that of the others.
    """
    few, many = grid.ends
    gaps = _pairs(grid, lambda count, seed: _gap(grid.table(count, seed, "accuracy")))
    shrinks = {seed: (b, a) for seed, (a, b) in gaps.items()}
    text = f"best minus worst accuracy: {_means(grid, gaps, '.3f')}"
    missing = grid.lost_runs(many) > 0, grid.lost_runs(few) > 0
    return _change(grid, shrinks, text, grid.lost(few, many), missing=missing)


@over_shared_cells
def accuracy_region_grows(grid: Series) -> Finding:
    """Fraction of the cells with HIGH of the best accuracy of both oracles, most precise minus crudest, by seed."""

    def share(count: int, seed: int) -> float | None:
        best = max((value for c in grid.ends for value in grid.table(c, seed, "accuracy").values()), default=None)
        mine = grid.table(count, seed, "accuracy").values()
        return None if best is None else sum(value >= HIGH * best for value in mine) / len(grid.cells[count])

    shares = _pairs(grid, share)
    lost = grid.lost(*grid.ends)
    text = f"cells with {HIGH:.0%} of the best accuracy of both: {_means(grid, shares, '.0%')}"
    return _change(grid, shares, text, lost and f"low: {lost}", grain=1.0 / len(grid.cells[grid.ends[1]]))


def _gap(table: dict[Cell, float]) -> float | None:
    rows = [[v for (lr, _), v in table.items() if lr == rate] for rate in {lr for lr, _ in table}]
    spreads = [max(row) - min(row) for row in rows if len(row) > 1]
    return sum(spreads) / len(spreads) if spreads else None


def _means(grid: Series, pairs: Mapping[int, tuple[float, float]], form: str) -> str:
    crude, precise = (sum(pair[i] for pair in pairs.values()) / max(1, len(pairs)) for i in (0, 1))
    return f"{crude:{form}} at {iterations(grid.ends[0])}, {precise:{form}} at {grid.ends[1]}"
