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
    """

    delta: float
    gap: float
    overshoot: float
    lifted: float


def judge(scalar_map: ScalarMap, singular_values: ArrayLike, normalise: str = "frobenius") -> Judgement:
    """Inexactness of a map on a spectrum, in exact arithmetic. Zero singular values count for `lifted` only.

    Args:
        singular_values: in any order and scale.
        normalise: the upper bound on the largest one by which the method divides.
    """
    values = np.asarray(singular_values, dtype=np.float64)
    s = values[values > 0.0]
    return judge_rows(scalar_map, s.reshape(1, -1), values.size, normalise)[0]


def judge_rows(scalar_map: ScalarMap, spectra: Array, size: int, normalise: str) -> list[Judgement]:
    """Inexactness on each row of positive singular values, of matrices with `size` singular directions."""
    if spectra.size == 0:
        raise ValueError("singular_values has no positive entry: at least one is needed")
    f = scalar_map.scalar(spectra / np.expand_dims(normaliser(spectra, normalise), -1))
    error, length = np.abs(1.0 - f), np.abs(f)
    gap = 1.0 - (spectra * f).sum(-1) / spectra.sum(-1)
    columns = error.max(-1), gap, length.max(-1), (f >= HALF).sum(-1) / size
    return [Judgement(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def normaliser(singular_values: Array, normalise: str) -> Array | float:
    """Schatten norm of a spectrum, or of each row: frobenius (p = 2), schatten4 or spectral (the largest singular
    value)."""
    top = singular_values.max(-1)
    if normalise == "spectral":
        return top
    power = {"frobenius": 2, "schatten4": 4}[normalise]
    return top * ((singular_values / np.expand_dims(top, -1)) ** power).sum(-1) ** (1.0 / power)


NORMALISERS = ("frobenius", "schatten4")
"""Upper bounds on the largest singular value: ||X||_F, and ||X X^T||_F^(1/2), which comes free with the Gram matrix."""
