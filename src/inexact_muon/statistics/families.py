"""Holm's procedure over the claims of a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inexact_muon.statistics.verdicts import PValues


@dataclass(frozen=True)
class ClaimPValues:
    """The p-values of one claim, one pair per body of evidence (study and oracle family)."""

    claim: str
    parts: tuple[PValues, ...]


def holm(members: Sequence[ClaimPValues], size: int = 0) -> dict[str, tuple[PValues, ...]]:
    """Adjusted p-values: comparing them with LEVEL bounds the probability of any wrong verdict in the family by ALPHA.

    A claim's p is its smallest, times its number of bodies (Bonferroni). Claims are sorted by p; the k-th is multiplied
    by m - k + 1, and the adjusted values are made monotone.

    Args:
        members: the claims with their p-values.
        size: m, if more claims than these were declared.
    """
    m = max(size, len(members))
    ordered = sorted(members, key=_least)
    adjusted: dict[str, tuple[PValues, ...]] = {}
    floor = 0.0
    for k, member in enumerate(ordered):
        factor = (m - k) * len(member.parts)
        adjusted[member.claim] = tuple(
            PValues(*(min(1.0, max(floor, factor * value)) for value in (p.confirm, p.refute))) for p in member.parts
        )
        floor = max(floor, min(1.0, (m - k) * _least(member)))
    return adjusted


def _least(member: ClaimPValues) -> float:
    return len(member.parts) * min(p.least for p in member.parts)
