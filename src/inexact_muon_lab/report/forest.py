"""The forest plot of the claims: a strip per claim and one axis for all claims of a unit; SVG without scripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, isfinite

from markupsafe import Markup, escape

from inexact_muon_lab.report.axes import COUNTS, PlotAxis
from inexact_muon_lab.report.claims import Claim, Judged, deciding
from inexact_muon_lab.report.finding import Count
from inexact_muon_lab.statistics import CONFIRMED, REFUTED, Verdict

WIDTH, HEIGHT, SIDE = 340, 18, 14
ROOM = 44
"""Least distance of two labels of an axis."""
KINDS: dict[Verdict, str] = {CONFIRMED: "good", REFUTED: "bad"}


@dataclass(frozen=True)
class Strip:
    """A claim in the plot: the body of own evidence and that of reference evidence which decide it."""

    claim: Claim
    own: Judged | None
    reference: Judged | None

    @property
    def bodies(self) -> list[tuple[Judged, bool]]:
        """(evidence, whether it is reference evidence)."""
        return [(item, item is self.reference) for item in (self.own, self.reference) if item is not None]

    @property
    def positions(self) -> list[float]:
        """Means, ends of the region in which the claim is true, and the paper's value, on the axis."""
        position = self.claim.unit.position
        values = [v for item, _ in self.bodies for v in (item.finding.interval.mean, *item.finding.zone)]
        values += [self.claim.paper] if self.claim.paper is not None and self.bodies else []
        return [x for value in values if isfinite(x := position(value))]


def strip(claim: Claim, own: Iterable[Judged], reference: Iterable[Judged]) -> Strip:
    """The strip of a claim."""
    return Strip(claim, deciding(own), deciding(reference))


def numbers(item: Judged) -> str:
    """Mean and 95 % interval in the claim's unit."""
    finding = item.finding
    if finding.count:
        return f"{finding.count.broken} of {finding.count.checked}"
    span = interval_text(item)
    return item.claim.unit.text(finding.interval.mean) + (f" ({span})" if span else "")


def interval_text(item: Judged) -> str:
    """ "0.1 to 0.2"; empty if nothing is known of either end."""
    unit, ends = item.claim.unit, (item.finding.interval.low, item.finding.interval.high)
    words = [unit.text(end) if isfinite(end) else "unknown" for end in ends]
    return " to ".join(words) if any(map(isfinite, ends)) else ""


