"""The mean over seeds: t intervals, tests against a threshold or margin, and sample size."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, inf, isinf, sqrt
from typing import TypeVar

from scipy.special import stdtr, stdtrit

from inexact_muon_lab.statistics.verdicts import ALPHA, FALSE, LEVEL, OPEN, TRUE, PValues

POWER = 0.8
"""Power at the detectable difference."""
ROUNDING = 1e-12
"""Relative rounding error of a value; differences below it are zero."""
SAME = 1e-6
"""Values whose deviation is at most this times the largest are one value up to rounding."""
Key = TypeVar("Key", int, str)


@dataclass(frozen=True)
class Interval:
    """Mean of n values with its 95 % t interval; infinitely wide if the spread is unknown.

    Attributes:
        spread: the standard deviation of one value (the noise floor).
        freedom: degrees of freedom of the spread.
        counted: a number that is known, not a sample.
        open_below: further values are missing that would be lower than these: the mean may be lower than `low`.
        open_above: the same above.
    """

    mean: float
    low: float
    high: float
    n: int
    spread: float = inf
    freedom: int = 0
    counted: bool = False
    open_below: bool = False
    open_above: bool = False

    @property
    def identical(self) -> bool:
        """All values are the same: a sample without spread says nothing about the spread of further values."""
        return self.n >= 2 and self.spread == 0.0 and not self.counted

    def censored(self, below: bool, above: bool) -> Interval:
        """The interval if values are missing that would lie below (or above) the others; nothing is decided there."""
        return replace(self, open_below=self.open_below or below, open_above=self.open_above or above)

    @cached_property
    def error(self) -> float:
        """Standard error of the mean."""
        return self.spread / sqrt(self.n) if self.n else inf

    @property
    def detectable(self) -> float:
        """The smallest difference that this many values detect with 80 % power, at the level of the interval."""
        if isinf(self.error) or self.error == 0.0:
            return inf
        return float(stdtrit(self.freedom, 1 - LEVEL) + stdtrit(self.freedom, POWER)) * self.error

    def above(self, threshold: float = 0.0) -> PValues:
        """Superiority: the mean is above a threshold (Student's t)."""
        if self.counted:
            return TRUE if self.mean > threshold else FALSE
        if isinf(self.error) or self.error == 0.0:
            return OPEN
        t = (self.mean - threshold) / self.error
        confirm = 1.0 if self.open_below else float(stdtr(self.freedom, -t))
        return PValues(confirm, 1.0 if self.open_above else float(stdtr(self.freedom, t)))

    def below(self, threshold: float = 0.0) -> PValues:
        turned = Interval(-self.mean, -self.high, -self.low, self.n, self.spread, self.freedom, self.counted)
        return turned.censored(self.open_above, self.open_below).above(-threshold)

    def no_worse(self, margin: float) -> PValues:
        """The mean is below a margin, at 5 %; smaller is better.

        Only one kind of error is possible (worse or not), so the test may use all of ALPHA. `confirm` is scaled because
        it is compared with LEVEL = ALPHA/2.
        """
        p = self.below(margin)
        return PValues(p.confirm * LEVEL / ALPHA, p.refute)


def interval(
    values: Mapping[int, float] | Mapping[str, float] | Sequence[float],
    pilot: Collection[int] = (),
    grain: float = 0.0,
) -> Interval:
    """mean +- t(n-1) s/sqrt(n); with pilot seeds Stein's interval: s and the degrees of freedom are those of the pilot.

    Its level is exact although the number of seeds was chosen after the pilot, provided that it depends on the pilot's
    spread only (`seeds_needed`).

    Args:
        values: by seed (or target), or a list.
        pilot: the seeds of the pilot.
        grain: the resolution of a count: rounding alone has the deviation grain/sqrt(12), a lower bound on s.
    """
    sample = list(values.values()) if isinstance(values, Mapping) else list(values)
    known = [v for seed, v in values.items() if seed in pilot] if pilot and isinstance(values, Mapping) else sample
    if not sample:
        return Interval(0.0, -inf, inf, 0)
    mean = sum(sample) / len(sample)
    if len(known) < 2:
        return Interval(mean, -inf, inf, len(sample))
    s, freedom = max(spread(known), grain / sqrt(12.0)), len(known) - 1
    if s <= SAME * max(map(abs, known)):
        s = 0.0
    half = float(stdtrit(freedom, 1 - LEVEL)) * s / sqrt(len(sample))
    return Interval(mean, mean - half, mean + half, len(sample), s, freedom)


def seeds_needed(spread: float, pilot: int, half_width: float, level: float = LEVEL) -> int:
    """Stein's two-stage rule: max(n0, ceil((t(n0-1) s/h)^2)) seeds give mean +- h at a one-sided level.

    Args:
        spread: standard deviation s of the pilot's values, the only statistic of the pilot that is used.
        pilot: n0, its number of seeds.
        half_width: h.
        level: one-sided.
    """
    if pilot < 2:
        raise ValueError(f"a pilot needs at least 2 seeds, got {pilot}")
    if half_width <= 0.0:
        raise ValueError(f"the half-width must be positive, got {half_width:g}")
    return max(pilot, ceil((float(stdtrit(pilot - 1, 1 - level)) * spread / half_width) ** 2))


def spread(values: Sequence[float]) -> float:
    """The standard deviation with n - 1; 0 for fewer than two values."""
    mean = sum(values) / max(1, len(values))
    return sqrt(sum([(v - mean) ** 2 for v in values]) / max(1, len(values) - 1))


def known_value(value: float, n: int) -> Interval:
    """A known count, out of n."""
    return Interval(float(value), float(value), float(value), n, 0.0, counted=True)


def paired(first: Mapping[Key, float], second: Mapping[Key, float]) -> dict[Key, float]:
    """first - second for the seeds (or targets) that both have; zero if they are equal up to rounding."""
    return {key: difference(first[key], second[key]) for key in first if key in second}


def difference(a: float, b: float) -> float:
    """a - b, or 0 if they are equal up to rounding: ties must not look like tiny effects of one sign."""
    return 0.0 if abs(a - b) <= ROUNDING * max(abs(a), abs(b)) else a - b


def quantile(values: Sequence[float], q: float) -> float:
    """Linear interpolation between order statistics."""
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])
