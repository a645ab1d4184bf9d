"""Claims of the paper and of this project, judged by the data. All verdicts are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from math import log2
from typing import Any, Literal

from inexact_muon_lab.report import bound_ratios, paper, rule_regrets, sources
from inexact_muon_lab.report import grid_claims as grid
from inexact_muon_lab.report import ladder_claims as ladder
from inexact_muon_lab.report.declarations import planned, promised
from inexact_muon_lab.report.finding import COUNT, LOG2_RATIO, LOG_RATIO, LOSS, RATIO, SHARE, Finding, Unit, unknown
from inexact_muon_lab.report.ladders import Series, grids, ladders
from inexact_muon_lab.report.load import Results
from inexact_muon_lab.statistics import CONFIRMED, OPEN, REFUTED, UNDECIDED, PValues, Verdict, holm


@dataclass(frozen=True)
class Claim:
    """A sentence with its source, the evidence it is judged on, and the function that judges it.

    Attributes:
        on: kind of evidence.
        source: command that produces the data.
        images: judged on image problems, on the others, or (None) on both.
        unit: of the statistic.
        paper: the statistic of the paper's own numbers, if it prints them.
    """

    id: str
    sentence: str
    where: str
    judge: Callable[[Any], Finding]
    on: Literal["ladder", "grid", "theory", "cotuning"]
    source: str
    images: bool | None = None
    unit: Unit = LOSS
    paper: float | None = None


_losses = partial(Claim, on="ladder", source=sources.GPT_ITERATIONS, images=False)
_errors = partial(Claim, on="ladder", source=sources.GPT_ITERATIONS)
_maps = partial(Claim, on="grid", source=sources.GPT_HEATMAP, images=False)
_accuracies = partial(Claim, on="grid", source=sources.CNN_STEPS, images=True, unit=SHARE)
_rules = partial(Claim, on="cotuning", source=sources.COTUNING)
CLAIMS = (
    _losses("lower-loss", "More iterations give a lower loss", "Figure 1a, Table 1", ladder.lower_loss,
            paper=paper.GAIN[8]),
    _losses("first-steps", "The biggest gain is from one to three iterations", "Table 1", ladder.first_steps,
            paper=paper.GAIN[3] - 0.5 * paper.GAIN[8]),
    _losses("saturates", "The gain saturates after about five iterations", "Figure 3a, Table 1", ladder.saturates,
            paper=paper.GAIN[5] - 0.9 * paper.GAIN[8]),
    _losses("goes-on", "From five iterations to eight the loss goes on falling", "Table 1", ladder.goes_on,
            paper=paper.GAIN[8] - paper.GAIN[5]),
    _losses("time", "Training time grows slightly with iterations", "Figure 3b, Table 1", ladder.time_grows,
            unit=RATIO, paper=paper.MINUTES[8] / paper.MINUTES[1]),
    _maps("lr-moves", "The best step size moves down with inexactness", "Figure 1b, Corollary 3", grid.lr_moves_down,
          unit=LOG2_RATIO, paper=log2(paper.LR_RATIO)),
    _maps("alpha-moves", "The best momentum weight moves up with inexactness", "Corollary 3", grid.alpha_moves_up,
          unit=LOG2_RATIO),
    _maps("region", "The stable region widens with precision", "Figure 1b", grid.region_widens, unit=SHARE),
    _maps("level-region", "More step sizes reach a common loss with precision", "Figure 1b", grid.region_at_one_loss,
          unit=SHARE),
    _errors("error-ordered", "The LMO error falls with every iteration", "Figure 4", ladder.error_ordered,
            unit=LOG_RATIO),
    _errors("error-constant", "The LMO error is roughly constant in training", "Figure 4", ladder.error_constant,
            unit=RATIO),
    Claim("cnn-loss", "Image training loss falls with precision", "Figure 2a", ladder.lower_loss, "ladder",
          sources.CNN_ITERATIONS, True),
    _accuracies("best-accuracy", "The best accuracy rises with precision", "Figure 2b", grid.best_accuracy_rises),
    _accuracies("accuracy-gap", "The gap between best and worst accuracy shrinks", "Figure 2b", grid.gap_shrinks),
    _accuracies("accuracy-region", "The region of high accuracy grows with precision", "Figure 5",
                grid.accuracy_region_grows),
    _errors("bounds", "Gap and overshoot stay within the bounds that delta gives", "Assumption 1",
            bound_ratios.bounds_hold, unit=COUNT),
    Claim("theory", "Every bound holds", "Theorems 1 to 7", bound_ratios.every_bound_holds, "theory", sources.THEORY,
          unit=COUNT),
    _rules("paper-rule", "The paper's rule beats keeping step size and momentum", "Corollary 3",
           rule_regrets.paper_beats_keep),
    _rules("some-rule", "Some rule has at most a third of the regret of keeping them", "not in the paper",
           rule_regrets.a_third_of_keep),
)  # fmt: skip

WITHDRAWN = 2
"""Claims (precision control, budgets over layers) that were judged on the reference evidence and removed since.

