"""The picture of the studies of maps: what oracles make of singular values, and losses against the reference."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np

from inexact_muon import polar
from inexact_muon_lab.report.charts import GREY

SHOWN = {
    "zolotarev(poles=3)": "#495057",
    "polar-express(steps=5)": "#4263eb",
    "zolotarev(poles=1, lower=0.003)": "#f08c00",
    "zolotarev(poles=3, lower=0.002, power=-0.2)": "#2b8a3e",
    "polar-express(steps=5, lower=0.003, power=-0.2)": "#82c91e",
}
"""Oracles whose maps are drawn, and their colours."""
COLOURS = {"better": "#2b8a3e", "enough": "#74b816", "open": "#f08c00", "worse": "#e03131"}
NEAR, FAR = -0.045, 0.045
"""Ends of the axis of differences, one for all kinds of runs; what lies beyond is cut, and the axis says so."""


def maps() -> alt.Chart:
    """f of some oracles, relative to their own normaliser, on logarithmic axes."""
    grid = np.geomspace(1e-4, 1.0, 500)
    values = [
        {"oracle": text, "sigma": float(s), "f": float(f)}
        for text in SHOWN
        for s, f in zip(grid, polar.parse(text).scalar(grid), strict=True)
    ]
    scale = alt.Scale(domain=list(SHOWN), range=list(SHOWN.values()))
    return (
        alt.Chart(alt.Data(values=values), title="what an oracle makes of a singular value")
        .mark_line(strokeWidth=2)
        .encode(
            x=alt.X(
                "sigma:Q",
                scale=alt.Scale(type="log"),
                title="singular value, over the norm",
                axis=alt.Axis(format="~g"),
            ),
            y=alt.Y(
                "f:Q", title="f", scale=alt.Scale(type="log", domain=[0.1, 4.0], clamp=True), axis=alt.Axis(format="~g")
            ),
            color=alt.Color(
                "oracle:N", scale=scale, title=None, legend=alt.Legend(orient="bottom", columns=1, labelLimit=420)
            ),
        )
        .properties(width=420, height=230)
    )


def differences(part: dict[str, Any]) -> alt.LayerChart:
    """Loss minus the reference's with its interval, each oracle at its own step size."""
    values = [
        {"oracle": row["oracle"], "verdict": row["verdict"]}
        | {name: min(FAR, max(NEAR, row["own"][name])) for name in ("mean", "low", "high")}
        for row in part["rows"]
        if row["own"] and row["own"]["low"] is not None
    ]
    values.sort(key=lambda value: value["mean"])
    base = alt.Chart(alt.Data(values=values), title=part["label"]).encode(
        y=alt.Y("oracle:N", sort=[v["oracle"] for v in values], title=None, axis=alt.Axis(labelLimit=420)),
        color=alt.Color(
            "verdict:N",
            scale=alt.Scale(domain=list(COLOURS), range=list(COLOURS.values())),
            title=None,
            legend=alt.Legend(orient="bottom"),
        ),
    )
    title = f"loss more than the reference, each at its own lr (cut at +-{FAR:g})"
    x = alt.X("low:Q", title=title, scale=alt.Scale(domain=[NEAR, FAR]))
    spans = base.mark_rule(strokeWidth=2).encode(x=x, x2="high:Q")
    points = base.mark_point(filled=True, size=60, opacity=1).encode(x="mean:Q")
    zero = alt.Chart(alt.Data(values=[{"x": 0}])).mark_rule(color=GREY, strokeDash=[3, 3]).encode(x="x:Q")
    return alt.layer(zero, spans, points).properties(width=420, height=22 * max(2, len(values)))


def figure(kinds: dict[str, Any]) -> alt.VConcatChart:
    """Maps, then the oracles in each kind of run, one below the other."""
    return alt.vconcat(maps(), *(differences(part) for part in kinds.values())).resolve_scale(color="independent")
