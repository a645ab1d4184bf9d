"""The picture of variants: `python studies/variants/picture.py` draws docs/figures/variants.svg from the pack."""

from __future__ import annotations

from pathlib import Path

import altair as alt

from inexact_muon_lab.report.arms import Comparison, comparisons
from inexact_muon_lab.report.load import load

HERE = Path(__file__).resolve().parent
GREY = "#868e96"


def figure(variants: list[Comparison]) -> alt.LayerChart:
    """Final loss of each variant minus plain Muon's, with 95 % intervals; lower is better."""
    rows = [
        {"variant": one.arm, "difference": one.first.loss.mean, "low": one.first.loss.low, "high": one.first.loss.high}
        for one in variants
    ]
    base = alt.Chart(alt.Data(values=rows)).encode(y=alt.Y("variant:N", title=None, sort=None))
    title = "final validation loss minus plain Muon's (nats a byte, 95 %)"
    bars = base.mark_rule(strokeWidth=2, color="#4263eb").encode(x=alt.X("low:Q", title=title), x2="high:Q")
    points = base.mark_point(filled=True, size=80, color="#4263eb", opacity=1).encode(x="difference:Q")
    margins = sorted({sign * one.margin for one in variants for sign in (-1.0, 1.0)})
    ends = alt.Chart(alt.Data(values=[{"at": margin} for margin in margins]))
    zero = alt.Chart(alt.Data(values=[{"at": 0.0}])).mark_rule(color=GREY).encode(x="at:Q")
    dashed = ends.mark_rule(color=GREY, strokeDash=[4, 4]).encode(x="at:Q")
    chart = alt.layer(zero, dashed, bars, points).properties(width=460, height=180, background="transparent")
    grey = {"labelColor": GREY, "titleColor": GREY, "gridColor": "#86868640", "domainColor": GREY}
    return chart.configure_axis(labelFontSize=14, titleFontSize=14, **grey).configure_view(stroke=None)


def main() -> None:
    """Draw."""
    figure(comparisons(load(HERE))).save(HERE.parents[1] / "docs/figures/variants.svg")


if __name__ == "__main__":
    main()
