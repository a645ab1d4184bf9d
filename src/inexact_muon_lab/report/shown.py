"""What the page, its Markdown version and the terminal say, from the evidence and its verdicts."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from inexact_muon_lab.report.advice import advice
from inexact_muon_lab.report.arms import Comparison, comparisons, unmatched
from inexact_muon_lab.report.claims import SENTENCES, Judged, tally
from inexact_muon_lab.report.declarations import sentences
from inexact_muon_lab.report.figure import Figure
from inexact_muon_lab.report.load import Results, StudyRecord
from inexact_muon_lab.report.open_costs import costs, cut
from inexact_muon_lab.statistics import Verdict


@dataclass(frozen=True)
class Shown:
    """All that is said.

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

    @property
    def title(self) -> str:
        """The study's own title, or the question that several studies answer."""
        studies = self.results.studies
        return studies[0].title if len(studies) == 1 else "What precise orthogonalisation buys in Muon"

    @cached_property
    def counted(self) -> set[str]:
        """Claims that are counted: those that the studies declare, or without a declaration those that have data."""
        # of other versions' stores a family may name claims that are gone
        declared = self.results.family & SENTENCES.keys()
        return declared or {item.claim.id for item in self.judged if item.finding.statistic}

    @property
    def boards(self) -> list[tuple[str, dict[Verdict, int]]]:
        """(whose runs, {verdict: number of claims}); each adds up to the number of counted claims."""
        boards = [("Your runs", tally(self.judged, self.counted))]
        if any(item.finding.statistic for item in self.reference_judged):
            boards.append(("Reference evidence", tally(self.reference_judged, self.counted)))
        return boards

    @property
    def evidence(self) -> list[Results]:
        """Own results and, if there are any, those of reference evidence."""
        return [results for results in (self.results, self.reference) if results]

    @property
    def studies(self) -> list[StudyRecord]:
        """All studies, own ones first."""
        return [study for results in self.evidence for study in results.studies]

    @property
    def declared(self) -> list[str]:
        """What studies declare."""
        return [line for study in self.studies for line in sentences(study)]

    @cached_property
    def arms(self) -> list[Comparison]:
        """The comparisons of arms that studies declare."""
        return [one for results in self.evidence for one in comparisons(results)]

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

    @property
    def sections(self) -> list[tuple[str, list[Figure]]]:
        """Figures by section, in order."""
        by_section: dict[str, list[Figure]] = {}
        for figure in self.figures:
            by_section.setdefault(figure.section, []).append(figure)
        return list(by_section.items())