They stay in its family: a claim that is removed after looking must not decide the others.
"""
SENTENCES = {claim.id: claim.sentence for claim in CLAIMS}


@dataclass
class Judged:
    """A claim on one body of evidence.

    Attributes:
        finding: with the verdict for this claim alone.
        p: p-values after Holm's correction over the claims of the page; those of the finding if it is counted.
        series: the runs; None for tables and without data.
        study: of the runs; empty for tables.
        tested: part of the correction: not if counted, with fewer than two seeds, or not testable.
        verdict: after the correction, which may leave a claim undecided but never reverses it.
    """

    claim: Claim
    finding: Finding
    p: PValues
    series: Series | None = None

    def __post_init__(self) -> None:
        self.study = self.series.study if self.series else ""
        self.tested = not self.finding.count and self.finding.testable and self.finding.interval.n >= 2
        corrected = self.p.verdict()
        against = corrected == CONFIRMED and self.finding.verdict == REFUTED
        self.verdict: Verdict = UNDECIDED if against else corrected

    @property
    def changed(self) -> str:
        """A sentence if the correction changed the verdict; else empty."""
        if self.verdict == self.finding.verdict:
            return ""
        p = self.finding.p.refute if self.finding.verdict == REFUTED else self.finding.p.confirm
        return f"{self.finding.verdict} by itself (p {p:.2g}), not among the claims of this page"

    @property
    def notes(self) -> list[str]:
        """The claim's own note, the effect of the correction, noise and detectable difference: those that there are."""
        return [line for line in (self.finding.note, self.changed, self.finding.noise) if line]

    @property
    def record(self) -> dict[str, Any]:
        """Verdict and numbers as plain data, in the units of the statistic."""
        finding = self.finding
        mean = finding.interval.mean if finding.statistic else None
        numbers = {"mean": mean, "low": finding.interval.low, "high": finding.interval.high}
        return {"claim": self.claim.id, "verdict": self.verdict, "statistic": finding.statistic, **numbers}


def judge(results: Results, withdrawn: int = 0) -> list[Judged]:
    """Judge every claim on all matching evidence; at least one row per claim.

    The results are one family. Reference evidence is a separate call, since it existed before these runs.

    Args:
        withdrawn: claims of this family that were removed after they had been judged.
    """
    bodies: dict[str, Iterable[Any]] = {
        "ladder": ladders(results),
        "grid": [g for g in grids(results, momenta=1) if len(g.cells) >= 2],
        "theory": results.tables.theory,
        "cotuning": results.tables.cotuning,
    }
    items: list[Judged] = []
    for claim in CLAIMS:
        rows = []
        for body in bodies[claim.on]:
            if claim.images is None or claim.images == body.images:
                finding = claim.judge(body)
                rows.append(Judged(claim, finding, finding.p, body if isinstance(body, Series) else None))
        if not rows:
            rows = [Judged(claim, unknown("no data", claim.source), OPEN)]
        items += [row for row in rows if row.finding.statistic] or rows[:1]
    for study in results.studies:
        if study.declared is not None:
            mine = [k for k, item in enumerate(items) if item.study == study.name]
            required = [promised(items[k].finding, study.declared, items[k].claim.id) or 0 for k in mine]
            most = max([len(study.declared.pilot), *required])
            for k in mine:
                finding = planned(items[k].finding, study.declared, items[k].claim.id, most)
                items[k] = replace(items[k], finding=finding, p=finding.p)
    tested: dict[str, list[int]] = {}
    for k, item in enumerate(items):
        if item.tested:
            tested.setdefault(item.claim.id, []).append(k)
    members = {name: [items[k].p for k in rows] for name, rows in tested.items()}
    for name, adjusted in holm(members, max(len(results.family), len(members) + withdrawn)).items():
        for k, p in zip(tested[name], adjusted, strict=True):
            items[k] = replace(items[k], p=p)
    return items


def overall(judged: Iterable[Judged]) -> dict[str, Verdict]:
    """One verdict per claim: refuted if any evidence refutes it, else confirmed if any confirms it."""
    verdicts: dict[str, Verdict] = {}
    for item in judged:
        known = (verdicts.get(item.claim.id, UNDECIDED), item.verdict)
        verdicts[item.claim.id] = REFUTED if REFUTED in known else CONFIRMED if CONFIRMED in known else UNDECIDED
    return verdicts


def tally(judged: list[Judged], counted: Iterable[str]) -> dict[Verdict, int]:
    """{verdict: number of these claims}; one without data is undecided, so that the numbers add up to theirs."""
    verdicts = overall(judged)
    counts = dict.fromkeys((CONFIRMED, REFUTED, UNDECIDED), 0)
    for name in counted:
        counts[verdicts.get(name, UNDECIDED)] += 1
    return counts


def deciding(judged: Iterable[Judged]) -> Judged | None:
    """Of the bodies of evidence of one claim that which decides it; the most telling one if it is open.

    Decided: the smallest p of those with the claim's verdict. Open: testable, optima inside of the grid, most seeds.
    """
    bodies = [item for item in judged if item.finding.statistic]
    verdict = next(iter(overall(bodies).values()), UNDECIDED)
    same = [item for item in bodies if item.verdict == verdict]
    if verdict == UNDECIDED:
        return max(same, key=lambda j: (j.finding.testable, not j.finding.on_edge, j.finding.interval.n), default=None)
    return min(same, key=lambda j: j.p.refute if verdict == REFUTED else j.p.confirm)


def findings(judged: list[Judged], count: int = 3) -> list[Judged]:
    """What decides the most important claims: refuted and confirmed in turn, then undecided, in the claims' order."""
    bodies: dict[str, list[Judged]] = {}
    for item in judged:
        bodies.setdefault(item.claim.id, []).append(item)
    chosen = [one for items in bodies.values() if (one := deciding(items)) is not None]
    refuted, confirmed, undecided = (
        [item for item in chosen if item.verdict == verdict] for verdict in (REFUTED, CONFIRMED, UNDECIDED)
    )
    alternating = [item for pair in zip_longest(refuted, confirmed) for item in pair if item]
    return [*alternating, *undecided][:count]
