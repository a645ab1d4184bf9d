"""Charts of the tables beside the stores: ratios, regrets, and predicted against observed."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from inexact_muon_lab.report.charts import GREY, by_shape, chart, spec
from inexact_muon_lab.report.figure import Panel, Row

FAR = 1e4
"""Larger ratios are plotted at this value."""
ROOM = {"config": {"legend": {"layout": {"top": {"anchor": "end"}}}}}
"""Anchors a long legend at the end, so that it fits on a phone."""
BOUNDS = ("paper", "two numbers")


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
