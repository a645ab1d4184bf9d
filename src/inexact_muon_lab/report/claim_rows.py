"""Claims as the page shows them: rows of a forest plot by unit, the tally of verdicts, and the first sentences."""

from __future__ import annotations

from dataclasses import dataclass, field

from markupsafe import Markup

from inexact_muon_lab.report.arms import Comparison, comparisons, unmatched
from inexact_muon_lab.report.axes import PlotAxis
from inexact_muon_lab.report.claims import CLAIMS, Claim, Judged, asked, findings, overall, tally
from inexact_muon_lab.report.figure import Figure
from inexact_muon_lab.report.forest import forest, interval_text, numbers, strip
from inexact_muon_lab.report.load import Results, StudyRecord
from inexact_muon_lab.report.open_costs import costs
from inexact_muon_lab.statistics import Verdict

SENTENCES = 3
"""Findings at the top of the page."""


@dataclass(frozen=True)
class Shown:
    """The content of a page and of its Markdown version.

    Attributes:
        judged: the claims on the runs of the folder.
        reference: the reference evidence beside them, if any; `reference_judged` are the claims on it.
        command_line: the command that made the folder, if known.
    """

    results: Results
    judged: list[Judged]
    figures: list[Figure]
    reference: Results | None = None
    reference_judged: list[Judged] = field(default_factory=list)
    command_line: str = ""

    @property
    def counted(self) -> set[str]:
        """The claims that are counted, on own runs and on reference evidence alike."""
        return asked(self.results, self.judged)

    @property
    def comparisons(self) -> list[Comparison]:
        """The arms that studies declare, of both."""
        return [one for results in (self.results, self.reference) if results for one in comparisons(results)]

    @property
    def studies(self) -> list[StudyRecord]:
        """All studies, own ones first."""
        return [*self.results.studies, *(self.reference.studies if self.reference else ())]

    @property
    def problems(self) -> list[str]:
        """What could not be read or compared, of both."""
        read = [*self.results.tables.problems, *(self.reference.tables.problems if self.reference else ())]
        return [*read, *(line for study in self.studies for line in unmatched(study))]


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
    price, counted = costs(shown.results, shown.judged), shown.counted
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
                price.get(name, ""), name in counted,
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
    own = findings([item for item in shown.judged if item.claim.id in shown.counted], SENTENCES)
    known = {item.claim.id for item in own}
    others = [item for item in shown.reference_judged if item.claim.id not in known]
    return [(item, sentence(item)) for item in (*own, *findings(others, SENTENCES - len(own)))]


def sentence(item: Judged) -> str:
    """Statistic, interval with its unit, sample and the paper's value."""
    finding, unit = item.finding, item.claim.unit
    paper = "" if item.claim.paper is None else f"; the paper: {unit.text(item.claim.paper)}"
    interval = interval_text(item)
    span = f" ({interval}{unit.axis.unit}, {finding.sample})" if interval else f" ({finding.sample})"
    return f"{finding.statistic}{'' if finding.count else span}{paper}"