@dataclass(frozen=True)
class Forest:
    """All strips of one axis, on one scale."""

    axis: PlotAxis
    low: float
    high: float

    @property
    def scale(self) -> Markup:
        """The axis: ticks and their labels."""
        if self.axis is COUNTS:
            return Markup("")
        y, parts, last = 16, [f'<line x1="{SIDE}" x2="{WIDTH - SIDE}" y1="20" y2="20"/>'], -inf
        for tick in self.axis.ticks(self.low, self.high):
            x = self._x(tick)
            if x - last >= ROOM:
                parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="20" y2="24"/>')
                parts.append(f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{escape(self.axis.text(tick))}</text>')
                last = x
        return _svg("axis", 26, "".join(parts), self.axis.title)

    def draw(self, one: Strip) -> Markup:
        """Mean and interval of each body of evidence, the region in which the claim is true, and the paper's value."""
        if not one.bodies:
            return Markup('<span class="soft">no data</span>')
        rows = [self._body(item, theirs, HEIGHT * k) for k, (item, theirs) in enumerate(one.bodies)]
        height = HEIGHT * len(rows)
        label = "; ".join(
            f"{'reference evidence' if theirs else 'your runs'}: {numbers(item)}, {item.verdict}"
            for item, theirs in one.bodies
        )
        return _svg("strip", height, "".join(rows) + self._paper(one.claim, height), label)

    def _body(self, item: Judged, theirs: bool, top: int) -> str:
        kind = KINDS.get(item.verdict, "open") + (" reference" if theirs else "")
        count = item.finding.count
        mark = _bar(count, top) if count else self._interval(item, top)
        return f'<g class="{kind}"><title>{escape(item.finding.statistic)}</title>{mark}</g>'

    def _interval(self, item: Judged, top: int) -> str:
        finding, position = item.finding, item.claim.unit.position
        middle = top + HEIGHT / 2
        begin, end = (self._x(position(edge) if isfinite(edge) else edge) for edge in finding.zone)
        parts = [f'<rect class="zone" x="{begin:.1f}" y="{top + 1}" width="{end - begin:.1f}" height="{HEIGHT - 2}"/>']
        edges = [self._x(position(edge)) for edge in finding.zone if isfinite(edge) and isfinite(position(edge))]
        parts += [f'<line class="edge" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{top + HEIGHT}"/>' for x in edges]
        i = finding.interval
        if isfinite(i.low) or isfinite(i.high):
            low, high = (position(x) if isfinite(x) else x for x in (i.low, i.high))
            parts.append(
                f'<line class="range" x1="{self._x(low):.1f}" x2="{self._x(high):.1f}" y1="{middle}" y2="{middle}"/>'
            )
            parts += [self._arrow(x, middle) for x in (low, high) if not self.low <= x <= self.high]
        return "".join([*parts, f'<circle cx="{self._x(position(i.mean)):.1f}" cy="{middle}" r="4"/>'])

    def _arrow(self, position: float, middle: float) -> str:
        """The interval goes on beyond the axis."""
        x, tip = (SIDE, -7) if position < self.low else (WIDTH - SIDE, 7)
        return f'<path class="beyond" d="M{x} {middle - 4} l{tip} 4 l{-tip} 4 z"/>'

    def _paper(self, claim: Claim, height: int) -> str:
        if claim.paper is None:
            return ""
        x, middle = self._x(claim.unit.position(claim.paper)), height / 2
        title = f"<title>the paper: {escape(claim.unit.text(claim.paper))}</title>"
        return f'<path class="paper" d="M{x:.1f} {middle - 6} l5 6 l-5 6 l-5 -6 z">{title}</path>'

    def _x(self, position: float) -> float:
        inside = min(max(position, self.low), self.high)
        return SIDE + (inside - self.low) / (self.high - self.low) * (WIDTH - 2 * SIDE)


def forest(axis: PlotAxis, strips: Sequence[Strip]) -> Forest:
    """The axis that holds all means, ends and values of the paper; intervals may widen it by half on either side."""
    positions = [x for one in strips for x in one.positions]
    low, high = min(positions, default=0.0), max(positions, default=0.0)
    room = 0.5 * (high - low) or 1.0
    ends = [
        end
        for one in strips
        for item, _ in one.bodies
        for value in (item.finding.interval.low, item.finding.interval.high)
        if isfinite(value) and isfinite(end := one.claim.unit.position(value))
    ]
    low, high = max(low - room, min([low, *ends])), min(high + room, max([high, *ends]))
    pad = 0.06 * (high - low) or 1.0
    return Forest(axis, low - pad, high + pad)


def _bar(count: Count, top: int) -> str:
    """A bar of the numbers checked, with the fraction that failed, at least visibly wide."""
    full, middle = WIDTH - 2 * SIDE, top + HEIGHT / 2
    cut = max(3.0, full * count.broken / max(1, count.checked)) if count.broken else 0.0
    bar = f'<rect class="count" x="{SIDE}" y="{middle - 4}" width="{full - cut:.1f}" height="8" rx="2"/>'
    return bar + f'<rect class="broken" x="{SIDE + full - cut:.1f}" y="{middle - 4}" width="{cut:.1f}" height="8"/>'


def _svg(kind: str, height: int, content: str, label: str) -> Markup:
    head = f'<svg class="{kind}" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
    return Markup(f'{head}aria-label="{escape(label)}">{content}</svg>')
