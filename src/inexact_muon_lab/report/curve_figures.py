"""Losses, times and LMO errors of runs: over training, and by iterations beside the paper's numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from math import inf
from statistics import fmean

from inexact_muon_lab.report import charts, paper
from inexact_muon_lab.report.figure import Figure, Panel, Row, Table
from inexact_muon_lab.report.ladders import Series, in_words, iterations
from inexact_muon_lab.report.load import Results, RunRecord
from inexact_muon_lab.report.sources import BEYOND, CNN_ITERATIONS, GPT_ITERATIONS, OPTIMIZERS, PAPER
from inexact_muon_lab.statistics import interval
from inexact_muon_lab.store.curves import thin

THEIRS = f"the paper: {paper.SIZE} parameters, FineWeb, {paper.STEPS:,} steps"
PRINTED = Table(
    ("iterations", "loss", "minutes"),
    [(str(n), f"{paper.LOSS[n]:.4f}", f"{paper.MINUTES[n]:.1f}") for n in paper.LOSS],
    THEIRS,
)
"""Table 1 of the paper."""
FINAL = (
    ("loss", "final validation loss", "validation loss (nats)"),
    ("milliseconds", "time of a training step", "ms per step"),
)
"""What is plotted of each run: attribute, title, label of the axis."""


def convergence(series: list[Series]) -> Figure:
    """Validation loss over steps."""
    panels = [
        charts.curves(_at(s), rows, "loss", label="validation loss (nats)")
        for s in series
        if any(len(run.records("validation")) > 1 for run in s.runs) and (rows := _curves(s, "validation"))
    ]
    caption = "Validation loss by iterations of the oracle; the band is the range of the seeds."
    return Figure("convergence", PAPER, "Loss against steps", "Figures 1a, 3a", caption, panels,
                  missing=GPT_ITERATIONS)  # fmt: skip


def training(series: list[Series]) -> Figure:
    """Training loss over steps, by precision."""
    series = [s for s in series if any(len(run.records("train")) > 8 for run in s.runs)] or series
    panels = [
        charts.curves(s.title, rows, "loss", log=True, label="training loss (nats)")
        for s in series
        if (rows := _curves(s, "train"))
    ]
    caption = "Training loss by iterations, on a logarithmic axis; the band is the range of the seeds."
    return Figure("cnn-loss", PAPER, "Training loss by precision", "Figure 2a", caption, panels,
                  missing=CNN_ITERATIONS)  # fmt: skip


def baselines(results: Results) -> Figure:
    """Validation loss by optimizer."""
    panels = []
    for study in results.studies:
        rows = [{"optimizer": in_words(run.optimizer), **row} for run in _best_rates(study.runs) for row in _curve(run)]
        if len({row["optimizer"] for row in rows}) >= 2:
            panels.append(charts.curves(study.title, rows, "loss", "optimizer", log=True))
    caption = "The same model under each optimizer, at the best of the rates that its study tried: a check, no contest."
    return Figure("baselines", BEYOND, "Other optimizers", "not in the paper", caption, panels, missing=OPTIMIZERS)


def _best_rates(runs: Iterable[RunRecord]) -> list[RunRecord]:
    """Of each optimizer the runs of that configuration whose mean final loss is the lowest."""
    by_optimizer: dict[str, dict[object, list[RunRecord]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        by_optimizer[run.optimizer][run.setting, run.arm].append(run)

    def mean_loss(alike: list[RunRecord]) -> float:
        return fmean([inf if run.loss is None else run.loss for run in alike])

    return [run for configurations in by_optimizer.values() for run in min(configurations.values(), key=mean_loss)]


def _curves(s: Series, kind: str, key: str = "loss", column: str = "loss") -> list[Row]:
    return [{"iterations": run.iterations, **row} for run in s.runs for row in _curve(run, kind, key, column)]


def _curve(run: RunRecord, kind: str = "validation", key: str = "loss", column: str = "loss") -> Iterator[Row]:
    """The positive values `key` of a run's records of a kind, as `column`."""
    for r in thin([r for r in run.records(kind) if (r.get(key) or 0) > 0]):
        yield {"step": r["step"], column: r[key], "seed": run.seed, "run": run.id, "study": run.study}


