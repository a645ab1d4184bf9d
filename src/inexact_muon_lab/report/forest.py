"""The forest plot of the claims: a strip per claim and one axis for all claims of a unit; SVG without scripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, isfinite

from markupsafe import Markup, escape

from inexact_muon_lab.report.claims import Claim, Judged, deciding
from inexact_muon_lab.report.finding import COUNTS, Count, PlotAxis
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

    def positions(self, values: Iterable[float]) -> list[float]:
        """Where finite values of the statistic lie on the axis."""
        position = self.claim.unit.position
        return [x for value in values if isfinite(value) and isfinite(x := position(value))]


def strip(claim: Claim, own: Iterable[Judged], reference: Iterable[Judged]) -> Strip:
    """The strip of a claim."""
    return Strip(claim, deciding(own), deciding(reference))


def numbers(item: Judged) -> str:
    """Mean and 95 % interval in the claim's unit."""
    if count := item.finding.count:
        return f"{count.broken} of {count.checked}"
    span = interval_text(item)
    return item.claim.unit.text(item.finding.interval.mean) + (f" ({span})" if span else "")


def interval_text(item: Judged) -> str:
    """ "0.1 to 0.2"; empty if nothing is known of either end."""
    ends = (item.finding.interval.low, item.finding.interval.high)
    words = [item.claim.unit.text(end) if isfinite(end) else "unknown" for end in ends]
    return " to ".join(words) if any(map(isfinite, ends)) else ""


@dataclass(frozen=True)
class Forest:
    """All strips of one axis, on one scale."""

    axis: PlotAxis
    low: float
    high: float

    @property
    def scale(self) -> Markup:
        """The axis: ticks and their labels; none for counts, whose bars are shares of their own number."""
        if self.axis is COUNTS:
            return Markup("")
        parts, last = [f'<line x1="{SIDE}" x2="{WIDTH - SIDE}" y1="20" y2="20"/>'], -inf
        for tick in self.axis.ticks(self.low, self.high):
            x = self._x(tick)
            if x - last >= ROOM:
                parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="20" y2="24"/>')
                parts.append(f'<text x="{x:.1f}" y="16" text-anchor="middle">{escape(self.axis.text(tick))}</text>')
                last = x
        return _svg("axis", 26, "".join(parts), self.axis.title)

    def draw(self, one: Strip) -> Markup:
        """Mean and interval of each body of evidence, the region in which the claim is true, and the paper's value."""
        if not one.bodies:
            return Markup('<span class="soft">no data</span>')
        parts, labels, height = [], [], HEIGHT * len(one.bodies)
        for k, (item, theirs) in enumerate(one.bodies):
            kind = KINDS.get(item.verdict, "open") + (" reference" if theirs else "")
            count = item.finding.count
            mark = _bar(count, HEIGHT * k) if count else self._interval(item, HEIGHT * k)
            parts.append(f'<g class="{kind}"><title>{escape(item.finding.statistic)}</title>{mark}</g>')
            labels.append(f"{'reference evidence' if theirs else 'your runs'}: {numbers(item)}, {item.verdict}")
        unit, paper = one.claim.unit, one.claim.paper
        if paper is not None:
            place = f"M{self._x(unit.position(paper)):.1f} {height / 2 - 6} l5 6 l-5 6 l-5 -6 z"
            title = f"<title>the paper: {escape(unit.text(paper))}</title>"
            parts.append(f'<path class="paper" d="{place}">{title}</path>')
        return _svg("strip", height, "".join(parts), "; ".join(labels))

    def _interval(self, item: Judged, top: int) -> str:
        """The zone and its edges, the interval with an arrow where it goes on beyond the axis, and the mean."""
        i, middle = item.finding.interval, top + HEIGHT / 2
        begin, end, low, high, mean = (
            item.claim.unit.position(value) if isfinite(value) else value
            for value in (*item.finding.zone, i.low, i.high, i.mean)
        )
        x, width = self._x(begin), self._x(end) - self._x(begin)
        parts = [f'<rect class="zone" x="{x:.1f}" y="{top + 1}" width="{width:.1f}" height="{HEIGHT - 2}"/>']
        edges = [self._x(edge) for edge in (begin, end) if isfinite(edge)]
        parts += [f'<line class="edge" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{top + HEIGHT}"/>' for x in edges]
        if isfinite(low) or isfinite(high):
            ends = f'x1="{self._x(low):.1f}" x2="{self._x(high):.1f}"'
            parts.append(f'<line class="range" {ends} y1="{middle}" y2="{middle}"/>')
            for x in (x for x in (low, high) if not self.low <= x <= self.high):
                tip = -7 if x < self.low else 7
                parts.append(f'<path class="beyond" d="M{self._x(x)} {middle - 4} l{tip} 4 l{-tip} 4 z"/>')
        return "".join([*parts, f'<circle cx="{self._x(mean):.1f}" cy="{middle}" r="4"/>'])

    def _x(self, position: float) -> float:
        inside = min(max(position, self.low), self.high)
        return SIDE + (inside - self.low) / (self.high - self.low) * (WIDTH - 2 * SIDE)


def forest(axis: PlotAxis, strips: Sequence[Strip]) -> Forest:
    """The axis that holds all means, zones and values of the paper; intervals may widen it by half on either side."""
    inner, ends = [], []
    for one in strips:
        for finding in (item.finding for item, _ in one.bodies):
            paper = [one.claim.paper] if one.claim.paper is not None else []
            inner += one.positions([finding.interval.mean, *finding.zone, *paper])
            ends += one.positions([finding.interval.low, finding.interval.high])
    low, high = min(inner, default=0.0), max(inner, default=0.0)
    room = 0.5 * (high - low) or 1.0
    low, high = max(low - room, min([low, *ends])), min(high + room, max([high, *ends]))
    pad = 0.06 * (high - low) or 1.0
    return Forest(axis, low - pad, high + pad)


def _bar(count: Count, top: int) -> str:
    """A bar of the numbers checked, with the fraction that failed, at least visibly wide."""
    full, y = WIDTH - 2 * SIDE, top + HEIGHT / 2 - 4
    broken = max(3.0, full * count.broken / max(1, count.checked)) if count.broken else 0.0
    bar = f'<rect class="count" x="{SIDE}" y="{y}" width="{full - broken:.1f}" height="8" rx="2"/>'
    return f'{bar}<rect class="broken" x="{SIDE + full - broken:.1f}" y="{y}" width="{broken:.1f}" height="8"/>'


def _svg(kind: str, height: int, content: str, label: str) -> Markup:
    head = f'<svg class="{kind}" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
    return Markup(f'{head}aria-label="{escape(label)}">{content}</svg>')
