"""Figures 1, 3 and 4 and Table 1 of the paper: loss, time and LMO error of language models."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from inexact_muon_lab.report import charts, paper
from inexact_muon_lab.report.figure import Figure, Panel, Row, Table
from inexact_muon_lab.report.ladder_claims import triples
from inexact_muon_lab.report.ladders import Grid, Ladder, grids, iterations, ladders
from inexact_muon_lab.report.load import Results, RunRecord
from inexact_muon_lab.report.predicted_optimum import inexactness, predicted
from inexact_muon_lab.report.sources import GPT_HEATMAP, GPT_ITERATIONS
from inexact_muon_lab.statistics import Cell, GridOptimum, interval, optimum
from inexact_muon_lab.store.curves import thin

PAPER = "The paper's figures, in its order"
THEIRS = f"the paper: {paper.SIZE} parameters, FineWeb, {paper.STEPS:,} steps"
PRINTED = Table(
    ("iterations", "loss", "minutes"),
    [(str(n), f"{paper.LOSS[n]:.4f}", f"{paper.MINUTES[n]:.1f}") for n in paper.LOSS],
    THEIRS,
)
"""Table 1 of the paper."""
SATURATED = 0.95
"""A mean delta above this is near 1, its value for an oracle that misses a singular direction."""


def figures(results: Results) -> dict[str, Figure]:
    """All figures by id, including empty ones."""
    series = [s for s in ladders(results) if not s.images]
    planes = [g for g in grids(results) if not g.images]
    measured = [s for s in ladders(results) if any(run.records("lmo") for run in s.runs)]
    longest = [s for s in series if any(len(run.records("validation")) > 1 for run in s.runs)]
    drawn = [convergence(longest), heat_maps(results, planes), table_one(series), lmo_error(measured), layers(measured)]
    return {figure.id: figure for figure in drawn}


def convergence(series: list[Ladder]) -> Figure:
    """Validation loss over steps."""
    panels = [
        charts.curves(_at(s), rows, "loss", label="validation loss")
        for s in series
        if (rows := curve_rows(s, "validation", "loss", "loss"))
    ]
    caption = "Validation loss by iterations of the oracle; the band is the range of the seeds."
    return Figure("convergence", PAPER, "Loss against steps", "Figures 1a, 3a", caption, panels,
                  missing=GPT_ITERATIONS)  # fmt: skip


def curve_rows(s: Ladder, kind: str, key: str, column: str) -> list[Row]:
    """A curve of every run of a ladder: the positive values `key` of its records of a kind, as `column`."""
    return [
        {"iterations": count, "step": r["step"], column: r[key], "seed": run.seed, "run": run.id, "study": s.study}
        for count, runs in s.rungs.items()
        for run in runs
        for r in thin([r for r in run.records(kind) if (r.get(key) or 0) > 0])
    ]


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
            panels.append(charts.heat_map(f"{grid.title}: {iterations(count)}", rows, "loss", True, domain))
            if count in best:
                o = best[count]
                rules = [f"{c[0]:.3g}, {c[1]:.3g}" for c in carried.get(count, {}).values()]
                rules += ["-"] * (2 - len(rules))
                lines.append((grid.title, str(count), f"{o.value:.4f}", f"{o.lr:.3g}{' (edge)' if o.edge else ''}",
                              f"{o.cell[1]:g}", f"{o.alpha:.3g}", *rules))  # fmt: skip
    head = (
        "grid",
        "iterations",
        "best loss",
        "best lr",
        "momentum",
        "alpha",
        "paper's rule: lr, momentum",
        "descent rule",
    )
    caption = (
        "Final loss, mean over seeds. ★ best cell; ◆ and ◇ where the paper's rule and the descent rule carry the "
        "optimum of the most precise oracle; × diverged. Best lr and alpha in the table are those of a "
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


def table_one(series: list[Ladder]) -> Figure:
    """Final loss and time by iterations, with the paper's table."""
    rows = [
        {"oracle": s.title, "iterations": count, "seed": run.seed, "loss": run.value("loss"),
         "milliseconds": run.milliseconds, "run": run.id}
        for s in series
        for count, runs in s.rungs.items()
        for run in runs
        if run.value("loss") is not None
    ]  # fmt: skip
    panels: list[Panel] = []
    for title in dict.fromkeys(
        row["oracle"] for row in rows
    ):  # one axis per problem: losses and times are not comparable
        mine = [row for row in rows if row["oracle"] == title]
        timed = [row for row in mine if row["milliseconds"] is not None]
        panels.append(charts.ladder(f"{title}: final validation loss", mine, "loss", "validation loss"))
        if timed:
            panels.append(charts.ladder(f"{title}: time of a training step", timed, "milliseconds", "ms per step"))
    head = ("runs", "iterations", "seeds", "loss", "± 95 %", "ms per step")
    lines = tuple(_line(s, count) for s in series for count in s.rungs)
    caption = (
        "A dot is a run. Times are this machine's and noisy when it is shared; telemetry and evaluation do not count."
    )
    return Figure("table-1", PAPER, "Final loss and time", "Table 1, Figure 3b", caption, panels,
                  Table(head, lines), GPT_ITERATIONS, PRINTED)  # fmt: skip


