"""The chart types of the report, as vega-lite specs. Widths follow the page; colours suit light and dark mode."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from inexact_muon_lab.report.figure import Panel, Row

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
HEIGHT = 270
RAMP = ("#f06595", "#cc5de8", "#9c36b5", "#7048e8", "#4263eb", "#228be6", "#22b8cf", "#1098ad")
"""Colour of an oracle with 1, 2, ... 8 or more iterations, in every chart; distinct from those of verdicts."""
NAMED = ("#8d6e63", "#827717", "#607d8b", "#00695c", "#a1887f", "#9e9d24")
"""Colours for anything other than oracles."""
GREY = "#868e96"
VALUES = "warmgreys"
"""Colour scheme of cells; dark is good."""
MARKS = (
    ("optimum", "★", "best", 0, 0),
    ("paper", "◆", "paper's rule", -14, 16),
    ("descent", "◇", "descent rule", 14, 16),
)
"""Kind of row, sign, title and offset of the marks in a heat map."""
SHAPES = ("circle", "diamond", "square", "triangle-up", "cross", "triangle-down", "triangle-right", "triangle-left")
FAR = 1e4
"""Larger ratios are plotted at this value."""
BOUNDS = ("paper", "two numbers")
DOT: dict[str, Any] = {"filled": True, "opacity": 1}
DASHED: dict[str, Any] = {"color": GREY, "strokeDash": [4, 4]}
Channel = dict[str, Any]


def channel(name: str, title: str | None = "", *, kind: str, **more: Any) -> Channel:
    """A field of the rows on a channel; its title is its name unless it has another one, or None."""
    return {"field": name, "type": kind, "title": name if title == "" else title, **more}


quantity, ordinal, nominal = (partial(channel, kind=kind) for kind in ("quantitative", "ordinal", "nominal"))
SEEDS = quantity("seed", "seeds", aggregate="distinct")


def layer(mark: str, encoding: dict[str, Any], only: str = "", **style: Any) -> dict[str, Any]:
    """A mark and its channels, for all rows or those for which an expression is true."""
    rows = {"transform": [{"filter": only}]} if only else {}
    return {**rows, "mark": {"type": mark, **style}, "encoding": encoding}


def panel(
    title: str, rows: Sequence[Row], layers: list[dict[str, Any]], shared: dict[str, Any], height: int = HEIGHT
) -> Panel:
    """Layers over the rows with their shared channels, as wide as the chart's container."""
    spec = {"$schema": SCHEMA, "data": {"name": "rows"}, "width": "container", "height": height}
    spec |= {"autosize": {"type": "fit-x", "contains": "padding"}, "encoding": shared, "layer": layers}
    return Panel(title, rows, spec)


def of_iterations(count: int) -> str:
    """The colour of an oracle by its iterations."""
    return RAMP[min(max(count, 1), len(RAMP)) - 1]


def curves(
    title: str, rows: Sequence[Row], y: str, by: str = "iterations", log: bool = False, label: str = ""
) -> Panel:
    """Mean over seeds by step, one line per value of `by`, with the range of the seeds as a band."""
    value = quantity(y, label, scale=_scale(log))
    mean = value | {"aggregate": "mean"}
    tips = [nominal(by), quantity("step"), quantity(y, aggregate="mean", format=".4~f"), SEEDS]
    layers = [
        layer("area", {"y": value | {"aggregate": "min"}, "y2": {"field": y, "aggregate": "max"}}, opacity=0.15),
        layer("line", {"y": mean}, strokeWidth=2),
        layer("point", {"y": mean, "tooltip": tips}, size=28, **DOT),
    ]
    x = quantity("step", axis={"tickCount": 6, "format": "~s"})
    return panel(title, rows, layers, {"x": x, "color": _colour(by, rows)})


def ladder(title: str, rows: Sequence[Row], y: str, label: str) -> Panel:
    """A value by iterations: a dot per seed, a line through the means."""
    value = quantity(y, label, scale=_scale(False))
    tips = [nominal("oracle"), ordinal("iterations"), quantity(y, label, format=".5~g"), ordinal("seed")]
    dots = {"y": value, "color": _colour("iterations", rows) | {"legend": None}, "tooltip": tips}
    layers = [
        layer("line", {"y": value | {"aggregate": "mean"}}, strokeWidth=2, color=GREY),
        layer("point", dots, size=45, **DOT),
    ]
    return panel(title, rows, layers, {"x": ordinal("iterations", axis={"labelAngle": 0})})


