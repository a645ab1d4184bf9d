"""The picture of the study of curvature: the best power for one step, fitted and measured, and over whole runs."""

from __future__ import annotations

from typing import Any

import altair as alt

from inexact_muon_lab.report.charts import GREY

COLOURS = {"momentum": "#4263eb", "gradient": "#f08c00"}
GREEN = "#2b8a3e"


def by_step(table: dict[str, Any], models: dict[str, str]) -> list[dict[str, Any]]:
    """p* by point, with its interval over seeds."""
    return [
        {"panel": f"{models[row['model']]}, batch {row['batch']}", "step": row["step"], "input": row["input"]}
        | {
            "p": row["best"]["mean"],
            "low": max(LOW, row["best"]["seeds"][0]),
            "high": min(HIGH, row["best"]["seeds"][1]),
        }
        | {"direct": row["direct"] and row["direct"]["mean"]}
        for row in table["rows"]
        if row["step"] != "all"
    ]


LOW, HIGH = -1.2, 0.8
"""Ends of the axis of powers; intervals beyond are cut."""


def figure(table: dict[str, Any], models: dict[str, str]) -> alt.HConcatChart:
    """A panel for each model and batch."""
    values = by_step(table, models)
    panels = []
    for name in dict.fromkeys(value["panel"] for value in values):
        mine = [value for value in values if value["panel"] == name]
        trained = [
            {"best": one["best"]["best"], "from": min(one["best"]["alike"]), "to": max(one["best"]["alike"])}
            for one in table["runs"]
            if one["best"] and f"{models[one['model']]}, batch {one['batch']}" == name
        ]
        colour = alt.Color(
            "input:N",
            scale=alt.Scale(domain=list(COLOURS), range=list(COLOURS.values())),
            title="input of the oracle",
            legend=alt.Legend(orient="bottom"),
        )
        y = alt.Y("p:Q", title="best power for one step", scale=alt.Scale(domain=[LOW, HIGH]))
        base = alt.Chart(alt.Data(values=mine), title=name).encode(
            x=alt.X("step:O", title="step", axis=alt.Axis(labelAngle=0)), xOffset="input:N", color=colour
        )
        zero = alt.Chart(alt.Data(values=[{"y": 0}])).mark_rule(color=GREY, strokeDash=[3, 3]).encode(y="y:Q")
        runs = alt.Chart(alt.Data(values=trained))
        over = runs.mark_rule(color=GREEN, strokeWidth=2).encode(y="best:Q")
        alike = runs.mark_rect(color=GREEN, opacity=0.13).encode(y="from:Q", y2="to:Q")
        fits = base.mark_point(filled=True, size=55, opacity=1).encode(y=y)
        tried = base.mark_point(shape="cross", size=60, opacity=1).encode(y="direct:Q")
        spans = base.mark_rule(strokeWidth=1.5).encode(y="low:Q", y2="high:Q")
        panels.append(alt.layer(alike, zero, over, spans, fits, tried).properties(width=170, height=230))
    caption = [
        "dots: r - q, with 95 % intervals over seeds; crosses: measured along steps",
        "green: lowest loss over whole runs (a line a study), and the powers between those not told from it",
    ]
    return alt.hconcat(*panels, title=alt.TitleParams(caption, fontSize=11, fontWeight="normal")).resolve_scale(
        y="shared"
    )
