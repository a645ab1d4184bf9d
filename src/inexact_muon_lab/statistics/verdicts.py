"""Three verdicts, the two p-values behind each, combinations, and Holm's procedure over the claims of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["confirmed", "not confirmed", "not enough data at this size"]
CONFIRMED: Verdict = "confirmed"
REFUTED: Verdict = "not confirmed"
UNDECIDED: Verdict = "not enough data at this size"
ALPHA = 0.05
"""Error rate of verdicts: per statement, or (after Holm) per page."""
LEVEL = ALPHA / 2
"""One-sided level of each of the two p-values."""


@dataclass(frozen=True)
class PValues:
    """One-sided p-values of a statement: of the data if it were false (`confirm`), and if it were true (`refute`).

    A small `confirm` confirms the statement, a small `refute` refutes it; if both are small it is refuted.
    """

    confirm: float
    refute: float

    @property
    def least(self) -> float:
        """The smaller of the two, by which Holm's procedure sorts."""
        return min(self.confirm, self.refute)

    def verdict(self, level: float = LEVEL) -> Verdict:
        if self.refute <= level:
            return REFUTED
        return CONFIRMED if self.confirm <= level else UNDECIDED


TRUE, FALSE, OPEN = PValues(0.0, 1.0), PValues(1.0, 0.0), PValues(1.0, 1.0)
"""Known to be true; known to be false; unknown."""


def negate(p: PValues) -> PValues:
    """The negation."""
    return PValues(p.refute, p.confirm)


def all_of(*parts: PValues) -> PValues:
    """All of k statements. Confirming takes the largest p; refuting takes k times the smallest (Bonferroni).

    Parts that are known to be true do not count among the k.
    """
    unsure = [part for part in parts if part != TRUE]
    if FALSE in unsure:
        return FALSE
    if not unsure:
        return TRUE
    return PValues(max(p.confirm for p in unsure), min(1.0, len(unsure) * min(p.refute for p in unsure)))


def any_of(*parts: PValues) -> PValues:
    """At least one of k statements."""
    return negate(all_of(*(negate(part) for part in parts)))


def holm(members: Mapping[str, Sequence[PValues]], size: int = 0) -> dict[str, list[PValues]]:
    """Adjusted p-values: comparing them with LEVEL bounds the probability of any wrong verdict in the family by ALPHA.

    Holm's procedure with weights: the m claims have equal shares of the error rate, and the n bodies of evidence of a
    claim divide its share. Bodies are sorted by n p; each p is multiplied by n and by the shares of the bodies not yet
    passed, and the adjusted values are made monotone.

    Args:
        members: {claim: the p-values of each body of evidence (study and oracle family)}.
        size: m, if more claims than these were declared.
    """
    remaining = float(max(size, len(members)))
    adjusted = {claim: list(parts) for claim, parts in members.items()}
    floor = 0.0
    bodies = [(len(parts), claim, k, p) for claim, parts in members.items() for k, p in enumerate(parts)]
    for n, claim, k, p in sorted(bodies, key=lambda body: body[0] * body[3].least):
        confirm, refute = (min(1.0, max(floor, remaining * n * value)) for value in (p.confirm, p.refute))
        adjusted[claim][k] = PValues(confirm, refute)
        floor = min(confirm, refute)
        remaining -= 1.0 / n
    return adjusted
