"""Claims of the paper and of this project, judged by the data. All verdicts are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from math import log2
from typing import Any, Literal

from inexact_muon_lab.report import bound_ratios, paper, rule_regrets, sources
from inexact_muon_lab.report import grid_claims as grid
from inexact_muon_lab.report import ladder_claims as ladder
from inexact_muon_lab.report.axes import COUNT, LOG2_RATIO, LOG_RATIO, LOSS, PLAIN_RATIO, SHARE, Unit
from inexact_muon_lab.report.declarations import planned, promised
from inexact_muon_lab.report.finding import Finding
from inexact_muon_lab.report.ladders import Series, grids, ladders
from inexact_muon_lab.report.load import Results
from inexact_muon_lab.spec.study import Decide
from inexact_muon_lab.statistics import (
    CONFIRMED,
    OPEN,
    REFUTED,
    UNDECIDED,
    ClaimPValues,
    PValues,
    Verdict,
    holm,
    interval,
)


@dataclass(frozen=True)
class Claim:
    """A sentence with its source, the evidence it is judged on, and the function that judges it."""

    id: str
    sentence: str
    where: str
    on: Literal["ladder", "grid", "theory", "cotuning"]
    """Kind of evidence."""
    judge: Callable[[Any], Finding]
    source: str
    """Command that produces the data."""
    images: bool | None = None
    """Judged on image problems, on the others, or (None) on both."""
    unit: Unit = LOSS
    """Of the statistic."""
    paper: float | None = None
    """The statistic of the paper's own numbers, if it prints them."""


CLAIMS = (
    Claim("lower-loss", "More iterations give a lower loss", "Figure 1a, Table 1", "ladder", ladder.lower_loss,
          sources.GPT_ITERATIONS, False, paper=paper.GAIN[8]),
    Claim("first-steps", "The biggest gain is from one to three iterations", "Table 1", "ladder", ladder.first_steps,
          sources.GPT_ITERATIONS, False, paper=paper.GAIN[3] - 0.5 * paper.GAIN[8]),
    Claim("saturates", "The gain saturates after about five iterations", "Figure 3a, Table 1", "ladder",
          ladder.saturates, sources.GPT_ITERATIONS, False, paper=paper.GAIN[5] - 0.9 * paper.GAIN[8]),
    Claim("goes-on", "From five iterations to eight the loss goes on falling", "Table 1", "ladder", ladder.goes_on,
          sources.GPT_ITERATIONS, False, paper=paper.GAIN[8] - paper.GAIN[5]),
    Claim("time", "Training time grows slightly with iterations", "Figure 3b, Table 1", "ladder", ladder.time_grows,
          sources.GPT_ITERATIONS, False, unit=PLAIN_RATIO, paper=paper.MINUTES[8] / paper.MINUTES[1]),
    Claim("lr-moves", "The best step size moves down with inexactness", "Figure 1b, Corollary 3", "grid",
          grid.lr_moves_down, sources.GPT_HEATMAP, False, unit=LOG2_RATIO, paper=log2(paper.LR_RATIO)),
    Claim("alpha-moves", "The best momentum weight moves up with inexactness", "Corollary 3", "grid",
          grid.alpha_moves_up, sources.GPT_HEATMAP, False, unit=LOG2_RATIO),
    Claim("region", "The stable region widens with precision", "Figure 1b", "grid", grid.region_widens,
          sources.GPT_HEATMAP, False, unit=SHARE),
    Claim("level-region", "More step sizes reach a common loss with precision", "Figure 1b", "grid",
          grid.region_at_one_loss, sources.GPT_HEATMAP, False, unit=SHARE),
    Claim("error-ordered", "The LMO error falls with every iteration", "Figure 4", "ladder", ladder.error_ordered,
          sources.GPT_ITERATIONS, unit=LOG_RATIO),
    Claim("error-constant", "The LMO error is roughly constant in training", "Figure 4", "ladder",
          ladder.error_constant, sources.GPT_ITERATIONS, unit=PLAIN_RATIO),
    Claim("cnn-loss", "Image training loss falls with precision", "Figure 2a", "ladder", ladder.lower_loss,
          sources.CNN_ITERATIONS, True),
    Claim("best-accuracy", "The best accuracy rises with precision", "Figure 2b", "grid", grid.best_accuracy_rises,
          sources.CNN_STEPS, True, unit=SHARE),
    Claim("accuracy-gap", "The gap between best and worst accuracy shrinks", "Figure 2b", "grid", grid.gap_shrinks,
          sources.CNN_STEPS, True, unit=SHARE),
    Claim("accuracy-region", "The region of high accuracy grows with precision", "Figure 5", "grid",
          grid.accuracy_region_grows, sources.CNN_STEPS, True, unit=SHARE),
    Claim("bounds", "Gap and overshoot stay within the bounds that delta gives", "Assumption 1", "ladder",
          ladder.bounds_hold, sources.GPT_ITERATIONS, unit=COUNT),
    Claim("theory", "Every bound holds", "Theorems 1 to 7", "theory", bound_ratios.every_bound_holds, sources.THEORY,
          unit=COUNT),
    Claim("paper-rule", "The paper's rule beats keeping step size and momentum", "Corollary 3", "cotuning",
          rule_regrets.paper_beats_keep, sources.COTUNING),
    Claim("some-rule", "Some rule has at most a third of the regret of keeping them", "not in the paper", "cotuning",
          rule_regrets.a_third_of_keep, sources.COTUNING),
)  # fmt: skip

WITHDRAWN = 2
"""Claims (precision control, budgets over layers) that were judged on the reference evidence and removed since.

They stay in its family: a claim that is removed after looking must not decide the others.
"""
SENTENCES = {claim.id: claim.sentence for claim in CLAIMS}