def heat_map(title: str, rows: Sequence[Row], value: str, low_is_good: bool, domain: tuple[float, float]) -> Panel:
    """Step size by momentum; stars at the best cell, diamonds at predicted optima, crosses at diverged runs."""
    cells: dict[tuple[float, float], list[float]] = {}
    for row in rows:
        if row.get(value) is not None:
            cells.setdefault((row["lr"], row["momentum"]), []).append(row[value])
    mean = quantity(value, aggregate="mean", format=".4f")
    tips = [ordinal("lr"), ordinal("momentum")]
    colour = _cells(value, [sum(v) / len(v) for v in cells.values()], domain, low_is_good) | {"aggregate": "mean"}
    runs = f"datum.kind == 'run' && isValid(datum['{value}'])"
    layers = [layer("rect", {"color": colour, "tooltip": [*tips, mean, SEEDS]}, runs)]
    if len({row["lr"] for row in rows}) <= 6 and len({row["momentum"] for row in rows}) <= 4:  # cells have room
        dark = f"datum['mean_{value}'] {'<' if low_is_good else '>'} {0.5 * sum(domain)}"
        ink = {"condition": {"test": dark, "value": "#ffffff"}, "value": "#000000"}
        layers.append(layer("text", {"text": mean | {"format": ".3f"}, "color": ink}, runs, dy=-24, fontSize=11))
    diverged = {"tooltip": [*tips, nominal("state")]}
    only = "datum.kind == 'run' && datum.state == 'diverged'"
    layers.append(layer("text", diverged, only, text="×", size=20, color="#e03131"))
    star = {"size": 22, "color": "#ffffff", "stroke": "#000000", "strokeWidth": 0.8}
    layers += [
        layer("text", {"tooltip": [nominal("note", note)]}, f"datum.kind == '{kind}'", text=sign, dx=dx, dy=dy, **star)
        for kind, sign, note, dx, dy in MARKS
    ]
    x = ordinal("lr", "step size", axis={"labelAngle": -45, "format": ".2~g"})
    return panel(title, rows, layers, {"x": x, "y": ordinal("momentum", sort="descending")})


def layers_map(title: str, rows: Sequence[Row], x: str) -> Panel:
    """delta by layer and iterations, or by layer and step."""
    tips = [nominal("layer"), ordinal(x), *(quantity(name, format=".4f") for name in ("delta", "factor"))]
    names = {"labelLimit": 140, "labelExpr": "replace(datum.label, '.weight', '')"}
    shared = {
        "x": ordinal(x, axis={"labelAngle": 0, "labelOverlap": True}),
        "y": nominal("layer", None, sort=None, axis=names),
    }
    colour = _cells("delta", [row["delta"] for row in rows], (0.0, 1.0), low_is_good=True)
    height = max(HEIGHT, 18 * len({row["layer"] for row in rows}))
    return panel(title, rows, [layer("rect", {"color": colour, "tooltip": tips})], shared, height)


def _cells(name: str, values: Iterable[float], domain: tuple[float, float], low_is_good: bool) -> Channel:
    """The colour of cells; the legend says if values lie outside of the scale."""
    scale = {"scheme": VALUES, "reverse": low_is_good, "domain": list(domain), "clamp": True}
    return quantity(name, f"{name}{clipped(values, domain)}", scale=scale, legend={"titleLimit": 280})


def envelope(title: str, rows: Sequence[Row]) -> Panel:
    """Best (solid) and worst (dashed) accuracy by step size."""
    dashes = {"domain": ["best", "worst"], "range": [[1, 0], [5, 4]]}
    shared = {
        "x": quantity("lr", "step size", scale={"type": "log", "base": 2}, axis={"format": ".2~g"}),
        "y": quantity("accuracy", scale=_scale(False)),
        "color": _colour("iterations", rows),
        "strokeDash": nominal("end", None, scale=dashes, legend=None),
    }
    tips = [ordinal("iterations"), nominal("end"), quantity("lr"), quantity("accuracy", format=".4f")]
    dots = layer("point", {"tooltip": [*tips, quantity("momentum")]}, size=40, **DOT)
    return panel(title, rows, [layer("line", {}, strokeWidth=2), dots], shared)


def scatter(title: str, rows: Sequence[Row], x: Channel, y: Channel, log: bool = False) -> Panel:
    """Points coloured by iterations and shaped by family, connected within a family if `log`."""
    exponents = {"axis": {"format": ".0e", "tickCount": 5}} if log else {}
    shared = {"x": x | {"scale": _scale(False)}, "y": y | {"scale": _scale(log)} | exponents}
    dots = {
        "color": _colour("iterations", rows) | {"legend": None},
        "shape": by_shape("family", (row["family"] for row in rows)),
        "tooltip": [nominal("method"), *(one | {"format": ".4~g"} for one in (x, y))],
    }
    lines = [layer("line", {"detail": nominal("family")}, opacity=0.35, color=GREY)] if log else []
    return panel(title, rows, [*lines, layer("point", dots, size=50, **DOT)], shared)