def table_one(series: list[Series]) -> Figure:
    """Final loss and time by iterations, with the paper's table."""
    panels: list[Panel] = []
    for s in series:  # one axis per problem: losses and times are not comparable
        rows = [
            {"oracle": s.title, "iterations": run.iterations, "seed": run.seed, "loss": run.loss,
             "milliseconds": run.milliseconds, "run": run.id}
            for run in s.runs if run.loss is not None
        ]  # fmt: skip
        for name, title, label in FINAL:
            if mine := [row for row in rows if row[name] is not None]:
                panels.append(charts.ladder(f"{s.title}: {title}", mine, name, label))
    lines = [(s.title, str(count), *_final(s, count)) for s in series for count in s.by_count]
    head = ("runs", "iterations", "seeds", "loss", "± 95 %", "ms per step")
    caption = (
        "A dot is a run. Times are this machine's and noisy when it is shared; telemetry and evaluation do not count."
    )
    return Figure("table-1", PAPER, "Final loss and time", "Table 1, Figure 3b", caption, panels,
                  Table(head, lines), GPT_ITERATIONS, PRINTED)  # fmt: skip


def _final(s: Series, count: int) -> tuple[str, ...]:
    loss, time = (interval(s.values(count, number)) for number in ("loss", "milliseconds"))
    mean, half = f"{loss.mean:.4f}" if loss.n else "-", f"{loss.high - loss.mean:.4f}" if loss.n > 1 else "-"
    return str(loss.n), mean, half, f"{time.mean:.1f}" if time.n else "-"


def lmo_error(series: list[Series]) -> Figure:
    """The LMO error, summed over layers, over training."""
    panels, lines = [], []
    for s in series:
        summed = max((len(r["delta"]) for run in s.runs for r in run.records("lmo")), default=0)
        rows = _curves(s, "lmo", "sum", "lmo_error")
        panels.append(charts.curves(_at(s), rows, "lmo_error", label=f"sum of delta over {summed} matrices"))
        for count, runs in s.by_count.items():
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


def layers(series: list[Series]) -> Figure:
    """delta by layer, and the layer that determines the bound."""
    panels: list[Panel] = []
    lines: list[tuple[str, ...]] = []
    counts = sorted({count for s in series for count in s.by_count})
    for s in series:
        rows = [row for count, runs in s.by_count.items() for row in _by_layer(runs, {"iterations": count})]
        if not rows:
            continue
        measured = sorted({row["iterations"] for row in rows})
        panels += [
            charts.layers_map(_at(s), rows, "iterations"),
            *(charts.layers_map(f"{s.title}: {iterations(count)}", list(_over_time(s, count)), "step")
              for count in (measured[0], measured[-1])),
        ]  # fmt: skip
        factors = {(row["layer"], row["iterations"]): row["factor"] for row in rows}
        names = list(dict.fromkeys(row["layer"] for row in rows))
        worst = {count: max(names, key=lambda name: factors.get((name, count), 0.0)) for count in counts}
        for name in names:
            values = {count: factors.get((name, count)) for count in counts}
            cells = (
                "-" if v is None else f"{v:.3f}{' ◆' if name == worst[count] else ''}" for count, v in values.items()
            )
            lines.append((s.title, name, *cells))
    head = ("runs", "layer", *(f"factor at {iterations(count)}" for count in counts))
    caption = (
        "delta of each layer: its mean over training by iterations, then over steps for the fewest and the most. The "
        "table has the factor overshoot/(1 - gap), worst over training; ◆ is the bottleneck, the layer with the "
        "largest, which alone decides the layer-wise bound."
    )
    return Figure("layers", PAPER, "Error by layer", "Figure 4, by layer", caption, panels, Table(head, lines),
                  GPT_ITERATIONS)  # fmt: skip


def _by_layer(runs: Iterable[RunRecord], where: Row, step: int | None = None) -> Iterator[Row]:
    """Mean delta and largest factor of each layer, over all records or those of a step."""
    deltas, factors = defaultdict[str, list[float]](list), defaultdict[str, float](float)
    for run in runs:
        for at, layer, delta, eta, nu in run.inexactness:
            if step in (None, at):
                deltas[layer].append(delta)
                factors[layer] = max(factors[layer], nu / (1 - eta) if eta < 1 else 1e9)
    for layer, values in deltas.items():
        yield {"layer": layer, **where, "delta": fmean(values), "factor": factors[layer]}


def _over_time(s: Series, count: int) -> Iterator[Row]:
    steps = sorted({record["step"] for run in s.by_count[count] for record in run.records("lmo")})
    for step in thin(steps, 30):
        yield from _by_layer(s.by_count[count], {"iterations": count, "step": step}, step)


def _at(s: Series) -> str:
    ((lr, momentum),) = s.cells[s.counts[0]]
    return f"{s.title} (lr {lr:.3g}, momentum {momentum:g})"
