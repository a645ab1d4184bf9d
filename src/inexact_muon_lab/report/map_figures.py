"""Step size against momentum: maps of loss and accuracy, and the optimum that a rule predicts for another oracle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from statistics import fmean
from types import SimpleNamespace
from typing import Any

from inexact_muon_lab.report import charts
from inexact_muon_lab.report.figure import Figure, Panel, Row, Table
from inexact_muon_lab.report.ladders import Series, iterations
from inexact_muon_lab.report.load import Results
from inexact_muon_lab.report.sources import CNN_STEPS, GPT_HEATMAP, PAPER
from inexact_muon_lab.statistics import Cell, GridOptimum, optimum
from inexact_muon_lab.tune.rules import RULES

SHOWN = ("paper", "descent")
"""Rules whose prediction is plotted."""
SATURATED = 0.95
"""A mean delta above this is near 1, its value for an oracle that misses a singular direction."""


def heat_maps(results: Results, grids: list[Series]) -> Figure:
    """Final loss over step size and momentum, with observed and predicted optimum."""
    panels: list[Panel] = []
    lines, still = [], []
    for grid in grids:
        means = {count: _means(grid, count, "loss") for count in grid.cells}
        best = {count: o for count, table in means.items() if (o := optimum(table)) is not None}
        measured = {count: _inexactness(results, grid, count) for count in grid.cells}
        carried = _predicted(measured, best)
        if all(one is not None and one.delta > SATURATED for one in measured.values()):
            still.append(grid.title)
        values = sorted(v for table in means.values() for v in table.values())
        domain = (values[0], values[int(0.9 * (len(values) - 1))]) if values else (0.0, 1.0)
        for count in grid.cells:
            marks = _marks(grid, count, best[count], carried.get(count, {})) if count in best else []
            panels += _map(grid, count, "loss", marks, domain)
        for count, o in best.items():
            rules = [f"{lr:.3g}, {momentum:.3g}" for lr, momentum in carried.get(count, {}).values()] or ["-", "-"]
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
    remarks = (f"In {', '.join(still)}, {why}",) if still else ()
    return Figure("heatmaps", PAPER, "Step size and momentum", "Figure 1b", caption, panels, Table(head, lines),
                  GPT_HEATMAP, remarks=remarks)  # fmt: skip


def accuracy_maps(grids: list[Series]) -> Figure:
    """Accuracy over step size and momentum."""
    panels: list[Panel] = []
    for grid in grids:
        means = {count: _means(grid, count, "accuracy") for count in grid.cells}
        values = [v for table in means.values() for v in table.values()]
        domain = (min(values, default=0.0), max(values, default=1.0))
        for count, table in means.items():
            best = optimum(table, -1.0)
            panels += _map(grid, count, "accuracy", [_star("accuracy", best)] if best else [], domain)
    caption = "Final accuracy, mean over seeds. ★ best cell; × diverged."
    return Figure("accuracy-maps", PAPER, "Accuracy over the grid", "Figure 5", caption, panels, missing=CNN_STEPS)


def _map(grid: Series, count: int, metric: str, marks: list[Row], domain: tuple[float, float]) -> list[Panel]:
    """The map of one count; none without a result, since there would be nothing to draw but axes."""
    runs = [
        {"kind": "run", "iterations": count, "lr": lr, "momentum": momentum, "seed": run.seed,
         metric: run.value(metric), "state": run.state, "run": run.id, "study": grid.study, "note": ""}
        for (lr, momentum), runs in sorted(grid.cells[count].items())
        for run in runs
    ]  # fmt: skip
    if not any(row["state"] in ("finished", "diverged") for row in runs):
        return []
    rows = [*runs, *({**row, "iterations": count} for row in marks)]
    return [charts.heat_map(f"{grid.title}: {iterations(count)}", rows, metric, metric == "loss", domain)]


def _means(grid: Series, count: int, metric: str) -> dict[Cell, float]:
    """{cell: mean over the finished seeds}."""
    values = defaultdict(list)
    for seed in grid.seeds:
        for cell, value in grid.table(count, seed, metric).items():
            values[cell].append(value)
    return {cell: fmean(by_seed) for cell, by_seed in values.items()}


def _star(metric: str, best: GridOptimum, more: str = "") -> Row:
    return {"kind": "optimum", "lr": best.cell[0], "momentum": best.cell[1], "note": f"{metric} {best.value:.4f}{more}"}


def _marks(grid: Series, count: int, best: GridOptimum, carried: dict[str, Cell]) -> list[Row]:
    """The star, and the cells nearest to what the rules predict."""
    rows = [_star("loss", best, f", lr {best.lr:.3g}, alpha {best.alpha:.3g}")]
    for rule, (lr, momentum) in carried.items():
        cell = {
            "lr": min(grid.rates, key=lambda rate: max(rate / lr, lr / rate)),
            "momentum": min(grid.momenta, key=lambda known: abs(known - momentum)),
        }
        rows.append({"kind": rule, **cell, "note": f"lr {lr:.3g}, momentum {momentum:.3g}"})
    return rows


def _inexactness(results: Results, grid: Series, count: int) -> SimpleNamespace | None:
    """Mean delta, gap and overshoot of an oracle of a grid on its kind of problem, in any study, if measured."""
    sums: dict[str, list[float]] = {"delta": [], "gap": [], "overshoot": []}
    same = grid.by_count[count][0]
    for run in results.runs:
        if run.spec.telemetry.every and run.problem == same.problem and run.oracle == same.oracle:
            for record in run.records("lmo"):
                for name, values in sums.items():
                    values += [v for v in record[name].values() if v is not None]
    return SimpleNamespace(**{name: fmean(values) for name, values in sums.items()}) if all(sums.values()) else None


def _predicted(measured: Mapping[int, Any], optima: Mapping[int, GridOptimum]) -> dict[int, dict[str, Cell]]:
    """{iterations: {rule: (lr, momentum)}}: the optimum of the most precise oracle transferred to the others."""
    source = max(optima, default=0)
    a, carried = measured.get(source), {}
    for count in optima.keys() - {source}:
        b, best = measured[count], optima[source]
        if a and b and b.gap < 1:
            factors = {name: RULES[name](a, b) for name in SHOWN}
            carried[count] = {n: (best.lr * f.lr, 1.0 - min(1.0, best.alpha * f.alpha)) for n, f in factors.items()}
    return carried


def accuracy(grids: list[Series]) -> Figure:
    """Best and worst accuracy over momentum, by step size."""
    panels = []
    for grid in grids:
        rows: list[Row] = []
        for count in grid.cells:
            means = _means(grid, count, "accuracy")
            for lr in grid.rates:
                row = [(value, momentum) for (rate, momentum), value in means.items() if rate == lr]
                for end, (value, momentum) in (("best", max(row)), ("worst", min(row))) if row else ():
                    rows.append({"iterations": count, "lr": lr, "end": end, "accuracy": value, "momentum": momentum})
        if rows:
            panels.append(charts.envelope(grid.title, rows))
    caption = "Solid: best over momentum. Dashed: worst. The closer they are, the less momentum matters."
    return Figure("accuracy", PAPER, "Best and worst accuracy", "Figure 2b", caption, panels, missing=CNN_STEPS)