def ratios(title: str, rows: Sequence[Row]) -> Panel:
    """Bound over measured by statement, on a logarithmic axis with a line at 1."""
    statements = list(dict.fromkeys(row["statement"] for row in rows))
    low = min(1.0, *(row["ratio"] for row in rows))
    scale = {"type": "log", "domain": [low, FAR], "clamp": True}
    names = [nominal(name) for name in ("statement", "bound", "oracle", "problem")]
    dots = {
        "x": quantity("ratio", "bound / measured", axis={"tickCount": 4, "format": "~s"}, scale=scale),
        "y": nominal("statement", None, sort=statements, axis={"labelLimit": 165}),
        "yOffset": nominal("bound"),
        "tooltip": names + [quantity(name, format=".4~g") for name in ("ratio", "measured", "value")],
        "shape": by_shape("bound", BOUNDS) | {"legend": {"labelLimit": 260, "columns": 2}},
    }
    one = {"data": {"values": [{"one": 1}]}} | layer("rule", {"x": quantity("one", "bound / measured")}, **DASHED)
    layers = [one, layer("point", dots, **DOT | {"size": 36, "opacity": 0.75, "color": GREY})]
    drawn = panel(title, rows, layers, {}, 20 * len(statements))
    drawn.spec["config"] = {"legend": {"layout": {"top": {"anchor": "end"}}}}  # a long legend fits on a phone
    return drawn


def diagonal(title: str, rows: Sequence[Row], observed: str, predicted: str, label: str) -> Panel:
    """Predicted against observed best value, by rule, on equal logarithmic axes, with the diagonal."""
    values = [row[name] for row in rows for name in (observed, predicted)]
    ends = [min(values) / 1.3, max(values) * 1.3]
    scale = {"type": "log", "domain": ends, "nice": False}
    same: dict[str, Any] = {"scale": scale, "axis": {"tickCount": 4, "format": ".2~g"}}
    x, y = quantity(observed, f"best {label}", **same), quantity(predicted, f"{label} by the rule", **same)
    tips = [nominal(name) for name in ("rule", "target", "on_edge")]
    tips += [quantity(name, format=".4~g") for name in (observed, predicted)]
    dots = {"shape": by_shape("rule", (row["rule"] for row in rows)), "tooltip": tips}
    line = {"data": {"values": [{observed: end, predicted: end} for end in ends]}} | layer("line", {}, **DASHED)
    layers = [line, layer("point", dots, **DOT | {"size": 44, "opacity": 0.8, "color": GREY})]
    return panel(title, rows, layers, {"x": x, "y": y})


def intervals(
    title: str, rows: Sequence[Row], value: Channel, y: Channel, height: int, tips: Sequence[Channel] = ()
) -> Panel:
    """By name: a diamond for a mean and a line for its interval, beneath a dot for each row of kind "target"."""
    numbers = [quantity(name, format=".4~g") for name in (value["field"], "low", "high")]
    name, y = nominal(y["field"]), y | {"title": None}
    ends = {"x": value | {"field": "low"}, "x2": {"field": "high"}}
    # beneath the dots: a line over them would take the mouse and show nothing
    layers = [layer("rule", ends, "isValid(datum.low)", strokeWidth=3, color=GREY)]
    if any(row.get("kind") == "target" for row in rows):
        each = {"x": value, "tooltip": [name, numbers[0], *tips]}
        style = DOT | {"size": 44, "opacity": 0.55, "color": GREY}
        layers.append(layer("point", each, "datum.kind == 'target'", **style))
    mean = {"x": value, "tooltip": [name, *numbers, *tips]}
    layers.append(layer("point", mean, "datum.kind != 'target'", size=110, shape="diamond", color=GREY, **DOT))
    return panel(title, rows, layers, {"y": y}, height)


def by_shape(field: str, names: Iterable[str]) -> Channel:
    """A shape per name, in order of appearance; the legend has two columns if that fits a phone."""
    levels = list(dict.fromkeys(names))
    scale = {"domain": levels, "range": [SHAPES[k % len(SHAPES)] for k in range(len(levels))]}
    columns = 2 if max(map(len, levels), default=0) <= 14 else 1
    return nominal(field, None, scale=scale, legend={"labelLimit": 260, "columns": columns})


def clipped(values: Iterable[float], domain: tuple[float, float]) -> str:
    """Legend note about values outside of the scale; empty if there are none."""
    numbers = list(values)
    slack = 1e-9 * (abs(domain[0]) + abs(domain[1]))
    notes = [f"above {domain[1]:.3g}"] if any(v > domain[1] + slack for v in numbers) else []
    notes += [f"below {domain[0]:.3g}"] if any(v < domain[0] - slack for v in numbers) else []
    return f" ({' and '.join(notes)}: drawn alike)" if notes else ""


def _scale(log: bool) -> dict[str, Any]:
    return {"type": "log", "nice": False} if log else {"zero": False}


def _colour(field: str, rows: Iterable[Row]) -> Channel:
    """The colour of iterations by their number, of other names in order."""
    known = sorted({row[field] for row in rows if row[field] is not None})
    counted = all(isinstance(level, int) for level in known)
    colours = [of_iterations(n) if counted else NAMED[k % len(NAMED)] for k, n in enumerate(known)]
    strokes = {"symbolType": "stroke", "symbolStrokeWidth": 4, "symbolOpacity": 1}
    kind = "ordinal" if counted else "nominal"
    return channel(field, kind=kind, scale={"domain": known, "range": colours}, legend=strokes)
