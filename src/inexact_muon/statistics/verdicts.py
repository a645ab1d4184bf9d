"""Three verdicts, the two p-values behind each, and how statements combine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["confirmed", "not confirmed", "not enough data at this size"]
CONFIRMED: Verdict = "confirmed"
REFUTED: Verdict = "not confirmed"
UNDECIDED: Verdict = "not enough data at this size"
ALPHA = 0.05
"""Rate of wrong verdicts: of one statement, or (after Holm) of a page that has any."""
LEVEL = ALPHA / 2
"""Each of the two p-values is compared with this."""


@dataclass(frozen=True)
class PValues:
    """How surprising the data would be if a statement were false, and if it were true; both one-sided.

    A small `confirm` confirms the statement, a small `refute` refutes it; if both are small it is refuted.
    """

    confirm: float
    refute: float

    @property
    def least(self) -> float:
        """The smaller of the two: what Holm's procedure orders by."""
        return min(self.confirm, self.refute)

    def verdict(self, level: float = LEVEL) -> Verdict:
        """The verdict at a one-sided level."""
        if self.refute <= level:
            return REFUTED
        return CONFIRMED if self.confirm <= level else UNDECIDED


TRUE, FALSE, OPEN = PValues(0.0, 1.0), PValues(1.0, 0.0), PValues(1.0, 1.0)
"""Known to be true; known to be false; nothing is known."""


def deny(p: PValues) -> PValues:
    """The contrary."""
    return PValues(p.refute, p.confirm)


def both(*parts: PValues) -> PValues:
    """All of k statements. Confirming takes the largest p; refuting one of k takes k times the smallest (Bonferroni).

    Parts that are known to be true do not count among the k.
    """
    unsure = [part for part in parts if part != TRUE]
    if FALSE in unsure:
        return FALSE
    if not unsure:
        return TRUE
    return PValues(max(p.confirm for p in unsure), min(1.0, len(unsure) * min(p.refute for p in unsure)))


def some(*parts: PValues) -> PValues:
    """At least one of k statements: the contrary of all of their contraries."""
    return deny(both(*(deny(part) for part in parts)))
