"""A picture of the momentum of an optimizer: each kind of layer, what the oracle makes of it, what is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from inexact_muon.polar import PolarMethod
from inexact_muon.schedules.judgement import normaliser
from inexact_muon_lab.extras import check_picture, require
from inexact_muon_lab.tune.advice import Advice, Kind, advise, text
from inexact_muon_lab.tune.spectra import positions

COLOURS = ("#868e96", "#f08c00", "#4263eb")
"""Of the spectrum, the oracle in use, and the recommended one."""


def plot(momentum: Any, oracle: PolarMethod | str | None = None) -> Any:
    """A chart for a notebook (extra `lab`): spectrum and oracle of each kind of layer.

    Args:
        momentum: an optimizer, its state_dict, a path, or an `Advice`.
        oracle: as for `advise`.
    """
    return draw(momentum if isinstance(momentum, Advice) else advise(momentum, oracle))


def save(advice: Advice, path: Path) -> None:
    """Write the chart; the suffix decides the format."""
    check_picture(path)
    draw(advice).save(str(path))


def draw(advice: Advice) -> Any:
    """A panel a kind: the spectrum of its worst layer, and f(s) by the oracle in use and the recommended one."""
    alt = require("altair", "lab")
    names = ["s / largest s", "f(s), in use", "f(s), recommended"]
    recommended = None if advice.keep else advice.oracle  # one that is kept is one curve
    shown = names[: 2 if recommended is None else 3]
    colours = alt.Scale(domain=shown, range=list(COLOURS[: len(shown)]))
    colour = alt.Color("curve:N", scale=colours, legend=alt.Legend(orient="top", title=None))
    panels = []
    for kind in advice.kinds:
        x = alt.X("direction:Q", title="share of the directions", scale=alt.Scale(domain=[0, 1]))
        y = alt.Y("value:Q", title=None, scale=alt.Scale(type="log", domain=[1e-4, 2], clamp=True))
        title = alt.TitleParams(kind.name, subtitle=_lost(kind), fontSize=12, subtitleFontSize=11)
        base = alt.Chart(alt.Data(values=_points(kind, recommended, names)), title=title)
        half = alt.Chart(alt.Data(values=[{"y": 0.5}])).mark_rule(strokeDash=[3, 3], color=COLOURS[0]).encode(y="y:Q")
        panels.append(
            alt.layer(half, base.mark_line().encode(x=x, y=y, color=colour)).properties(width=240, height=170)
        )
    return alt.concat(*panels, columns=3, title=alt.TitleParams(list(advice.lines), fontSize=12, anchor="start"))


def _points(kind: Kind, recommended: PolarMethod | None, names: list[str]) -> list[dict[str, Any]]:
    """Points of the three curves, for the layer of the kind that loses most."""
    report = max(kind.reports, key=lambda r: r.in_use.gap if r.in_use is not None else 0.0)
    layer = report.layer
    at = positions(layer.values.size)
    oracles = (report.oracle, None if recommended is None else recommended.at(*layer.shape))
    curves = {names[0]: layer.values / layer.values[0]}
    for name, oracle in zip(names[1:], oracles, strict=True):
        if oracle is not None:
            curves[name] = oracle.scalar(layer.values / normaliser(layer.values, oracle.normaliser))
    return [
        {"direction": float(x), "value": float(value), "curve": name}
        for name, curve in curves.items()
        for x, value in zip((at + 1) / min(layer.shape), curve[at], strict=True)
    ]


def _lost(kind: Kind) -> str:
    size = f"{len(kind.reports)} of {kind.reports[0].layer.shape[0]} x {kind.reports[0].layer.shape[1]}"
    if (used := kind.in_use) is None:
        return size
    name = text(kind.reports[0].oracle)
    return f"{size}; {name}: gap {used.gap:.3f}, overshoot {used.overshoot:.2f}, lifted {used.lifted:.2f}"
