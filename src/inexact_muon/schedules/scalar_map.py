"""The kinds of scalar map: composed odd polynomials, a rational function, the two in turn, the exact sign.

A map is one object: numbers, the interval it was designed for and where the numbers come from. Its
error is computed from the numbers and never looked up by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ScalarMap(ABC):
    """An odd function f with f(s) close to 1 on [lower, 1].

    Attributes:
        lower: smallest normalised singular value the map was designed for (0: none was stated).
        source: where the numbers come from.
    """

    lower: float
    source: str

    @abstractmethod
    def scalar(self, s: ArrayLike) -> Array:
        """f(s), elementwise, for singular values s of the normalised matrix."""

    @abstractmethod
    def image(self, low: float, high: float) -> tuple[float, float]:
        """(min f, max f) over [low, high], from the critical points of f and not from a grid."""

    def error_bound(self, lower: float) -> float:
        """max |1 - f(s)| over [lower, 1]: the delta of Assumption 1 if no singular value is smaller.

        Args:
            lower: smallest singular value divided by the method's own normaliser, in (0, 1].
        """
        if not 0.0 < lower <= 1.0:
            raise ValueError(f"lower must lie in (0, 1], got {lower}")
        low, high = self.image(lower, 1.0)
        return max(1.0 - low, high - 1.0, 0.0)


@dataclass(frozen=True)
class Schedule(ScalarMap):
    """p_T o ... o p_1 with p_t(s) = c_0 s + c_1 s^3 + ... + c_q s^(2q+1).

    Attributes:
        coefficients: one tuple (c_0, ..., c_q) per step.
    """

    coefficients: tuple[tuple[float, ...], ...]

    @cached_property
    def uppers(self) -> tuple[float, ...]:
        """What bounds the singular values before each step when they start in [0, 1]."""
        bounds, high = [], 1.0
        for step in self.coefficients:
            bounds.append(high)
            low, high = polynomial_image(step, 0.0, high)
            high = max(high, -low)
        return tuple(bounds)

    @property
    def slope(self) -> float:
        """f'(0), the gain of the smallest singular values (and of rounding noise)."""
        return float(np.prod([step[0] for step in self.coefficients]))

    def scalar(self, s: ArrayLike) -> Array:
        x = np.asarray(s, dtype=np.float64)
        for step in self.coefficients:
            x = x * np.polynomial.polynomial.polyval(x * x, step)
        return x

    def image(self, low: float, high: float) -> tuple[float, float]:
        # The image of an interval under a continuous map is an interval, so going step by step
        # through (min, max) gives the range of the composition exactly.
        for step in self.coefficients:
            low, high = polynomial_image(step, low, high)
        return low, high


@dataclass(frozen=True)
class Rational(ScalarMap):
    """f(s) = scale * s * (1 + sum_j residue_j / (s^2 + pole_j)).

    Attributes:
        extrema: the critical points of f in (0, 1), which for a Zolotarev function are known.
    """

    scale: float
    poles: tuple[float, ...]
    residues: tuple[float, ...]
    extrema: tuple[float, ...]

    def scalar(self, s: ArrayLike) -> Array:
        x = np.asarray(s, dtype=np.float64)
        y = np.ones_like(x)
        for pole, residue in zip(self.poles, self.residues, strict=True):
            y = y + residue / (x * x + pole)
        return self.scale * x * y

    def image(self, low: float, high: float) -> tuple[float, float]:
        points = [low, high, *(x for x in self.extrema if low < x < high)]
        values = self.scalar(points)
        return float(values.min()), float(values.max())


@dataclass(frozen=True)
class Polished(ScalarMap):
    """p(f(s)): an odd polynomial after a rational function.

    Attributes:
        step: coefficients (c_0, ..., c_q) of p.
    """

    rational: Rational
    step: tuple[float, ...]

    def scalar(self, s: ArrayLike) -> Array:
        x = self.rational.scalar(s)
        return x * np.polynomial.polynomial.polyval(x * x, self.step)

    def image(self, low: float, high: float) -> tuple[float, float]:
        return polynomial_image(self.step, *self.rational.image(low, high))


@dataclass(frozen=True)
class Exact(ScalarMap):
    """The sign function: 1 on every positive singular value, 0 at zero."""

    lower: float = 0.0
    source: str = "singular value decomposition"

    def scalar(self, s: ArrayLike) -> Array:
        return np.sign(np.asarray(s, dtype=np.float64))

    def image(self, low: float, high: float) -> tuple[float, float]:
        return float(np.sign(low)), float(np.sign(high))


def polynomial_image(step: tuple[float, ...], low: float, high: float) -> tuple[float, float]:
    """Range of one odd polynomial over [low, high]; s h(s^2) has derivative h(y) + 2 y h'(y)."""
    derivative = [(2 * k + 1) * c for k, c in enumerate(step)]
    roots = np.polynomial.polynomial.polyroots(np.trim_zeros(derivative, "b"))
    # A double root (a flat spot) comes out as a complex pair: a little slack keeps it, and a
    # point that is not critical does no harm to a minimum over points of the interval.
    squares = roots.real[(np.abs(roots.imag) <= 1e-5 * np.abs(roots.real)) & (roots.real > 0.0)]
    candidates = np.concatenate((np.sqrt(squares), -np.sqrt(squares)))
    points = np.concatenate(([low, high], candidates[(candidates > low) & (candidates < high)]))
    values = points * np.polynomial.polynomial.polyval(points * points, step)
    return float(values.min()), float(values.max())
