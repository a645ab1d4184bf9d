"""Inexactness of a scalar map on a spectrum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from inexact_muon.schedules.scalar_map import Array, ScalarMap

HALF = 0.5
"""A singular direction counts as lifted if the oracle makes it at least this long."""


@dataclass(frozen=True)
class Judgement:
    """delta = max |1-f(s)|, gap = 1 - <s, f(s)>/sum s, overshoot = max |f(s)| over the spectrum.

    lifted is the share of all singular directions, null ones included, with f(s) >= 1/2.
    rms, the root of the mean of (1-f(s))^2, is the Frobenius distance to the exact polar factor over the square root of
    the rank: all singular directions have the same weight, however small s is.
    """

    delta: float
    gap: float
    overshoot: float
    rms: float
    lifted: float


def judge(scalar_map: ScalarMap, singular_values: ArrayLike, normalise: str = "frobenius") -> Judgement:
    """Inexactness of a map on a spectrum, in exact arithmetic. Zero singular values count for `lifted` only.

    Args:
        singular_values: in any order and scale.
        normalise: the upper bound on the largest one by which the method divides.
    """
    values = np.asarray(singular_values, dtype=np.float64)
    s = values[values > 0.0]
    if s.size == 0:
        raise ValueError("singular_values has no positive entry: at least one is needed")
    f = scalar_map.scalar(s / normaliser(s, normalise))
    return Judgement(
        delta=float(np.abs(1.0 - f).max()),
        gap=float(1.0 - (s * f).sum() / s.sum()),
        overshoot=float(np.abs(f).max()),
        rms=float(np.sqrt(np.mean((1.0 - f) ** 2))),
        lifted=float((f >= HALF).sum() / values.size),
    )


def normaliser(singular_values: Array, normalise: str) -> float:
    """Schatten norm of a spectrum: frobenius (p = 2), schatten4 or spectral (the largest singular value)."""
    top = float(singular_values.max())
    if normalise == "spectral":
        return top
    power = {"frobenius": 2, "schatten4": 4}[normalise]
    return top * float(((singular_values / top) ** power).sum()) ** (1.0 / power)


NORMALISERS = ("frobenius", "schatten4")
"""Upper bounds on the largest singular value: ||X||_F, and ||X X^T||_F^(1/2), which comes free with the Gram matrix."""
