"""Effects by size of a language model, as ratios: these runs, reference evidence, and the paper's 124M."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import fill

import altair as alt

from inexact_muon_lab.report import paper
from inexact_muon_lab.report.charts import GREY, chart, spec
from inexact_muon_lab.report.figure import Figure, Panel, Row, Table
from inexact_muon_lab.report.ladders import Grid, Ladder, grids, ladders
from inexact_muon_lab.report.load import Results, RunRecord
from inexact_muon_lab.report.sources import GPT_ITERATIONS
from inexact_muon_lab.spec.spec import NanoGPT
from inexact_muon_lab.statistics import Interval, interval, optimum

PAPER = paper.SIZE
LABEL = 25
"""Characters in a line of a label: half of a phone's width."""
EFFECTS = {
    "gain": "loss at 1 iteration over that at 8",
    "first": "share of that gain at 3 iterations",
    "lr": "best lr at 2 iterations over that at 5",
    "time": "time of a step, 8 iterations over 1",
    "error": "LMO error at 1 iteration over that at 8",
}
THEIRS = {
    "gain": paper.LOSS[1] / paper.LOSS[8],
    "first": (paper.LOSS[1] - paper.LOSS[3]) / (paper.LOSS[1] - paper.LOSS[8]),
    "lr": paper.LR_RATIO,
    "time": paper.MINUTES[8] / paper.MINUTES[1],
    "error": paper.LMO_ERROR[1] / paper.LMO_ERROR[8],
}


def figure(results: Results, reference: Results | None) -> Figure:
    """A panel per effect, with sizes in ascending order and intervals over seeds."""
    rows = [row for source in (results, reference) if source for row in _rows(source)]
    panels: list[Panel] = []
    for name, label in EFFECTS.items():
        mine = sorted((row for row in rows if row["effect"] == name), key=lambda row: row["parameters"])
        if mine:
            theirs = {"effect": name, "size": PAPER, "parameters": 85e6, "runs": "the paper", "value": THEIRS[name],
                      "low": None, "high": None, "seeds": 1}  # fmt: skip
            panels.append(_panel(label, [*mine, theirs]))
    lines = [
        (EFFECTS[row["effect"]], row["size"], row["runs"], f"{row['value']:.3f}", _range(row), str(row["seeds"]))
        for panel in panels
        for row in panel.rows
    ]
    caption = (
        "Ratios, so that sizes compare although their losses do not. A dot is the mean of the seeds' ratios with its "
        "95 % interval; the paper prints no interval. A size is layers x width, ordered by parameters."
    )
    head = ("effect", "size", "runs", "value", "95 % interval", "seeds")
    return Figure("sizes", "Effects over size", "From tiny to the paper's size", "Figures 1, 3, 4, Table 1", caption,
                  panels, Table(head, lines), GPT_ITERATIONS)  # fmt: skip


def _range(row: Row) -> str:
    return "-" if row["low"] is None else f"[{row['low']:.3f}, {row['high']:.3f}]"


def _rows(results: Results) -> Iterator[Row]:
    for s in ladders(results):
        if s.runs[0].problem == "nanogpt" and s.family == "polar-express":
            for name, effect in _ladder(s).items():
                yield from _row(name, s, effect)
    for grid in grids(results, momenta=1):
        if grid.runs[0].problem == "nanogpt" and grid.family == "polar-express" and {2, 5} <= grid.cells.keys():
            yield from _row("lr", grid, interval(_shift(grid)))


def _row(name: str, s: Ladder | Grid, effect: Interval) -> Iterator[Row]:
    if effect.n:
        known = effect.n > 1
        size, parameters = _size(s.runs[0])
        yield {"effect": name, "size": size, "parameters": parameters, "runs": s.heading, "value": effect.mean,
               "low": effect.low if known else None, "high": effect.high if known else None,
               "seeds": effect.n}  # fmt: skip


def _ladder(s: Ladder) -> dict[str, Interval]:
    counts = {1, 3, 8} & s.rungs.keys()
    lost = s.lost_runs(*counts)  # the ratio of an arm that diverged is not known
    loss = {count: {} if lost else s.values(count, "loss") for count in (1, 3, 8)}
    time = {count: s.values(count, "milliseconds") for count in (1, 8)}
    error = {count: s.values(count, "last_lmo_error") for count in (1, 8)}
    seeds = sorted(loss[1].keys() & loss[8].keys())
    gains = {seed: loss[1][seed] - loss[8][seed] for seed in seeds}
    whole = sum(gains.values()) / max(1, len(gains))
    shares = {seed: (loss[1][seed] - loss[3][seed]) / whole for seed in seeds if seed in loss[3] and whole > 0}
    return {
        "gain": interval({seed: loss[1][seed] / loss[8][seed] for seed in seeds}),
        "first": interval(shares),
        "time": interval({seed: time[8][seed] / time[1][seed] for seed in time[1].keys() & time[8].keys()}),
        "error": interval({seed: error[1][seed] / error[8][seed] for seed in error[1].keys() & error[8].keys()}),
    }


def _shift(grid: Grid) -> dict[int, float]:
    """Ratio of the best step sizes by seed; none if any is on the edge, where the true one may lie outside."""
    seeds = [seed for seed in grid.seeds if grid.whole(seed, 2, 5)]
    pairs = {seed: [optimum(grid.table(count, seed, "loss")) for count in (2, 5)] for seed in seeds}
    if any(best is None or best.edge for pair in pairs.values() for best in pair):
        return {}
    return {seed: crude.lr / fine.lr for seed, (crude, fine) in pairs.items() if crude and fine}


def _size(run: RunRecord) -> tuple[str, float]:
    """Layers x width, and the parameters of the hidden matrices."""
    p = run.spec.problem
    assert isinstance(p, NanoGPT)
    return f"{p.layers} x {p.width}", 12.0 * p.layers * p.width**2


def _panel(title: str, rows: list[Row]) -> Panel:
    labelled = [{**row, "place": fill(f"{row['runs']}, {row['size']}", LABEL)} for row in rows]
    order = list(dict.fromkeys(row["place"] for row in labelled))
    axis = alt.Axis(labelLimit=170, labelExpr=r"split(datum.label, '\n')")
    base = chart().encode(y=alt.Y("place:N", title=None, sort=order, axis=axis))
    x = alt.X("value:Q", title=None, scale=alt.Scale(zero=False))
    tips = ["size:N", "runs:N", "seeds:Q", *(alt.Tooltip(f"{q}:Q", format=".4~g") for q in ("value", "low", "high"))]
    ranges = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=2, color=GREY)
    layers = [
        ranges.encode(x=alt.X("low:Q", scale=alt.Scale(zero=False), title=None), x2="high:Q"),
        base.mark_point(size=70, filled=True, opacity=1, color=GREY).encode(x=x, tooltip=tips),
    ]
    lines = max(place.count("\n") + 1 for place in order)
    return Panel(title, labelled, spec(alt.layer(*layers), max(90, (10 + 14 * lines) * len(order))))
