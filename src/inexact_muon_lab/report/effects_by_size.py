"""Effects by size of a language model, as ratios: these runs, reference evidence, and the paper's 124M."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import fill

from inexact_muon_lab.report import charts, paper
from inexact_muon_lab.report.figure import Figure, Panel, Row, Table
from inexact_muon_lab.report.ladders import Series, grids, ladders
from inexact_muon_lab.report.load import Results
from inexact_muon_lab.report.sources import GPT_ITERATIONS
from inexact_muon_lab.spec.spec import NanoGPT
from inexact_muon_lab.statistics import Interval, interval, optimum

LABEL = 25
"""Characters in a line of a label: half of a phone's width."""
EFFECTS = {
    "gain": ("loss at 1 iteration over that at 8", paper.LOSS[1] / paper.LOSS[8]),
    "first": ("share of that gain at 3 iterations", paper.GAIN[3] / paper.GAIN[8]),
    "lr": ("best lr at 2 iterations over that at 5", paper.LR_RATIO),
    "time": ("time of a step, 8 iterations over 1", paper.MINUTES[8] / paper.MINUTES[1]),
    "error": ("LMO error at 1 iteration over that at 8", paper.LMO_ERROR[1] / paper.LMO_ERROR[8]),
}
"""What each effect is, and the paper's value."""


def figure(results: Results, reference: Results | None) -> Figure:
    """A panel per effect, with sizes in ascending order and intervals over seeds."""
    rows = [row for source in (results, reference) if source for row in _rows(source)]
    panels: list[Panel] = []
    for name, (label, theirs) in EFFECTS.items():
        mine = sorted((row for row in rows if row["effect"] == name), key=lambda row: row["parameters"])
        if mine:
            last = {"effect": name, "size": paper.SIZE, "parameters": 85e6, "runs": "the paper", "value": theirs,
                    "low": None, "high": None, "seeds": 1}  # fmt: skip
            panels.append(_panel(label, [*mine, last]))
    lines = [
        (panel.title, row["size"], row["runs"], f"{row['value']:.3f}",
         "-" if row["low"] is None else f"[{row['low']:.3f}, {row['high']:.3f}]", str(row["seeds"]))
        for panel in panels
        for row in panel.rows
    ]  # fmt: skip
    caption = (
        "Ratios, so that sizes compare although their losses do not. A diamond is the mean of the seeds' ratios with "
        "its 95 % interval; the paper prints no interval. A size is layers x width, ordered by parameters."
    )
    head = ("effect", "size", "runs", "value", "95 % interval", "seeds")
    return Figure("sizes", "Effects over size", "From tiny to the paper's size", "Figures 1, 3, 4, Table 1", caption,
                  panels, Table(head, lines), GPT_ITERATIONS)  # fmt: skip


def _rows(results: Results) -> Iterator[Row]:
    series: list[tuple[Series, dict[str, Interval]]] = [(s, _of_iterations(s)) for s in ladders(results)]
    series += [(g, {"lr": _best_lr(g)}) for g in grids(results, momenta=1) if {2, 5} <= g.cells.keys()]
    for s, effects in series:
        problem = s.runs[0].spec.problem
        if not isinstance(problem, NanoGPT) or s.family != "polar-express":
            continue
        size = {"size": f"{problem.layers} x {problem.width}", "parameters": 12.0 * problem.layers * problem.width**2}
        for name, effect in effects.items():
            ends = (effect.low, effect.high) if effect.n > 1 else (None, None)
            if effect.n:
                yield {"effect": name, **size, "runs": s.heading, "value": effect.mean,
                       "low": ends[0], "high": ends[1], "seeds": effect.n}  # fmt: skip


def _of_iterations(s: Series) -> dict[str, Interval]:
    lost = s.lost_runs(*({1, 3, 8} & s.by_count.keys()))  # the ratio of an arm that diverged is not known
    one, three, eight = ({} if lost else s.values(count, "loss") for count in (1, 3, 8))
    gains = {seed: one[seed] - eight[seed] for seed in one.keys() & eight.keys()}
    whole = sum(gains.values()) / max(1, len(gains))
    shares = {seed: (one[seed] - three[seed]) / whole for seed in gains.keys() & three.keys() if whole > 0}
    slow, fast = (s.values(count, "milliseconds") for count in (8, 1))
    crude, fine = (s.values(count, "last_lmo_error") for count in (1, 8))
    return {
        "gain": interval({seed: one[seed] / eight[seed] for seed in gains}),
        "first": interval(shares),
        "time": interval({seed: slow[seed] / fast[seed] for seed in slow.keys() & fast.keys()}),
        "error": interval({seed: crude[seed] / fine[seed] for seed in crude.keys() & fine.keys()}),
    }


def _best_lr(grid: Series) -> Interval:
    """Ratio of the best step sizes; unknown if any is on the edge, where the true one may lie outside."""
    seeds = [seed for seed in grid.seeds if grid.whole(seed, 2, 5)]
    pairs = {seed: [optimum(grid.table(count, seed, "loss")) for count in (2, 5)] for seed in seeds}
    if any(best is None or best.edge for pair in pairs.values() for best in pair):
        return interval({})
    return interval({seed: crude.lr / fine.lr for seed, (crude, fine) in pairs.items() if crude and fine})


def _panel(title: str, rows: list[Row]) -> Panel:
    labelled = [{**row, "place": fill(f"{row['runs']}, {row['size']}", LABEL)} for row in rows]
    places = list(dict.fromkeys(row["place"] for row in labelled))
    axis = {"labelLimit": 170, "labelExpr": r"split(datum.label, '\n')"}
    value = charts.quantity("value", None, scale={"zero": False})
    tips = [charts.nominal("size"), charts.nominal("runs"), charts.quantity("seeds")]
    lines = max(place.count("\n") + 1 for place in places)
    y = charts.nominal("place", sort=places, axis=axis)
    return charts.intervals(title, labelled, value, y, max(90, (10 + 14 * lines) * len(places)), tips)
