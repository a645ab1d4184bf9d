"""A weighted sum of the iterates of a composition: a map close to s^p from polynomials alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from inexact_muon.schedules.extrema import extrema
from inexact_muon.schedules.scalar_map import Array, Schedule

POINTS, ROUNDS = 2000, 200
"""Points of the fit, and its rounds of reweighting."""
FINE = 20_000
"""Points between which extrema are searched: far more than five quintics have."""


@dataclass(frozen=True)
class Blend(Schedule):
    """f = sum_k w_k x_k with x_0 = s and x_k = p_k(x_(k-1)); direct form only, in which the x_k are at hand."""

    @property
    def gram_dtypes(self) -> tuple[str, ...]:
        return ()

    def runs_gram(self, n: int, m: int, dtype: str, form: str) -> bool:
        """Never: in Gram space every segment would need a further rectangular product."""
        return False

    @property
    def slope(self) -> float:
        """f'(0) = sum_k w_k x_k'(0)."""
        return float(np.cumprod([1.0, *(step[0] for step in self.coefficients)]) @ self.weights)

    def scalar(self, s: ArrayLike) -> Array:
        return sum((w * x for w, x in zip(self.weights, self.iterates(s), strict=True)), np.zeros(()))

    def image(self, low: float, high: float) -> tuple[float, float]:
        values = self.scalar(np.concatenate(([low, high], extrema(self.scalar, low, high, FINE))))
        return float(values.min()), float(values.max())


@lru_cache(maxsize=256)
def blend(schedule: Schedule, power: float) -> Blend:
    """The weights with the smallest max |f(s)/s^power - 1| on [lower, 1], by Lawson's reweighted least squares."""
    s = np.geomspace(schedule.lower, 1.0, POINTS)
    basis = np.stack(schedule.iterates(s), axis=1) / s[:, None] ** power
    density, least, best = np.ones(POINTS), np.inf, basis[0]
    for _ in range(ROUNDS):
        root = np.sqrt(density)
        weights = np.linalg.lstsq(basis * root[:, None], root, rcond=None)[0]
        error = np.abs(basis @ weights - 1.0)
        if error.max() < least:
            least, best = error.max(), weights
        density *= error
        density /= density.mean()
    blended = basis @ best
    weights = best * 2.0 / (blended.min() + blended.max())
    source = f"{schedule.source}, iterates weighted for s^{power:g}"
    return Blend(schedule.lower, source, schedule.coefficients, schedule.safety, tuple(map(float, weights)))