def _line(s: Ladder, count: int) -> tuple[str, ...]:
    loss = interval(list(s.values(count, lambda run: run.value("loss")).values()))
    time = interval(list(s.values(count, lambda run: run.milliseconds).values()))
    return (
        s.title,
        str(count),
        str(loss.n),
        f"{loss.mean:.4f}" if loss.n else "-",
        f"{loss.high - loss.mean:.4f}" if loss.n > 1 else "-",
        f"{time.mean:.1f}" if time.n else "-",
    )


def lmo_error(series: list[Ladder]) -> Figure:
    """The LMO error, summed over layers, over training."""
    panels, lines = [], []
    for s in series:
        rows = curve_rows(s, "lmo", "sum", "lmo_error")
        summed = max((len(r["delta"]) for run in s.runs for r in run.records("lmo")), default=0)
        panels.append(charts.curves(_at(s), rows, "lmo_error", label=f"sum of delta over {summed} matrices"))
        for count, runs in s.rungs.items():
            last = [r[-1] for run in runs if (r := run.records("lmo"))]
            mean = sum(r["sum"] for r in last) / max(1, len(last))
            matrices = len(last[0]["delta"]) if last else 0
            lines.append((s.title, str(count), f"{mean:.3f}", str(matrices), f"{mean / max(1, matrices):.3f}"))
    head = ("runs", "iterations", "sum at the end", "matrices", "mean delta")
    caption = "Sum of delta = norm(d_hat - d) over all matrices, against the exact oracle."
    printed = [(str(count), f"~{value}") for count, value in paper.LMO_ERROR.items()]
    theirs = Table(("iterations", "sum over layers at the end"), printed, THEIRS)
    return Figure("lmo-error", PAPER, "LMO error in training", "Figure 4", caption, panels, Table(head, lines),
                  GPT_ITERATIONS, theirs)  # fmt: skip


def layers(series: list[Ladder]) -> Figure:
    """delta by layer, and the layer that determines the bound."""
    panels: list[Panel] = []
    lines: list[tuple[str, ...]] = []
    counts = sorted({count for s in series for count in s.rungs})
    for s in series:
        rows = [row for count, runs in s.rungs.items() for row in _by_layer(runs, {"iterations": count})]
        if not rows:
            continue
        measured = sorted({row["iterations"] for row in rows})
        panels += [
            charts.layers_map(_at(s), rows, "iterations"),
            *(charts.layers_map(f"{s.title}: {iterations(count)}", list(_over_time(s, count)), "step")
              for count in (measured[0], measured[-1])),
        ]  # fmt: skip
        factors = {(row["layer"], row["iterations"]): row["factor"] for row in rows}
        worst = {count: max(rows, key=lambda r: (r["iterations"] == count, r["factor"]))["layer"] for count in counts}
        for layer in dict.fromkeys(row["layer"] for row in rows):
            cells = (_factor(factors.get((layer, count)), layer == worst[count]) for count in counts)
            lines.append((s.title, layer, *cells))
    head = ("runs", "layer", *(f"factor at {iterations(count)}" for count in counts))
    caption = (
        "delta of each layer: its mean over training by iterations, then over steps for the fewest and the most. The "
        "table has the factor overshoot/(1 - gap), worst over training; ◆ is the bottleneck, the layer with the "
        "largest, which alone decides the layer-wise bound."
    )
    return Figure("layers", PAPER, "Error by layer", "Figure 4, by layer", caption, panels, Table(head, lines),
                  GPT_ITERATIONS)  # fmt: skip


def _factor(value: float | None, bottleneck: bool) -> str:
    return "-" if value is None else f"{value:.3f}{' ◆' if bottleneck else ''}"


def _by_layer(runs: tuple[RunRecord, ...], where: Row, step: int | None = None) -> Iterator[Row]:
    """Mean delta and largest factor of each layer, over all records or those of a step."""
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for run in runs:
        for record in run.records("lmo"):
            for layer, delta, eta, nu in triples(record) if step in (None, record["step"]) else ():
                pairs[layer].append((delta, nu / (1 - eta) if eta < 1 else 1e9))
    for layer, values in pairs.items():
        deltas, factors = zip(*values, strict=True)
        yield {"layer": layer, **where, "delta": sum(deltas) / len(deltas), "factor": max(factors)}


def _over_time(s: Ladder, count: int) -> Iterator[Row]:
    steps = sorted({record["step"] for run in s.rungs[count] for record in run.records("lmo")})
    for step in thin(steps, 30):
        yield from _by_layer(s.rungs[count], {"iterations": count, "step": step}, step)


def _at(s: Ladder) -> str:
    momentum = "" if s.momentum is None else f", momentum {s.momentum:g}"
    return f"{s.title} (lr {s.lr:.3g}{momentum})"
