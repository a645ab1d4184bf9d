"""What a scalar map costs on a given spectrum: delta, gap and overshoot without a matrix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from inexact_muon.schedules.scalar_map import Array, ScalarMap


@dataclass(frozen=True)
class Judgement:
    """delta = max |1-f(s)|, gap = 1 - <s, f(s)>/sum s, overshoot = max f(s) over the spectrum.

    rms, the root of the mean of (1-f(s))^2, is the Frobenius distance to the exact answer over the square root of the
    rank: every singular direction counts alike, however small s is.
    """

    delta: float
    gap: float
    overshoot: float
    rms: float

    @classmethod
    def of(cls, s: Array, f: Array) -> Judgement:
        """From singular values, all positive, and what the map makes of each."""
        return cls(
            delta=float(np.abs(1.0 - f).max()),
            gap=float(1.0 - (s * f).sum() / s.sum()),
            overshoot=float(np.abs(f).max()),
            rms=float(np.sqrt(np.mean((1.0 - f) ** 2))),
        )


def judge(scalar_map: ScalarMap, singular_values: ArrayLike, normalise: str = "frobenius") -> Judgement:
    """Inexactness of a map on a spectrum, in exact arithmetic. Zero singular values do not count.

    Args:
        singular_values: in any order and scale.
        normalise: the bound on the largest one by which the method divides.
    """
    s = np.asarray(singular_values, dtype=np.float64)
    s = s[s > 0.0]
    if s.size == 0:
        raise ValueError("singular_values has no positive entry")
    return Judgement.of(s, scalar_map.scalar(s / normaliser(s, normalise)))


def normaliser(singular_values: Array, normalise: str) -> float:
    """The Schatten norm named: frobenius (2), schatten4, schatten8, spectral (the largest).

    Row sums (gershgorin, tightest) depend on more than the spectrum: a ValueError.
    """
    top = float(singular_values.max())
    if normalise == "spectral":
        return top
    powers = {"frobenius": 2, "schatten4": 4, "schatten8": 8}
    if normalise not in powers:
        raise ValueError(f"normalise={normalise} depends on more than the spectrum; measure a matrix instead")
    power = powers[normalise]
    return top * float(((singular_values / top) ** power).sum()) ** (1.0 / power)
