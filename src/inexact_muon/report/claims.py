"""The paper's claims, each with what the stored runs say. No verdict is written down anywhere: all are computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from inexact_muon.report import grid_claims as grid
from inexact_muon.report import ladder_claims as ladder
from inexact_muon.report.finding import Finding
from inexact_muon.report.load import Results
from inexact_muon.report.series import Grid, Ladder, grids, ladders
from inexact_muon.report.statistics import CONFIRMED, REFUTED, UNDECIDED, Verdict, interval


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, where it stands, which runs speak to it, and the function that judges them."""

    id: str
    sentence: str
    where: str
    study: str
    """The study that gives the data, below studies/tiny, small or paper."""
    images: bool | None
    """Judged on image problems, on the others, or (None) on both."""
    by_ladder: Callable[[Ladder], Finding] | None = None
    by_grid: Callable[[Grid], Finding] | None = None


CLAIMS = (
    Claim("lower-loss", "More iterations give a lower loss", "Figure 1a, Table 1", "gpt-iterations", False,
          ladder.lower_loss),
    Claim("first-steps", "The biggest gain is from one to three iterations", "Table 1", "gpt-iterations", False,
          ladder.first_steps),
    Claim("saturates", "The gain saturates after about five iterations", "Figure 3a, Table 1", "gpt-iterations", False,
          ladder.saturates),
    Claim("time", "Training time grows slightly with iterations", "Figure 3b, Table 1", "gpt-iterations", False,
          ladder.time_grows),
    Claim("lr-moves", "The best step size moves down with inexactness", "Figure 1b, Corollary 3", "gpt-heatmap", False,
          by_grid=grid.lr_moves_down),
    Claim("alpha-moves", "The best momentum weight moves up with inexactness", "Corollary 3", "gpt-heatmap", False,
          by_grid=grid.alpha_moves_up),
    Claim("region", "The stable region widens with precision", "Figure 1b", "gpt-heatmap", False,
          by_grid=grid.region_widens),
    Claim("error-ordered", "The LMO error falls with every iteration", "Figure 4", "gpt-iterations", None,
          ladder.error_ordered),
    Claim("error-constant", "The LMO error is roughly constant in training", "Figure 4", "gpt-iterations", None,
          ladder.error_constant),
    Claim("cnn-loss", "Image training loss falls with precision", "Figure 2a", "cnn-iterations", True,
          ladder.lower_loss),
    Claim("best-accuracy", "The best accuracy rises with precision", "Figure 2b", "cnn-steps", True,
          by_grid=grid.best_accuracy_rises),
    Claim("accuracy-gap", "The gap between best and worst accuracy shrinks", "Figure 2b", "cnn-steps", True,
          by_grid=grid.gap_shrinks),
    Claim("bounds", "Gap and overshoot stay within the bounds that delta gives", "Assumption 1", "gpt-iterations", None,
          ladder.bounds_hold),
)  # fmt: skip


@dataclass(frozen=True)
class Judged:
    """A claim on one body of evidence."""

    claim: Claim
    finding: Finding


def judge(results: Results) -> list[Judged]:
    """Every claim on every ladder or grid that speaks to it; at least one row for each claim."""
    rungs, planes = ladders(results), [g for g in grids(results) if len(g.cells) >= 2]
    judged: list[Judged] = []
    for claim in CLAIMS:
        found: list[Finding] = []
        if claim.by_ladder is not None:
            found += [claim.by_ladder(s) for s in rungs if claim.images in (None, s.images)]
        if claim.by_grid is not None:
            found += [claim.by_grid(s) for s in planes if claim.images in (None, s.images)]
        told = [finding for finding in found if finding.statistic] or found[:1] or [_nothing(claim)]
        judged += [Judged(claim, finding) for finding in told]
    return judged


def overall(judged: list[Judged]) -> dict[str, Verdict]:
    """One verdict a claim: refuted if any evidence refutes it, else confirmed if any confirms it."""
    found: dict[str, Verdict] = {}
    for item in judged:
        verdicts = (found.get(item.claim.id, UNDECIDED), item.finding.verdict)
        found[item.claim.id] = REFUTED if REFUTED in verdicts else CONFIRMED if CONFIRMED in verdicts else UNDECIDED
    return found


def findings(judged: list[Judged], count: int = 3) -> list[Judged]:
    """The most important, one a claim: refuted before confirmed before undecided, else in the order of the claims."""
    ranks: dict[Verdict, int] = {REFUTED: 0, CONFIRMED: 1, UNDECIDED: 2}
    chosen: dict[str, Judged] = {}
    for item in sorted(judged, key=lambda j: ranks[j.finding.verdict]):
        if item.finding.statistic:
            chosen.setdefault(item.claim.id, item)
    return list(chosen.values())[:count]


def _nothing(claim: Claim) -> Finding:
    return Finding("no runs", "", interval([]), UNDECIDED, f"inexact-muon sweep studies/tiny/{claim.study}.toml")
