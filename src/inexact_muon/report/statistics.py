"""From a few seeds to a verdict: mean, 95 % t interval, and three possible answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Literal, TypeVar

from scipy.special import stdtrit

Verdict = Literal["confirmed", "not confirmed", "not enough data at this size"]
CONFIRMED: Verdict = "confirmed"
REFUTED: Verdict = "not confirmed"
UNDECIDED: Verdict = "not enough data at this size"
LEVEL = 0.95
Key = TypeVar("Key", int, str)


@dataclass(frozen=True)
class Interval:
    """Mean of n values and its 95 % t interval; infinitely wide for fewer than two."""

    mean: float
    low: float
    high: float
    n: int

    def above(self, threshold: float = 0.0) -> Verdict:
        """Whether the mean lies above a threshold, as far as the interval tells."""
        if self.n < 2:
            return UNDECIDED
        return CONFIRMED if self.low > threshold else REFUTED if self.high <= threshold else UNDECIDED

    def below(self, threshold: float = 0.0) -> Verdict:
        """Whether the mean lies below a threshold."""
        return Interval(-self.mean, -self.high, -self.low, self.n).above(-threshold)


def interval(values: Sequence[float]) -> Interval:
    """mean +- t(n-1) s/sqrt(n)."""
    n = len(values)
    if n == 0:
        return Interval(0.0, -inf, inf, 0)
    mean = sum(values) / n
    if n == 1:
        return Interval(mean, -inf, inf, 1)
    half = float(stdtrit(n - 1, 0.5 + LEVEL / 2)) * spread(values) / sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def spread(values: Sequence[float]) -> float:
    """The standard deviation with n - 1; 0 for fewer than two."""
    mean = sum(values) / max(1, len(values))
    return sqrt(sum((v - mean) ** 2 for v in values) / max(1, len(values) - 1))


def exactly(value: float, n: int) -> Interval:
    """A count that is known, of n."""
    return Interval(float(value), float(value), float(value), n)


def both(*verdicts: Verdict) -> Verdict:
    """Confirmed if all are; refuted if one is."""
    if REFUTED in verdicts:
        return REFUTED
    return UNDECIDED if UNDECIDED in verdicts else CONFIRMED


def deny(verdict: Verdict) -> Verdict:
    """The verdict on the contrary."""
    return {CONFIRMED: REFUTED, REFUTED: CONFIRMED}.get(verdict, UNDECIDED)


def some(*verdicts: Verdict) -> Verdict:
    """Confirmed if one is; refuted if all are."""
    return deny(both(*(deny(verdict) for verdict in verdicts)))


def paired(first: dict[Key, float], second: dict[Key, float]) -> list[float]:
    """first - second for the seeds (or targets) that both have."""
    return [first[key] - second[key] for key in first if key in second]


def quantile(values: Sequence[float], q: float) -> float:
    """Linear interpolation between order statistics."""
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
