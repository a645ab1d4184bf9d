"""Claims as the page shows them: rows of a forest plot by unit, the tally of verdicts, and the first sentences."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from markupsafe import Markup

from inexact_muon_lab.report.advice import advice
from inexact_muon_lab.report.arms import Comparison, comparisons, unmatched
from inexact_muon_lab.report.claims import CLAIMS, SENTENCES, Claim, Judged, asked, findings, overall, tally
from inexact_muon_lab.report.figure import Figure
from inexact_muon_lab.report.finding import PlotAxis
from inexact_muon_lab.report.forest import forest, interval_text, numbers, strip
from inexact_muon_lab.report.load import Results, StudyRecord
from inexact_muon_lab.report.open_costs import costs, cut
from inexact_muon_lab.statistics import Verdict

LEAD = 3
"""Findings at the top of the page."""


@dataclass(frozen=True)
class Shown:
    """What the page, its Markdown version and the terminal say.

    Attributes:
        judged: the claims on the runs of the folder.
        reference: the reference evidence beside them, if any; `reference_judged` are the claims on it.
        command_line: the command that made the folder, if known.
        page: the file, once it is written.
    """

    results: Results
    judged: list[Judged]
    figures: list[Figure]
    reference: Results | None = None
    reference_judged: list[Judged] = field(default_factory=list)
    command_line: str = ""
    page: Path = Path()

    @cached_property
    def counted(self) -> set[str]:
        """The claims that are counted, on own runs and on reference evidence alike."""
        return asked(self.results, self.judged)

    @cached_property
    def evidence(self) -> list[Results]:
        """Own results and, if there are any, those of reference evidence."""
        return [results for results in (self.results, self.reference) if results]

    @cached_property
    def studies(self) -> list[StudyRecord]:
        """All studies, own ones first."""
        return [study for results in self.evidence for study in results.studies]

    @cached_property
    def arms(self) -> list[Comparison]:
        """The comparisons of arms that studies declare."""
        return [one for results in self.evidence for one in comparisons(results)]

    @cached_property
    def comparisons(self) -> list[str]:
        """One sentence for each of these."""
        return [f"{one.title}, {one.arm} against {one.first.other}: {one.sentence}" for one in self.arms]

    @cached_property
    def problems(self) -> list[str]:
        """What could not be read or compared."""
        read = [line for results in self.evidence for line in results.tables.problems]
        return [*read, *(line for study in self.studies for line in unmatched(study))]

    @cached_property
    def advice(self) -> list[str]:
        """What to use, by own runs."""
        return advice(self.results)

    @cached_property
    def cut(self) -> list[str]:
        """Studies with unfinished runs."""
        return cut(self.results)

    @cached_property
    def costs(self) -> dict[str, str]:
        """{claim: what an undecided one would need}."""
        return costs(self.results, self.judged)

    @property
    def unfinished(self) -> list[str]:
        """Interrupted runs, and what undecided claims would need."""
        return [*self.cut, *(f"{SENTENCES[name]}: {price}" for name, price in self.costs.items())]


@dataclass(frozen=True)
class ClaimRow:
    """A claim with its verdicts on own runs and on reference evidence, and its strip of the forest plot."""

    claim: Claim
    own: list[Judged]
    reference_judged: list[Judged]
    verdict: Verdict
    theirs: Verdict | None
    picture: Markup
    numbers: list[str]
    cost: str
    counted: bool

    @property
    def paper(self) -> str:
        """The paper's value in the unit of the claim; empty if it prints none."""
        return "" if self.claim.paper is None else self.claim.unit.text(self.claim.paper)


@dataclass(frozen=True)
class ClaimGroup:
    """Claims of one unit, and the axis that they share."""

    axis: PlotAxis
    scale: Markup
    rows: list[ClaimRow]


def claim_groups(shown: Shown) -> list[ClaimGroup]:
    """All claims by unit, each in the order of the claims."""
    own, theirs = overall(shown.judged), overall(shown.reference_judged)
    groups = []
    for axis in dict.fromkeys(claim.unit.axis for claim in CLAIMS):
        claims = [claim for claim in CLAIMS if claim.unit.axis is axis]
        mine = {c.id: [j for j in shown.judged if j.claim is c] for c in claims}
        lent = {c.id: [j for j in shown.reference_judged if j.claim is c and j.finding.statistic] for c in claims}
        strips = [strip(claim, mine[claim.id], lent[claim.id]) for claim in claims]
        plot = forest(axis, strips)
        rows = [
            ClaimRow(
                one.claim, mine[name := one.claim.id], lent[name], own[name], theirs[name] if lent[name] else None,
                plot.draw(one), [f"{'reference: ' if ref else ''}{numbers(item)}" for item, ref in one.bodies],
                shown.costs.get(name, ""), name in shown.counted,
            )
            for one in strips
        ]  # fmt: skip
        groups.append(ClaimGroup(axis, plot.scale if any(one.bodies for one in strips) else Markup(""), rows))
    return groups


def tallies(shown: Shown) -> list[tuple[str, dict[Verdict, int]]]:
    """(whose runs, {verdict: number of claims}); each adds up to the number of counted claims."""
    boards = [("Your runs", tally(shown.judged, shown.counted))]
    if any(item.finding.statistic for item in shown.reference_judged):
        boards.append(("Reference evidence", tally(shown.reference_judged, shown.counted)))
    return boards


def lead(shown: Shown) -> list[tuple[Judged, str]]:
    """The most important findings with their numbers in words: own ones first, then those of reference evidence."""
    own = findings([item for item in shown.judged if item.claim.id in shown.counted], LEAD)
    known = {item.claim.id for item in own}
    others = findings([item for item in shown.reference_judged if item.claim.id not in known], LEAD - len(own))
    return [(item, _sentence(item)) for item in (*own, *others)]


def _sentence(item: Judged) -> str:
    """Statistic, interval with its unit, sample and the paper's value."""
    finding, unit = item.finding, item.claim.unit
    paper = "" if item.claim.paper is None else f"; the paper: {unit.text(item.claim.paper)}"
    interval = interval_text(item)
    span = f" ({interval}{unit.axis.unit}, {finding.sample})" if interval else f" ({finding.sample})"
    return f"{finding.statistic}{'' if finding.count else span}{paper}"
