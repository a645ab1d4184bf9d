"""Step size against momentum: maps of loss and accuracy, and the optimum that a rule predicts for another oracle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from inexact_muon_lab.report import charts
from inexact_muon_lab.report.figure import Figure, Panel, Row, Table
from inexact_muon_lab.report.ladders import Grid, iterations
from inexact_muon_lab.report.load import Results
from inexact_muon_lab.report.sources import CNN_STEPS, GPT_HEATMAP, PAPER
from inexact_muon_lab.statistics import Cell, GridOptimum, optimum
from inexact_muon_lab.tune.rules import RULES

SHOWN = ("paper", "descent")
"""Rules whose prediction is plotted."""
SATURATED = 0.95
"""A mean delta above this is near 1, its value for an oracle that misses a singular direction."""


def heat_maps(results: Results, planes: list[Grid]) -> Figure:
    """Final loss over step size and momentum, with observed and predicted optimum."""
    panels: list[Panel] = []
    lines = []
    still = []
    for grid in planes:
        means = {count: mean_table(grid, count, "loss") for count in grid.cells}
        every = sorted(v for table in means.values() for v in table.values())
        domain = (every[0], every[int(0.9 * (len(every) - 1))]) if every else (0.0, 1.0)
        best = {count: o for count, table in means.items() if (o := optimum(table)) is not None}
        carried = predicted(results, grid, best)
        if _all_near_one(results, grid):
            still.append(grid.title)
        for count in grid.cells:
            rows = [*cell_rows(grid, count, "loss"), *_marks(grid, count, best.get(count), carried.get(count, {}))]
            if rows_ended(rows):
                panels.append(charts.heat_map(f"{grid.title}: {iterations(count)}", rows, "loss", True, domain))
            if count in best:
                o = best[count]
                rules = [f"{c[0]:.3g}, {c[1]:.3g}" for c in carried.get(count, {}).values()]
                rules += ["-"] * (2 - len(rules))
                lines.append((grid.title, str(count), f"{o.value:.4f}", f"{o.lr:.3g}{' (edge)' if o.edge else ''}",
                              f"{o.cell[1]:g}", f"{o.alpha:.3g}", *rules))  # fmt: skip
    head = ("grid", "iterations", "best loss", "best lr", "momentum", "alpha", "paper's rule: lr, momentum",
            "descent rule")  # fmt: skip
    caption = (
        "Final loss in nats, mean over seeds. ★ best cell; ◆ and ◇ where the paper's rule and the descent rule carry "
        "the optimum of the most precise oracle; × diverged. Best lr and alpha in the table are those of a "
        "quadratic fitted around the best cell."
    )
    why = "the paper's rule moves next to nothing, because delta is 1 for every oracle here."
    remarks = (f"In {', '.join(still)} {why}",) if still else ()
    return Figure("heatmaps", PAPER, "Step size and momentum", "Figure 1b", caption, panels, Table(head, lines),
                  GPT_HEATMAP, remarks=remarks)  # fmt: skip


def _all_near_one(results: Results, grid: Grid) -> bool:
    """Whether the mean delta of every oracle of a grid is near 1, measured in any study of its problem."""
    means = [inexactness(results, grid, count) for count in grid.cells]
    return all(one is not None and one.delta > SATURATED for one in means)


def cell_rows(grid: Grid, count: int, metric: str) -> Iterator[Row]:
    """One row per run of a panel."""
    for (lr, momentum), runs in sorted(grid.cells[count].items()):
        for run in runs:
            yield {"kind": "run", "iterations": count, "lr": lr, "momentum": momentum, "seed": run.seed,
                   metric: run.value(metric), "state": run.state, "run": run.id,
                   "study": grid.study, "note": ""}  # fmt: skip


def rows_ended(rows: list[Row]) -> bool:
    """Whether a run of the panel has a result: without one there is nothing to draw but axes."""
    return any(row["kind"] == "run" and row["state"] in ("finished", "diverged") for row in rows)


def mean_table(grid: Grid, count: int, metric: str) -> dict[tuple[float, float], float]:
    """{cell: mean over the finished seeds}."""
    values = defaultdict(list)
    for seed in grid.seeds:
        for cell, value in grid.table(count, seed, metric).items():
            values[cell].append(value)
    return {cell: sum(by_seed) / len(by_seed) for cell, by_seed in values.items()}


def _marks(grid: Grid, count: int, best: GridOptimum | None, carried: dict[str, Cell]) -> list[Row]:
    if best is None:
        return []
    lr, momentum = best.cell
    cell = {"iterations": count, "lr": lr, "momentum": momentum}
    rows = [{"kind": "optimum", **cell, "note": f"loss {best.value:.4f}, lr {best.lr:.3g}, alpha {best.alpha:.3g}"}]
    for rule, (lr, momentum) in carried.items():
        cell |= {"lr": min(grid.rates, key=lambda rate: max(rate / lr, lr / rate))}
        cell |= {"momentum": min(grid.momenta, key=lambda known: abs(known - momentum))}
        rows.append({"kind": rule, **cell, "note": f"lr {lr:.3g}, momentum {momentum:.3g}"})
    return rows


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


def accuracy(planes: list[Grid]) -> Figure:
    """Best and worst accuracy over momentum, by step size."""
    panels = []
    for grid in planes:
        rows: list[Row] = []
        for count in grid.cells:
            means = mean_table(grid, count, "accuracy")
            for lr in grid.rates:
                row = sorted((value, momentum) for (rate, momentum), value in means.items() if rate == lr)
                for end, index in (("best", -1), ("worst", 0)) if row else ():
                    value, momentum = row[index]
                    rows.append({"iterations": count, "lr": lr, "end": end, "accuracy": value, "momentum": momentum})
        if rows:
            panels.append(charts.envelope(grid.title, rows))
    caption = "Solid: best over momentum. Dashed: worst. The closer they are, the less momentum matters."
    return Figure("accuracy", PAPER, "Best and worst accuracy", "Figure 2b", caption, panels, missing=CNN_STEPS)


def accuracy_maps(planes: list[Grid]) -> Figure:
    """Accuracy over step size and momentum."""
    panels = []
    for grid in planes:
        means = {count: mean_table(grid, count, "accuracy") for count in grid.cells}
        every = [v for table in means.values() for v in table.values()]
        for count in grid.cells:
            rows = list(cell_rows(grid, count, "accuracy"))
            best = optimum(means[count], -1.0)
            if best is not None:
                lr, momentum = best.cell
                rows.append({"kind": "optimum", "iterations": count, "lr": lr, "momentum": momentum,
                             "note": f"accuracy {best.value:.4f}"})  # fmt: skip
            domain = (min(every, default=0.0), max(every, default=1.0))
            if rows_ended(rows):
                panels.append(charts.heat_map(f"{grid.title}: {iterations(count)}", rows, "accuracy", False, domain))
    caption = "Final accuracy, mean over seeds. ★ best cell; × diverged."
    return Figure("accuracy-maps", PAPER, "Accuracy over the grid", "Figure 5", caption, panels, missing=CNN_STEPS)
