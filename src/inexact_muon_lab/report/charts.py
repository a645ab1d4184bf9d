"""The chart types of the report, as vega-lite specs. Widths follow the page; colours suit light and dark mode."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import altair as alt

from inexact_muon_lab.report.figure import Panel, Row

HEIGHT = 270
RAMP = ("#f06595", "#cc5de8", "#9c36b5", "#7048e8", "#4263eb", "#228be6", "#22b8cf", "#1098ad")
"""Colour of an oracle with 1, 2, ... 8 or more iterations, in every chart; distinct from those of verdicts."""
NAMED = ("#8d6e63", "#827717", "#607d8b", "#00695c", "#a1887f", "#9e9d24")
"""Colours for anything other than oracles."""
GREY = "#868e96"
VALUES = "warmgreys"
"""Colour scheme of cells; dark is good."""
SEEDS = alt.Tooltip("distinct(seed):Q", title="seeds")
LAYERS = alt.Axis(labelLimit=140, labelExpr="replace(datum.label, '.weight', '')")
MARKS = (
    ("optimum", "★", "best", 0, 0),
    ("paper", "◆", "paper's rule", -14, 16),
    ("descent", "◇", "descent rule", 14, 16),
)
"""Kind of row, sign, title and offset of the marks in a heat map."""
SHAPES = ("circle", "diamond", "square", "triangle-up", "cross", "triangle-down", "triangle-right", "triangle-left")
FAR = 1e4
"""Larger ratios are plotted at this value."""
ROOM = {"config": {"legend": {"layout": {"top": {"anchor": "end"}}}}}
"""Anchors a long legend at the end, so that it fits on a phone."""
BOUNDS = ("paper", "two numbers")


def of_iterations(count: int | None) -> str:
    """The colour of an oracle by its iterations; grey if it has none."""
    return GREY if count is None else RAMP[min(max(count, 1), len(RAMP)) - 1]


def curves(
    title: str, rows: Sequence[Row], y: str, by: str = "iterations", log: bool = False, label: str = ""
) -> Panel:
    """Mean over seeds by step, one line per value of `by`, with the range of the seeds as a band."""
    base = chart().encode(
        x=alt.X("step:Q", title="step", axis=alt.Axis(tickCount=6, format="~s")),
        color=_colour(by, rows),
    )
    scale = _scale(log)
    label = label or y.replace("_", " ")
    mean = alt.Y(f"mean({y}):Q", title=label, scale=scale)
    tips = [f"{by}:N", alt.Tooltip("step:Q"), alt.Tooltip(f"mean({y}):Q", title=y, format=".4~f"), SEEDS]
    layers = [
        base.mark_area(opacity=0.15).encode(y=alt.Y(f"min({y}):Q", title=label, scale=scale), y2=f"max({y}):Q"),
        base.mark_line(strokeWidth=2).encode(y=mean),
        base.mark_point(size=28, filled=True, opacity=1).encode(y=mean, tooltip=tips),
    ]
    return Panel(title, rows, spec(alt.layer(*layers)))


def ladder(title: str, rows: Sequence[Row], y: str, label: str) -> Panel:
    """A value by iterations: a dot per seed, a line through the means."""
    base = chart().encode(x=alt.X("iterations:O", title="iterations", axis=alt.Axis(labelAngle=0)))
    scale = _scale(False)
    tips = ["oracle:N", alt.Tooltip("iterations:O"), alt.Tooltip(f"{y}:Q", title=label, format=".5~g")]
    layers = [
        base.mark_line(strokeWidth=2, color=GREY).encode(y=alt.Y(f"mean({y}):Q", title=label, scale=scale)),
        base.mark_point(size=45, filled=True, opacity=1).encode(
            y=alt.Y(f"{y}:Q", scale=scale, title=label),
            color=_colour("iterations", rows).legend(None),
            tooltip=[*tips, alt.Tooltip("seed:O")],
        ),
    ]
    return Panel(title, rows, spec(alt.layer(*layers)))


def heat_map(title: str, rows: Sequence[Row], value: str, low_is_good: bool, domain: tuple[float, float]) -> Panel:
    """Step size by momentum; stars at the best cell, diamonds at predicted optima, crosses at diverged runs."""
    base = chart().encode(
        x=alt.X("lr:O", title="step size", axis=alt.Axis(labelAngle=-45, format=".2~g")),
        y=alt.Y("momentum:O", title="momentum", sort="descending"),
    )
    runs = base.transform_filter(f"datum.kind == 'run' && isValid(datum['{value}'])")
    cells: dict[tuple[float, float], list[float]] = {}
    for row in rows:
        if row.get(value) is not None:
            cells.setdefault((row["lr"], row["momentum"]), []).append(row[value])
    means = [sum(values) / len(values) for values in cells.values()]
    colour = alt.Color(
        f"mean({value}):Q",
        title=f"{value}{clipped(means, domain)}",
        scale=alt.Scale(scheme=VALUES, reverse=low_is_good, domain=list(domain), clamp=True),
        legend=alt.Legend(titleLimit=280),
    )
    tips = [alt.Tooltip("lr:O"), alt.Tooltip("momentum:O"), alt.Tooltip(f"mean({value}):Q", format=".4f"), SEEDS]
    layers = [
        runs.mark_rect().encode(color=colour, tooltip=tips),
        *_numbers(runs, rows, value, low_is_good, domain),
        base.transform_filter("datum.kind == 'run' && datum.state == 'diverged'")
        .mark_text(text="×", size=20, color="#e03131")
        .encode(tooltip=["lr:O", "momentum:O", "state:N"]),
        *(
            base.transform_filter(f"datum.kind == '{kind}'")
            .mark_text(text=sign, size=22, color="#ffffff", stroke="#000000", strokeWidth=0.8, dx=dx, dy=dy)
            .encode(tooltip=[alt.Tooltip("note:N", title=note)])
            for kind, sign, note, dx, dy in MARKS
        ),
    ]
    return Panel(title, rows, spec(alt.layer(*layers)))


def _numbers(runs: Any, rows: Sequence[Row], value: str, low_is_good: bool, domain: tuple[float, float]) -> list[Any]:
    """The value in each cell that is large enough, in a contrasting colour."""
    if len({row["lr"] for row in rows}) > 6 or len({row["momentum"] for row in rows}) > 4:
        return []
    dark = f"datum['mean_{value}'] {'<' if low_is_good else '>'} {0.5 * sum(domain)}"
    ink = alt.condition(dark, alt.value("#ffffff"), alt.value("#000000"))
    return [runs.mark_text(dy=-24, fontSize=11).encode(text=alt.Text(f"mean({value}):Q", format=".3f"), color=ink)]


def layers_map(title: str, rows: Sequence[Row], x: str) -> Panel:
    """delta by layer and iterations, or by layer and step."""
    tips = [alt.Tooltip(f"{name}:Q", format=".4f") for name in ("delta", "factor")]
    cells = chart().mark_rect().encode(
        x=alt.X(f"{x}:O", title=x, axis=alt.Axis(labelAngle=0, labelOverlap=True)),
        y=alt.Y("layer:N", title=None, sort=None, axis=LAYERS),
        color=alt.Color("delta:Q", title=f"delta{clipped([row['delta'] for row in rows], (0.0, 1.0))}",
                        scale=alt.Scale(scheme=VALUES, reverse=True, domain=[0, 1], clamp=True),
                        legend=alt.Legend(titleLimit=280)),
        tooltip=["layer:N", f"{x}:O", *tips],
    )  # fmt: skip
    height = max(HEIGHT, 18 * len({row["layer"] for row in rows}))
    return Panel(title, rows, spec(cells, height))


def envelope(title: str, rows: Sequence[Row]) -> Panel:
    """Best (solid) and worst (dashed) accuracy by step size."""
    dashes = alt.Scale(domain=["best", "worst"], range=[[1, 0], [5, 4]])
    base = chart().encode(
        x=alt.X("lr:Q", title="step size", scale=alt.Scale(type="log", base=2), axis=alt.Axis(format=".2~g")),
        y=alt.Y("accuracy:Q", title="accuracy", scale=alt.Scale(zero=False)),
        color=_colour("iterations", rows),
        strokeDash=alt.StrokeDash("end:N", title=None, scale=dashes, legend=None),
    )  # fmt: skip
    tips = ["iterations:O", "end:N", "lr:Q", alt.Tooltip("accuracy:Q", format=".4f"), "momentum:Q"]
    lines = base.mark_line(strokeWidth=2)
    points = base.mark_point(size=40, filled=True, opacity=1).encode(tooltip=tips)
    return Panel(title, rows, spec(alt.layer(lines, points)))


def scatter(title: str, rows: Sequence[Row], x: tuple[str, str], y: tuple[str, str], log: bool = False) -> Panel:
    """Points coloured by iterations and shaped by family, connected within a family if `log`."""
    base = chart().encode(
        x=alt.X(f"{x[0]}:Q", title=x[1], scale=alt.Scale(zero=False)),
        y=alt.Y(f"{y[0]}:Q", title=y[1], scale=_scale(log),
                axis=alt.Axis(format=".0e", tickCount=5) if log else alt.Undefined),
        tooltip=["method:N", alt.Tooltip(f"{x[0]}:Q", format=".4~g"), alt.Tooltip(f"{y[0]}:Q", format=".4~g")],
    )  # fmt: skip
    points = base.mark_point(size=50, filled=True, opacity=1).encode(
        color=_colour("iterations", rows).legend(None),
        shape=by_shape("family", (row["family"] for row in rows)),
    )
    lines = base.mark_line(opacity=0.35, color=GREY).encode(detail="family:N")
    return Panel(title, rows, spec(alt.layer(lines, points) if log else points))


def ratios(title: str, rows: Sequence[Row]) -> Panel:
    """Bound over measured by statement, on a logarithmic axis with a line at 1."""
    low = min(1.0, *(row["ratio"] for row in rows))
    statements = list(dict.fromkeys(row["statement"] for row in rows))
    dots = chart().mark_point(size=36, filled=True, opacity=0.75, color=GREY).encode(
        x=alt.X("ratio:Q", title="bound / measured", axis=alt.Axis(tickCount=4, format="~s"),
                scale=alt.Scale(type="log", domain=[low, FAR], clamp=True)),
        y=alt.Y("statement:N", title=None, sort=statements, axis=alt.Axis(labelLimit=165)),
        yOffset=alt.YOffset("bound:N"),
        tooltip=["statement:N", "bound:N", "oracle:N", "problem:N",
                 *(alt.Tooltip(f"{q}:Q", format=".4~g") for q in ("ratio", "measured", "value"))],
        shape=by_shape("bound", BOUNDS),
    )  # fmt: skip
    one = alt.Chart(alt.Data(values=[{"one": 1}])).mark_rule(color=GREY, strokeDash=[4, 4]).encode(x="one:Q")
    return Panel(title, rows, spec(alt.layer(one, dots), 20 * len(statements)) | ROOM)


def diagonal(title: str, rows: Sequence[Row], observed: str, predicted: str, label: str) -> Panel:
    """Predicted against observed best value, by rule, on equal logarithmic axes, with the diagonal."""
    values = [row[name] for row in rows for name in (observed, predicted)]
    ends = [min(values) / 1.3, max(values) * 1.3]
    scale = alt.Scale(type="log", domain=ends, nice=False)
    axis = alt.Axis(tickCount=4, format=".2~g")
    x = alt.X(f"{observed}:Q", title=f"best {label}", scale=scale, axis=axis)
    y = alt.Y(f"{predicted}:Q", title=f"{label} by the rule", scale=scale, axis=axis)
    dots = chart().mark_point(size=44, filled=True, opacity=0.8, color=GREY).encode(
        x=x,
        y=y,
        shape=by_shape("rule", (row["rule"] for row in rows)),
        tooltip=["rule:N", "target:N", "on_edge:N",
                 *(alt.Tooltip(f"{q}:Q", format=".4~g") for q in (observed, predicted))],
    )  # fmt: skip
    line = alt.Chart(alt.Data(values=[{observed: end, predicted: end} for end in ends]))
    return Panel(title, rows, spec(alt.layer(line.mark_line(color=GREY, strokeDash=[4, 4]).encode(x=x, y=y), dots)))


def regrets(title: str, rows: Sequence[Row]) -> Panel:
    """A dot per target, a diamond and a line for the mean and its interval, by rule."""
    order = [row["rule"] for row in sorted(rows, key=lambda row: row["regret"]) if row["kind"] == "mean"]
    order += list(dict.fromkeys(row["rule"] for row in rows if row["rule"] not in order))
    base = chart().encode(
        y=alt.Y("rule:N", title=None, sort=order, axis=alt.Axis(labelLimit=120)),
    )
    x = alt.X("regret:Q", title="regret (loss above the target's best)")
    means = base.transform_filter("datum.kind == 'mean'")
    numbers = [alt.Tooltip(f"{q}:Q", format=".4f") for q in ("regret", "low", "high")]
    layers = [
        # Beneath the dots: a line drawn over them would take the mouse and show nothing.
        means.mark_rule(strokeWidth=3, color=GREY).encode(x=alt.X("low:Q"), x2="high:Q"),
        base.transform_filter("datum.kind == 'target'").mark_point(size=44, filled=True, opacity=0.55, color=GREY)
        .encode(x=x, tooltip=["rule:N", "target:N", numbers[0], "on_edge:N"]),
        means.mark_point(size=140, filled=True, opacity=1, shape="diamond", color=GREY)
        .encode(x=x, tooltip=["rule:N", *numbers]),
    ]  # fmt: skip
    return Panel(title, rows, spec(alt.layer(*layers), max(160, 44 * len(order))))


def chart() -> Any:
    """A chart over the rows of its panel."""
    return alt.Chart(alt.NamedData(name="rows"))


def spec(altair_chart: Any, height: int = HEIGHT) -> dict[str, Any]:
    """The spec that the page embeds, as wide as its container."""
    content = altair_chart.properties(width="container", height=height).to_dict()
    content.pop("config", None)
    content["autosize"] = {"type": "fit-x", "contains": "padding"}
    return content


def by_shape(field: str, names: Iterable[str]) -> Any:
    """A shape per name, in order of appearance."""
    levels = list(dict.fromkeys(names))
    shapes = [SHAPES[k % len(SHAPES)] for k in range(len(levels))]
    return alt.Shape(f"{field}:N", title=None, scale=alt.Scale(domain=levels, range=shapes), legend=_key(levels))


def clipped(values: Iterable[float], domain: tuple[float, float]) -> str:
    """Legend note about values outside of the scale; empty if there are none."""
    numbers = list(values)
    slack = 1e-9 * (abs(domain[0]) + abs(domain[1]))
    notes = [f"above {domain[1]:.3g}"] if any(v > domain[1] + slack for v in numbers) else []
    notes += [f"below {domain[0]:.3g}"] if any(v < domain[0] - slack for v in numbers) else []
    return f" ({' and '.join(notes)}: drawn alike)" if notes else ""


def _key(levels: list[str]) -> Any:
    """A legend with two columns if that fits a phone."""
    return alt.Legend(labelLimit=260, columns=2 if max(map(len, levels), default=0) <= 14 else 1)


def _scale(log: bool) -> Any:
    return alt.Scale(type="log", nice=False) if log else alt.Scale(zero=False)


def _colour(field: str, rows: Iterable[Row]) -> Any:
    known = sorted({row[field] for row in rows if row[field] is not None})
    counted = all(isinstance(level, int) for level in known)
    range_ = [of_iterations(n) if counted else NAMED[k % len(NAMED)] for k, n in enumerate(known)]
    scale = alt.Scale(domain=known, range=range_)
    strokes = alt.Legend(symbolType="stroke", symbolStrokeWidth=4, symbolOpacity=1)
    return alt.Color(f"{field}:{'O' if counted else 'N'}", title=field, scale=scale, legend=strokes)