@dataclass(frozen=True)
class Judged:
    """A claim on one body of evidence.

    Attributes:
        finding: with the verdict for this claim alone.
        p: p-values after Holm's correction over the claims of the page; those of the finding if it is counted.
    """

    claim: Claim
    finding: Finding
    p: PValues
    study: str = ""
    """The study of the runs; empty for tables."""
    series: Series | None = None
    """The runs; None for tables and without data."""

    @property
    def tested(self) -> bool:
        """Whether it is part of the correction: not if counted, with fewer than two seeds, or not testable."""
        return not self.finding.counted and self.finding.testable and self.finding.interval.n >= 2

    @cached_property
    def verdict(self) -> Verdict:
        """The verdict after the correction, which may leave a claim undecided but never reverses it."""
        corrected = self.p.verdict()
        return UNDECIDED if corrected == CONFIRMED and self.finding.verdict == REFUTED else corrected

    @property
    def changed(self) -> str:
        """A sentence if the correction changed the verdict; else empty."""
        if self.verdict == self.finding.verdict:
            return ""
        p = self.finding.p.refute if self.finding.verdict == REFUTED else self.finding.p.confirm
        return f"{self.finding.verdict} by itself (p {p:.2g}), not among the claims of this page"

    @property
    def record(self) -> dict[str, Any]:
        """Verdict and numbers as plain data, in the units of the statistic."""
        finding = self.finding
        return {
            "claim": self.claim.id,
            "verdict": self.verdict,
            "statistic": finding.statistic,
            "mean": finding.interval.mean if finding.statistic else None,
            "low": finding.interval.low,
            "high": finding.interval.high,
        }


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
        about = [b for b in bodies[claim.on] if claim.images is None or claim.images == b.images]
        candidates = [_alone(claim, body) for body in about]
        items += [item for item in candidates if item.finding.statistic] or candidates[:1] or [_without_data(claim)]
    declared = {study.name: study.declared for study in results.studies if study.declared}
    items = _planned(items, declared)
    size = len({name for one in declared.values() for name in one.family})
    corrected = correct(items, size, withdrawn)
    return [replace(item, p=corrected.get(id(item.finding), item.p)) for item in items]


def _alone(claim: Claim, body: Any) -> Judged:
    """A claim on one body of evidence, without correction."""
    finding = claim.judge(body)
    return Judged(claim, finding, finding.p, *((body.study, body) if isinstance(body, Series) else ()))


def _without_data(claim: Claim) -> Judged:
    return Judged(claim, Finding("no data", "", interval([]), OPEN, claim.source), OPEN)


def _planned(items: list[Judged], declared: dict[str, Decide]) -> list[Judged]:
    """Each row, taking its study's declaration into account."""
    most = {name: len(one.pilot) for name, one in declared.items()}
    for item in items:
        if item.study in declared:
            required = promised(item.finding, declared[item.study], item.claim.id) or 0
            most[item.study] = max(most[item.study], required)
    judged = []
    for item in items:
        finding = item.finding
        if item.study in declared:
            finding = planned(finding, declared[item.study], item.claim.id, most[item.study])
        judged.append(replace(item, finding=finding, p=finding.p))
    return judged


def correct(judged: list[Judged], size: int = 0, withdrawn: int = 0) -> dict[int, PValues]:
    """Holm's correction over the tested claims.

    Args:
        judged: the rows of one family.
        size: number of declared claims, if larger.
        withdrawn: claims that were tested and removed since.
    """
    members: dict[str, list[Finding]] = {}
    for item in (item for item in judged if item.tested):
        members.setdefault(item.claim.id, []).append(item.finding)
    family = max(size, len(members) + withdrawn)
    adjusted = holm([ClaimPValues(name, tuple(f.p for f in bodies)) for name, bodies in members.items()], family)
    return {id(f): p for name, bodies in members.items() for f, p in zip(bodies, adjusted[name], strict=True)}


def overall(judged: list[Judged]) -> dict[str, Verdict]:
    """One verdict per claim: refuted if any evidence refutes it, else confirmed if any confirms it."""
    verdicts: dict[str, Verdict] = {}
    for item in judged:
        known = (verdicts.get(item.claim.id, UNDECIDED), item.verdict)
        verdicts[item.claim.id] = REFUTED if REFUTED in known else CONFIRMED if CONFIRMED in known else UNDECIDED
    return verdicts


def asked(results: Results, judged: list[Judged]) -> set[str]:
    """Claims that are counted: those that the studies declare, or without a declaration those that have data."""
    declared = {name for study in results.studies if study.declared for name in study.declared.family}
    return declared or {item.claim.id for item in judged if item.finding.statistic}


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
    if not bodies:
        return None
    verdict = overall(bodies)[bodies[0].claim.id]
    same = [item for item in bodies if item.verdict == verdict]
    if verdict == UNDECIDED:
        return max(same, key=lambda j: (j.finding.testable, not j.finding.on_edge, j.finding.interval.n))
    return min(same, key=lambda j: j.p.refute if verdict == REFUTED else j.p.confirm)


def findings(judged: list[Judged], count: int = 3) -> list[Judged]:
    """What decides the most important claims: refuted and confirmed in turn, then undecided, in the claims' order."""
    bodies: dict[str, list[Judged]] = {}
    for item in judged:
        bodies.setdefault(item.claim.id, []).append(item)
    chosen = [found for items in bodies.values() if (found := deciding(items)) is not None]
    refuted, confirmed, open_ = (
        [item for item in chosen if item.verdict == verdict] for verdict in (REFUTED, CONFIRMED, UNDECIDED)
    )
    in_turn = [item for pair in zip_longest(refuted, confirmed) for item in pair if item]
    return [*in_turn, *open_][:count]
