"""The forest plot of the claims: a row per claim and one axis for all claims of a unit; SVG without scripts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, isfinite

from markupsafe import Markup, escape

from inexact_muon_lab.report.claims import CLAIMS, Claim, Judged, deciding, overall
from inexact_muon_lab.report.finding import COUNT
from inexact_muon_lab.report.shown import Shown
from inexact_muon_lab.statistics import CONFIRMED, REFUTED, Verdict

WIDTH, HEIGHT, SIDE = 340, 18, 14
ROOM = 44
"""Least distance of two labels of an axis."""
KINDS: dict[Verdict, str] = {CONFIRMED: "good", REFUTED: "bad"}


@dataclass
class ClaimRow:
    """A claim with all of its evidence.

    Attributes:
        own: judged on own runs.
        reference_judged: judged on reference evidence, where that has data.
        cost: what an undecided claim would need.
        counted: in the numbers of verdicts.
        verdict: on own runs; `theirs` on reference evidence, if there is any.
        bodies: what is drawn: (the evidence that decides, whether it is reference evidence).
        numbers: means and intervals of what is drawn.
        paper: the paper's value in the unit of the claim; empty if it prints none.
    """

    claim: Claim
    own: list[Judged]
    reference_judged: list[Judged]
    cost: str = ""
    counted: bool = True

    def __post_init__(self) -> None:
        both = (self.own, self.reference_judged)
        self.verdict, self.theirs = (overall(judged).get(self.claim.id) for judged in both)
        deciders = zip(map(deciding, both), (False, True), strict=True)
        self.bodies = [(item, theirs) for item, theirs in deciders if item is not None]
        self.numbers = [f"{'reference: ' if theirs else ''}{numbers(item)}" for item, theirs in self.bodies]
        self.paper = "" if self.claim.paper is None else self.claim.unit.text(self.claim.paper)

    def positions(self, values: Iterable[float]) -> list[float]:
        """Where finite values of the statistic lie on the axis."""
        position = self.claim.unit.position
        return [x for value in values if isfinite(value) and isfinite(x := position(value))]


def claim_groups(shown: Shown) -> list[ClaimGroup]:
    """All claims by unit, each in the order of the claims."""
    groups: dict[str, list[ClaimRow]] = {}
    for claim in CLAIMS:
        own = [item for item in shown.judged if item.claim is claim]
        lent = [item for item in shown.reference_judged if item.claim is claim and item.finding.statistic]
        row = ClaimRow(claim, own, lent, shown.costs.get(claim.id, ""), claim.id in shown.counted)
        groups.setdefault(claim.unit.title, []).append(row)
    return [ClaimGroup(rows) for rows in groups.values()]


def numbers(item: Judged) -> str:
    """Mean and 95 % interval in the claim's unit."""
    if item.finding.count:
        return "{} of {}".format(*item.finding.count)
    span = interval_text(item)
    return item.claim.unit.text(item.finding.interval.mean) + (f" ({span})" if span else "")


def interval_text(item: Judged) -> str:
    """ "0.1 to 0.2"; empty if nothing is known of either end."""
    ends = (item.finding.interval.low, item.finding.interval.high)
    words = [item.claim.unit.text(end) if isfinite(end) else "unknown" for end in ends]
    return " to ".join(words) if any(map(isfinite, ends)) else ""


@dataclass
class ClaimGroup:
    """Claims of one axis, whose title, labels and ticks are those of their unit, on its scale."""

    rows: list[ClaimRow]

    def __post_init__(self) -> None:
        self.unit = self.rows[0].claim.unit
        self.ends = self._ends()

    def _ends(self) -> tuple[float, float]:
        """Of the axis, which holds all means, zones and values of the paper; intervals widen it by half on a side."""
        inner, outer = [], []
        for row in self.rows:
            for finding in (item.finding for item, _ in row.bodies):
                paper = [row.claim.paper] if row.claim.paper is not None else []
                inner += row.positions([finding.interval.mean, *finding.zone, *paper])
                outer += row.positions([finding.interval.low, finding.interval.high])
        low, high = min(inner, default=0.0), max(inner, default=0.0)
        room = 0.5 * (high - low) or 1.0
        low, high = max(low - room, min([low, *outer])), min(high + room, max([high, *outer]))
        pad = 0.06 * (high - low) or 1.0
        return low - pad, high + pad

    @property
    def scale(self) -> Markup:
        """The axis: ticks and their labels; none for counts, whose bars are shares of their own number."""
        if self.unit is COUNT or not any(row.bodies for row in self.rows):
            return Markup("")
        parts, last = [f'<line x1="{SIDE}" x2="{WIDTH - SIDE}" y1="20" y2="20"/>'], -inf
        for tick in self.unit.ticks(*self.ends):
            x = self._x(tick)
            if x - last >= ROOM:
                parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="20" y2="24"/>')
                parts.append(f'<text x="{x:.1f}" y="16" text-anchor="middle">{escape(self.unit.label(tick))}</text>')
                last = x
        return _svg("axis", 26, "".join(parts), self.unit.title)

    def draw(self, row: ClaimRow) -> Markup:
        """Mean and interval of each body of evidence, the region in which the claim is true, and the paper's value."""
        if not row.bodies:
            return Markup('<span class="soft">no data</span>')
        parts, labels, height = [], [], HEIGHT * len(row.bodies)
        for k, (item, theirs) in enumerate(row.bodies):
            kind = KINDS.get(item.verdict, "open") + (" reference" if theirs else "")
            count = item.finding.count
            mark = _bar(*count, HEIGHT * k) if count else self._interval(item, HEIGHT * k)
            parts.append(f'<g class="{kind}"><title>{escape(item.finding.statistic)}</title>{mark}</g>')
            labels.append(f"{'reference evidence' if theirs else 'your runs'}: {numbers(item)}, {item.verdict}")
        if row.claim.paper is not None:
            place = f"M{self._x(row.claim.unit.position(row.claim.paper)):.1f} {height / 2 - 6} l5 6 l-5 6 l-5 -6 z"
            parts.append(f'<path class="paper" d="{place}"><title>the paper: {escape(row.paper)}</title></path>')
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
            for x in (x for x in (low, high) if not self.ends[0] <= x <= self.ends[1]):
                tip = -7 if x < self.ends[0] else 7
                parts.append(f'<path class="beyond" d="M{self._x(x)} {middle - 4} l{tip} 4 l{-tip} 4 z"/>')
        return "".join([*parts, f'<circle cx="{self._x(mean):.1f}" cy="{middle}" r="4"/>'])

    def _x(self, position: float) -> float:
        low, high = self.ends
        return SIDE + (min(max(position, low), high) - low) / (high - low) * (WIDTH - 2 * SIDE)


def _bar(broken: int, checked: int, top: int) -> str:
    """A bar of the numbers checked, with the fraction that failed, at least visibly wide."""
    full, y = WIDTH - 2 * SIDE, top + HEIGHT / 2 - 4
    failed = max(3.0, full * broken / max(1, checked)) if broken else 0.0
    bar = f'<rect class="count" x="{SIDE}" y="{y}" width="{full - failed:.1f}" height="8" rx="2"/>'
    return f'{bar}<rect class="broken" x="{SIDE + full - failed:.1f}" y="{y}" width="{failed:.1f}" height="8"/>'


def _svg(kind: str, height: int, content: str, label: str) -> Markup:
    head = f'<svg class="{kind}" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
    return Markup(f'{head}aria-label="{escape(label)}">{content}</svg>')
