"""From a few seeds to a verdict: mean, 95 % t interval, and three possible answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Literal

from scipy.special import stdtrit

Verdict = Literal["confirmed", "not confirmed", "not enough data at this size"]
CONFIRMED: Verdict = "confirmed"
REFUTED: Verdict = "not confirmed"
UNDECIDED: Verdict = "not enough data at this size"
LEVEL = 0.95


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
    deviation = sqrt(sum((v - mean) ** 2 for v in values) / (n - 1))
    half = float(stdtrit(n - 1, 0.5 + LEVEL / 2)) * deviation / sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def both(*verdicts: Verdict) -> Verdict:
    """Confirmed if all are; refuted if one is."""
    if REFUTED in verdicts:
        return REFUTED
    return UNDECIDED if UNDECIDED in verdicts else CONFIRMED


def paired(first: dict[int, float], second: dict[int, float]) -> list[float]:
    """first - second for the seeds that both have."""
    return [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]


def quantile(values: Sequence[float], q: float) -> float:
    """Linear interpolation between order statistics."""
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
