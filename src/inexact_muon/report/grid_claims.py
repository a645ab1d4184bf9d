"""The paper's claims about step size and momentum: the crudest oracle of a grid against the most precise one."""

from __future__ import annotations

from math import log2

from inexact_muon.report.finding import Finding
from inexact_muon.report.optimum import Optimum, optimum
from inexact_muon.report.series import ENDED, Cell, Grid, iterations
from inexact_muon.report.statistics import UNDECIDED, interval

NEAR = 1.05
"""A cell is stable if its loss is at most this times the oracle's own best."""
EDGE = "an optimum is on the edge of the grid: the true one may lie outside"


def _ends(grid: Grid) -> tuple[int, int]:
    return grid.counts[0], grid.counts[-1]


def _optima(grid: Grid) -> list[tuple[Optimum, Optimum]]:
    """(crude, precise) for each seed that has both."""
    crude, precise = _ends(grid)
    pairs = [(optimum(grid.table(crude, s, "loss")), optimum(grid.table(precise, s, "loss"))) for s in grid.seeds]
    return [(a, b) for a, b in pairs if a is not None and b is not None]


def lr_moves_down(grid: Grid) -> Finding:
    """log2 of the best step size of the crudest oracle over that of the most precise one, by seed."""
    crude, precise = _ends(grid)
    found = _optima(grid)
    shift = interval([log2(a.lr / b.lr) for a, b in found])
    text = f"best lr at {iterations(crude)} over that at {precise}: {2**shift.mean:.2f}; log2 {shift.mean:+.2f}"
    on_edge = any(a.edge or b.edge for a, b in found)
    verdict = UNDECIDED if on_edge else shift.below()
    return Finding(grid.title, text if found else "", shift, verdict, EDGE if on_edge else "")


def alpha_moves_up(grid: Grid) -> Finding:
    """log2 of the best alpha of the crudest oracle over that of the most precise one, by seed, on the grid."""
    crude, precise = _ends(grid)
    found = _optima(grid)
    shift = interval([log2(a.alpha / b.alpha) for a, b in found])
    text = f"best alpha at {iterations(crude)} over that at {precise}: {2**shift.mean:.2f}; log2 {shift.mean:+.2f}"
    ends = {grid.momenta[0], grid.momenta[-1]}
    on_edge = any(best.cell[1] in ends for pair in found for best in pair)
    verdict = UNDECIDED if on_edge else shift.above()
    return Finding(grid.title, text if found else "", shift, verdict, EDGE if on_edge else "")


def region_widens(grid: Grid) -> Finding:
    """Share of cells within NEAR of the oracle's own best, most precise minus crudest, by seed."""
    crude, precise = _ends(grid)
    shares = []
    for seed in grid.seeds:
        a, b = (_stable(grid, count, seed) for count in (crude, precise))
        if a is not None and b is not None:
            shares.append((a, b))
    growth = interval([b - a for a, b in shares])
    mean = [sum(pair[i] for pair in shares) / max(1, len(shares)) for i in (0, 1)]
    text = f"cells within {NEAR - 1:.0%} of the best: {mean[0]:.0%} at {iterations(crude)}, {mean[1]:.0%} at {precise}"
    return Finding(grid.title, text if shares else "", growth, growth.above())


def _stable(grid: Grid, count: int, seed: int) -> float | None:
    """A run that diverged is a cell outside; one that has not ended makes the share unknown."""
    runs = [run for cell in grid.cells[count].values() for run in cell if run.seed == seed]
    table = grid.table(count, seed, "loss")
    if not table or any(run.state not in ENDED for run in runs):
        return None
    best = min(table.values())
    return sum(value <= best * NEAR for value in table.values()) / len(runs)


def best_accuracy_rises(grid: Grid) -> Finding:
    """Highest accuracy of the grid, most precise minus crudest, by seed."""
    crude, precise = _ends(grid)
    rises = []
    for seed in grid.seeds:
        a, b = (grid.table(count, seed, "accuracy") for count in (crude, precise))
        if a and b:
            rises.append(max(b.values()) - max(a.values()))
    rise = interval(rises)
    text = f"best accuracy at {precise} iterations minus at {crude}: {rise.mean:+.4f}"
    return Finding(grid.title, text if rises else "", rise, rise.above())


def gap_shrinks(grid: Grid) -> Finding:
    """Mean over step sizes of best minus worst accuracy over momentum, crudest minus most precise, by seed."""
    crude, precise = _ends(grid)
    gaps = []
    for seed in grid.seeds:
        a, b = (_gap(grid.table(count, seed, "accuracy")) for count in (crude, precise))
        if a is not None and b is not None:
            gaps.append((a, b))
    shrink = interval([a - b for a, b in gaps])
    mean = [sum(pair[i] for pair in gaps) / max(1, len(gaps)) for i in (0, 1)]
    text = f"best minus worst accuracy: {mean[0]:.3f} at {iterations(crude)}, {mean[1]:.3f} at {precise}"
    return Finding(grid.title, text if gaps else "", shrink, shrink.above())


def _gap(table: dict[Cell, float]) -> float | None:
    rows = [[v for (lr, _), v in table.items() if lr == rate] for rate in {lr for lr, _ in table}]
    spreads = [max(row) - min(row) for row in rows if len(row) > 1]
    return sum(spreads) / len(spreads) if spreads else None
