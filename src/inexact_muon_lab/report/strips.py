"""The small SVG picture of a claim: a strip per body of evidence, without scripts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import isfinite

from markupsafe import Markup, escape

from inexact_muon_lab.report.claims import Judged
from inexact_muon_lab.report.finding import Finding
from inexact_muon_lab.statistics import CONFIRMED, REFUTED, Verdict

WIDTH, HEIGHT, SIDE = 210, 18, 8
SHOWN = 5
"""Maximum number of strips in a picture."""
KINDS: dict[Verdict, str] = {CONFIRMED: "good", REFUTED: "bad"}


def strips(own: Sequence[Judged], reference: Sequence[Judged]) -> Markup:
    """The interval and the region in which the claim is true (shaded), each on its own scale; own runs are filled.

    Colours are those of the verdicts. Counted claims are a bar of the numbers checked.
    """
    both = [(item, False) for item in own] + [(item, True) for item in reference]
    rows = [(item, theirs) for item, theirs in both if item.finding.statistic]
    if not rows:
        return Markup('<span class="soft">no data</span>')
    parts = [_strip(item, theirs, HEIGHT * k) for k, (item, theirs) in enumerate(rows[:SHOWN])]
    label = "; ".join(f"{item.finding.evidence}: {item.verdict}" for item, _ in rows)
    height = HEIGHT * len(parts)
    head = f'<svg class="strips" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
    return Markup(f'{head}aria-label="{escape(label)}">{"".join(parts)}</svg>')


def _strip(item: Judged, theirs: bool, top: int) -> str:
    kind = KINDS.get(item.verdict, "open") + (" lent" if theirs else "")
    mark = _count(item.finding, top) if item.finding.counted else _interval(item.finding, top)
    return f'<g class="{kind}"><title>{escape(item.finding.statistic)}</title>{mark}</g>'


def _count(finding: Finding, top: int) -> str:
    """A bar of the numbers checked, with the fraction that failed, at least visibly wide."""
    found = re.match(r"(\d+) of (\d+)", finding.statistic)
    broken, checked = (int(found[1]), int(found[2])) if found else (int(finding.interval.mean), 1)
    full, middle = WIDTH - 2 * SIDE, top + HEIGHT / 2
    cut = max(3.0, full * broken / max(1, checked)) if broken else 0.0
    bar = f'<rect class="count" x="{SIDE}" y="{middle - 4}" width="{full - cut:.1f}" height="8" rx="2"/>'
    return bar + (f'<rect class="broken" x="{SIDE + full - cut:.1f}" y="{middle - 4}" width="{cut:.1f}" height="8"/>')


def _interval(finding: Finding, top: int) -> str:
    i, edges = finding.interval, [edge for edge in finding.zone if isfinite(edge)]
    values = [v for v in (i.mean, i.low, i.high, *edges) if isfinite(v)]
    low, high = min(values), max(values)
    pad = 0.12 * (high - low) or 1.0
    low, high, middle = low - pad, high + pad, top + HEIGHT / 2

    def x(value: float) -> float:
        return SIDE + (min(max(value, low), high) - low) / (high - low) * (WIDTH - 2 * SIDE)

    begin, end = x(finding.zone[0]), x(finding.zone[1])
    parts = [f'<rect class="zone" x="{begin:.1f}" y="{top + 1}" width="{end - begin:.1f}" height="{HEIGHT - 2}"/>']
    parts += [
        f'<line class="edge" x1="{x(e):.1f}" x2="{x(e):.1f}" y1="{top + 1}" y2="{top + HEIGHT - 1}"/>' for e in edges
    ]
    if isfinite(i.low):
        parts.append(f'<line class="range" x1="{x(i.low):.1f}" x2="{x(i.high):.1f}" y1="{middle}" y2="{middle}"/>')
    return "".join([*parts, f'<circle cx="{x(i.mean):.1f}" cy="{middle}" r="4"/>'])
