"""Figures 2 and 5 of the paper: loss and accuracy of image classifiers; and the baselines."""

from __future__ import annotations

from inexact_muon_lab.report import charts
from inexact_muon_lab.report.figure import Figure, Row
from inexact_muon_lab.report.ladders import Grid, Ladder, grids, iterations, ladders
from inexact_muon_lab.report.language_figures import PAPER, cell_rows, curve_rows, mean_table
from inexact_muon_lab.report.load import Results
from inexact_muon_lab.report.sources import BEYOND, CNN_ITERATIONS, CNN_STEPS, OPTIMIZERS
from inexact_muon_lab.statistics import optimum
from inexact_muon_lab.store.curves import thin


def figures(results: Results) -> dict[str, Figure]:
    """All figures by id, including empty ones."""
    series = [s for s in ladders(results) if s.images]
    planes = [g for g in grids(results) if g.images]
    long = [s for s in series if any(len(run.records("train")) > 8 for run in s.runs)] or series
    drawn = [training(long), accuracy(planes), accuracy_maps(planes), baselines(results)]
    return {figure.id: figure for figure in drawn}


def training(series: list[Ladder]) -> Figure:
    """Training loss over steps, by precision."""
    panels = [
        charts.curves(s.title, rows, "loss", log=True, label="training loss")
        for s in series
        if (rows := curve_rows(s, "train", "loss", "loss"))
    ]
    caption = "Training loss by iterations, on a logarithmic axis; the band is the range of the seeds."
    return Figure("cnn-loss", PAPER, "Training loss by precision", "Figure 2a", caption, panels,
                  missing=CNN_ITERATIONS)  # fmt: skip


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
            panels.append(charts.heat_map(f"{grid.title}: {iterations(count)}", rows, "accuracy", False, domain))
    caption = "Final accuracy, mean over seeds. ★ best cell; × diverged."
    return Figure("accuracy-maps", PAPER, "Accuracy over the grid", "Figure 5", caption, panels, missing=CNN_STEPS)


def baselines(results: Results) -> Figure:
    """Validation loss by optimizer."""
    panels = []
    for study in results.studies:
        if len({run.optimizer for run in study.runs}) < 2:
            continue
        rows = [
            {
                "optimizer": run.optimizer,
                "step": r["step"],
                "loss": r["loss"],
                "seed": run.seed,
                "run": run.id,
                "study": run.study,
            }
            for run in study.runs
            for r in thin([r for r in run.records("validation") if (r.get("loss") or 0) > 0])
        ]
        if rows:
            panels.append(charts.curves(study.name, rows, "loss", "optimizer", log=True))
    caption = "The same model under each optimizer, at one hand-picked step size each: a check, not a contest."
    return Figure("baselines", BEYOND, "Other optimizers", "not in the paper", caption, panels, missing=OPTIMIZERS)
