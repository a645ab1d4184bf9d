"""Inexactness of a scalar map on a given spectrum: delta, gap and overshoot, without a matrix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from inexact_muon.schedules.scalar_map import Array, ScalarMap


@dataclass(frozen=True)
class Judgement:
    """delta = max |1-f(s)|, gap = 1 - <s, f(s)>/sum s, overshoot = max |f(s)| over the spectrum.

    rms, the root of the mean of (1-f(s))^2, is the Frobenius distance to the exact polar factor over the square root of
    the rank: all singular directions have the same weight, however small s is.
    """

    delta: float
    gap: float
    overshoot: float
    rms: float

    @classmethod
    def of(cls, s: Array, f: Array) -> Judgement:
        """From positive singular values s and the values f(s)."""
        return cls(
            delta=float(np.abs(1.0 - f).max()),
            gap=float(1.0 - (s * f).sum() / s.sum()),
            overshoot=float(np.abs(f).max()),
            rms=float(np.sqrt(np.mean((1.0 - f) ** 2))),
        )


def judge(scalar_map: ScalarMap, singular_values: ArrayLike, normalise: str = "frobenius") -> Judgement:
    """Inexactness of a map on a spectrum, in exact arithmetic. Zero singular values are ignored.

    Args:
        singular_values: in any order and scale.
        normalise: the upper bound on the largest one by which the method divides.
    """
    s = np.asarray(singular_values, dtype=np.float64)
    s = s[s > 0.0]
    if s.size == 0:
        raise ValueError("singular_values has no positive entry: at least one is needed")
    return Judgement.of(s, scalar_map.scalar(s / normaliser(s, normalise)))


def normaliser(singular_values: Array, normalise: str) -> float:
    """Schatten norm of a spectrum: frobenius (p = 2), schatten4, schatten8 or spectral (the largest singular value).

    Raises:
        ValueError: gershgorin and tightest, which depend on more than the spectrum.
    """
    top = float(singular_values.max())
    if normalise == "spectral":
        return top
    power = {"frobenius": 2, "schatten4": 4, "schatten8": 8}.get(normalise)
    if power is None:
        raise ValueError(f"normalise={normalise} depends on more than the spectrum; measure a matrix instead")
    return top * float(((singular_values / top) ** power).sum()) ** (1.0 / power)
