"""Study M, one property of a map at a time: against the exact factor, at its own step size and at one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from compare import Row, Span
from grids import Setting

PROPERTIES = {
    "power(p=-0.1),": "tilted towards small singular values, s^-0.1",
    "power(p=0.1),": "tilted towards large ones, s^0.1",
    "floor(tau=0.001, value=0.0),": "no tail below 0.001",
    "floor(tau=0.01, value=0.0),": "no tail below 0.01",
    "floor(tau=0.01, value=0.3),": "tail below 0.01 lifted to 0.3 only",
    "ripple(amplitude=0.3, frequency=3.0),": "ripple of 30 %",
    "top(value=1.6, tau=0.3),": "1.6 times as large above 0.3",
    "dip(depth=0.6, centre=0.3, width=0.8),": "damped middle, to 0.4 at 0.3",
    "dip(depth=0.6, centre=0.3, width=0.8), clip(tau=0.003)": "the same, and falling below 0.003",
    "contra(a=0.5),": "leading directions damped, 1 - s/2",
}
"""Factors of a shaped map -> what is special about it."""


def properties(settings: Iterable[Setting], found: Mapping[str, list[Row]]) -> str:
    """A row a property: what the study of step sizes says of lr, and the study with the most seeds of the loss."""
    every = [(setting, row) for setting in settings for row in found[setting.study]]
    lines = [
        "| map | best lr over the exact one's | loss more at one lr | loss more, each at its own | seeds | verdict |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for factors, words in PROPERTIES.items():
        mine = [
            (s, row) for s, row in every if row.oracle == f"shaped(factors=({factors}))" and "enwik8" not in s.label
        ]
        if not mine:
            continue
        tuned = next((row for _, row in mine if row.shift), None)
        best = max((row for _, row in mine), key=lambda row: row.seeds)
        shift = "" if tuned is None or tuned.shift is None else _ratio(tuned.shift)
        matched = "" if tuned is None else str(tuned.matched or "")
        cells = [words, shift, matched, str(best.own or ""), str(best.seeds), best.verdict]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _ratio(span: Span) -> str:
    return f"{span.mean:.2f} ({span.low:.2f} to {span.high:.2f})"
