"""Holm's procedure over the claims of a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inexact_muon_lab.statistics.verdicts import PValues


@dataclass(frozen=True)
class ClaimPValues:
    """The p-values of one claim, one pair per body of evidence (study and oracle family)."""

    claim: str
    parts: tuple[PValues, ...]


def holm(members: Sequence[ClaimPValues], size: int = 0) -> dict[str, tuple[PValues, ...]]:
    """Adjusted p-values: comparing them with LEVEL bounds the probability of any wrong verdict in the family by ALPHA.

    Holm's procedure with weights: the m claims have equal shares of the error rate, and the n bodies of evidence of a
    claim divide its share. Bodies are sorted by n p; each p is multiplied by n and by the shares of the bodies not yet
    passed, and the adjusted values are made monotone.

    Args:
        members: the claims with their p-values.
        size: m, if more claims than these were declared.
    """
    remaining = float(max(size, len(members)))
    adjusted: dict[tuple[str, int], PValues] = {}
    floor = 0.0
    bodies = [(one.claim, k, p, len(one.parts)) for one in members for k, p in enumerate(one.parts)]
    for claim, k, p, n in sorted(bodies, key=lambda body: body[3] * body[2].least):
        confirm, refute = (min(1.0, max(floor, remaining * n * value)) for value in (p.confirm, p.refute))
        adjusted[claim, k] = PValues(confirm, refute)
        floor = min(confirm, refute)
        remaining -= 1.0 / n
    return {one.claim: tuple(adjusted[one.claim, k] for k in range(len(one.parts))) for one in members}
