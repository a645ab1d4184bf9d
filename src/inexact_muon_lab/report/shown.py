"""What the page, its Markdown version and the terminal say, from the evidence and its verdicts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from inexact_muon_lab.report.advice import advice
from inexact_muon_lab.report.arms import comparisons, unmatched
from inexact_muon_lab.report.claims import SENTENCES, Judged, tally
from inexact_muon_lab.report.declarations import sentences
from inexact_muon_lab.report.figure import Figure
from inexact_muon_lab.report.load import Results
from inexact_muon_lab.report.open_costs import costs, cut


@dataclass
class Shown:
    """All that is said.

    Attributes:
        judged: the claims on the runs of the folder.
        reference: the reference evidence beside them, if any; `reference_judged` are the claims on it.
        command_line: the command that made the folder, if known.
        page: the file, once it is written.
        studies: all studies, own ones first.
        title: the study's own title, or the question that several studies answer.
        counted: the claims that are counted: those that the studies declare, or without a declaration those with data.
        boards: (whose runs, {verdict: number of claims}); each adds up to the number of counted claims.
        arms: the comparisons of arms that studies declare.
        problems: what could not be read or compared.
        advice: what to use, by own runs.
        cut: studies with unfinished runs.
        costs: {claim: what an undecided one would need}.
        sections: figures by section, in order.
    """

    results: Results
    judged: list[Judged]
    figures: list[Figure]
    reference: Results | None = None
    reference_judged: list[Judged] = field(default_factory=list)
    command_line: str = ""
    page: Path = Path()

    def __post_init__(self) -> None:
        evidence = [results for results in (self.results, self.reference) if results]
        self.studies = [study for results in evidence for study in results.studies]
        own = self.results.studies
        self.title = own[0].title if len(own) == 1 else "What precise orthogonalisation buys in Muon"
        self.declared = [line for study in self.studies for line in sentences(study)]
        self.arms = [one for results in evidence for one in comparisons(results)]
        self.problems = [line for results in evidence for line in results.tables.problems]
        self.problems += [line for study in self.studies for line in unmatched(study)]
        # of other versions' stores a family may name claims that are gone
        self.counted = self.results.family & SENTENCES.keys()
        self.counted = self.counted or {item.claim.id for item in self.judged if item.finding.statistic}
        self.boards = [("Your runs", tally(self.judged, self.counted))]
        if any(item.finding.statistic for item in self.reference_judged):
            self.boards.append(("Reference evidence", tally(self.reference_judged, self.counted)))
        self.advice = advice(self.results)
        self.cut = cut(self.results)
        self.costs = costs(self.results, self.judged)
        self.unfinished = [*self.cut, *(f"{SENTENCES[name]}: {price}" for name, price in self.costs.items())]
        self.sections: dict[str, list[Figure]] = {}
        for figure in self.figures:
            self.sections.setdefault(figure.section, []).append(figure)
