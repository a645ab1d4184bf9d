"""Rational maps: Zolotarev's best approximation of the sign function in partial fractions, tilted or polished."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inexact_muon.schedules.design import check_power, extrema, minimax
from inexact_muon.schedules.prices import Operation, pair, square_products
from inexact_muon.schedules.scalar_map import EPS, FULL, Array, ScalarMap, polynomial_image

SMALLEST_SHIFT = 16.0
"""A shift below this many eps of the compute dtype is lost in the rounding of X X^T; float64 is used instead.

Rounding changes the result by about eps/(8 shift); see tests/test_accuracy.py.
"""


@dataclass(frozen=True)
class Rational(ScalarMap):
    """p(f(s)) with f(s) = scale * s * (1 + sum_j residue_j / (s^2 + pole_j)).

    Attributes:
        extrema: the critical points of f in (0, 1), which for a Zolotarev function are known.
        polish: coefficients (c_0, ..., c_q) of the odd polynomial p; empty if there is none.
    """

    scale: float
    poles: tuple[float, ...]
    residues: tuple[float, ...]
    extrema: tuple[float, ...]
    polish: tuple[float, ...] = ()

    @property
    def dtypes(self) -> tuple[str, ...]:
        return FULL

    def computes_in(self, dtype: str | None) -> str:
        dtype = dtype or "float32"
        return dtype if min(self.poles) >= SMALLEST_SHIFT * EPS[dtype] else "float64"

    def operations(self, n: int, m: int, dtype: str = "float32", form: str = "auto") -> tuple[Operation, ...]:
        """A pair of products and an inverse for each pole; for p the new Gram matrix, h of it and one more product."""
        parts = *pair(n, m, 1, dtype), Operation("inverse", n, n, n, len(self.poles), dtype)
        if not self.polish:
            return parts
        return *parts, Operation("symmetric", n, n, n, 2 + square_products(2 * len(self.polish) - 1), dtype)

    def unpolished(self, s: ArrayLike) -> Array:
        """f(s)."""
        x = np.asarray(s, dtype=np.float64)
        y = np.ones_like(x)
        for pole, residue in zip(self.poles, self.residues, strict=True):
            y = y + residue / (x * x + pole)
        return self.scale * x * y

    def scalar(self, s: ArrayLike) -> Array:
        x = self.unpolished(s)
        return x * np.polynomial.polynomial.polyval(x * x, self.polish) if self.polish else x

    def image(self, low: float, high: float) -> tuple[float, float]:
        values = self.unpolished([low, high, *(x for x in self.extrema if low < x < high)])
        ends = float(values.min()), float(values.max())
        return polynomial_image(self.polish, *ends) if self.polish else ends


def at_fractions(count: int, lower: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(sn/cn, dn) at i K/(count + 1), i = 1..count, for the parameter 1 - lower^2 (DLMF 22.20(ii)).

    a_0 = 1, b_0 = lower; phi_N = 2^N a_N u, sin(2 phi_(n-1) - phi_n) = c_n/a_n sin(phi_n), K = pi/(2 a_N). Beyond K/2
    cn is the small difference of large numbers: there sn/cn(K - u) = 1/(lower sn/cn(u)) and dn(K - u) = lower/dn(u).
    """
    a, b, ratios = 1.0, lower, list[float]()
    while not ratios or abs(ratios[-1]) > np.finfo(float).eps:
        ratios.append((a - b) / (a + b))  # c/a of the next pair
        a, b = (a + b) / 2.0, (a * b) ** 0.5
    first = np.arange(1, count // 2 + 1) / (count + 1)
    phi = upper = 2.0 ** len(ratios) * first * np.pi / 2.0
    for ratio in reversed(ratios):
        upper, phi = phi, (phi + np.arcsin(np.clip(ratio * np.sin(phi), -1.0, 1.0))) / 2.0
    tangent, dn = np.tan(phi), np.cos(phi) / np.cos(upper - phi)
    middle = count % 2  # at K/2: sn/cn = 1/sqrt(lower), dn = sqrt(lower)
    return (
        np.concatenate((tangent, [lower**-0.5] * middle, 1.0 / (lower * tangent[::-1]))),
        np.concatenate((dn, [lower**0.5] * middle, lower / dn[::-1])),
    )


def zolotarev(poles: int = 3, lower: float = 1e-3, *, polish: int = 0, power: float = 0.0) -> Rational:
    """The rational function of type (2r+1, 2r), r = poles, closest to 1 on [lower, 1]; then a polynomial, if asked.

    With K' = K(1 - l^2) and Jacobi functions of parameter 1 - l^2 (Zolotarev 1877; Nakatsukasa and
    Freund, SIAM Review 58, 2016, section 3):

        c_i  = l^2 sn^2(i K'/(2r+1)) / cn^2(i K'/(2r+1)),   i = 1..2r
        f(s) = scale * s * prod_j (s^2 + c_2j)/(s^2 + c_(2j-1)) = scale * s * (1 + sum_j a_j/(s^2 + c_(2j-1)))

    Its critical points are l / dn(i K'/(2r+1)); scale centres the image at 1.

    A polish is the minimax polynomial of this degree on the image of [lower, 1] under one pole: one pole leaves [0.40,
    1.60] of [1e-3, 1], from which degree 9 reaches 0.046 and two further poles 0.062. For `power` see `tilted`.
    """
    if polish not in (0, 3, 5, 7, 9):
        raise ValueError(f"zolotarev: polish must be 0, 3, 5, 7 or 9, got {polish}")
    if polish and poles != 1:
        raise ValueError(f"zolotarev: polish comes after one pole, got poles={poles}: leave one of the two out")
    power = check_power(power)
    if polish and power:
        raise ValueError(f"zolotarev: polish removes a tilt, got power={power:g}: leave one of the two out")
    if isinstance(poles, bool) or not isinstance(poles, int):
        raise TypeError(f"poles must be an integer, got {poles!r}")
    if not 1 <= poles <= 8:
        raise ValueError(f"poles must lie between 1 and 8, got {poles}")
    if not 1e-7 <= lower < 1.0:
        raise ValueError(f"lower must lie in [1e-7, 1) for a rational method, got {lower}")
    if not polish:
        return _rational(poles, lower, power)
    first = _rational(1, lower, 0.0)
    step, _ = minimax(polish, *first.image(lower, 1.0))
    return replace(first, source=f"{first.source}, then minimax of degree {polish}", polish=step)


@lru_cache(maxsize=256)
def _rational(count: int, lower: float, power: float) -> Rational:
    tangent, dn = at_fractions(2 * count, lower)
    c = (lower * tangent) ** 2
    poles, zeros, extrema, scale = c[0::2], c[1::2], lower / dn, 0.0
    source = f"Zolotarev, type ({2 * count + 1}, {2 * count})"
    if power:
        scale, zeros, poles, extrema = tilted(zeros, poles, extrema, lower, power)
        source = f"best approximation of s^{power:g}, type ({2 * count + 1}, {2 * count})"
    residues = [-np.prod(poles[j] - zeros) / np.prod(poles[j] - np.delete(poles, j)) for j in range(count)]
    parts = [tuple(map(float, part)) for part in (poles, residues, extrema)]
    low, high = Rational(lower, source, 1.0, *parts).image(lower, 1.0)
    return Rational(lower, source, scale or 2.0 / (low + high), *parts)


STRIDE = 0.05
"""Largest change of p from one exchange to the next, so that Newton's method starts close enough."""
POINTS = 20_000
"""Points of the grid on which extrema are bracketed."""
NEWTON = 12
"""Newton steps of an exchange at most: it starts close, and the next exchange goes on."""


def tilted(zeros: Array, poles: Array, extrema: Array, lower: float, power: float) -> tuple[float, Array, Array, Array]:
    """(scale, z, c, extrema) of the f with the smallest max |f(s)/s^power - 1| on [lower, 1].

    f(s) = scale * s * prod_j (s^2 + z_j)/(s^2 + c_j), j = 1..r. The best f has 2r+2 points at which f/s^power is
    alternately largest and smallest. Newton's method solves for log scale, log z_j, log c_j and h such that
    log(f/s^power) = +-h on given points, which then move to the critical points of f/s^power; scale finally centres its
    image at 1. Where r poles are more than the interval needs, the error is below rounding, its critical points are
    noise, and the last 2r+2 points that were found are kept.

    Args:
        zeros: z_j of the best function for power = 0, from which the power changes step by step.
        poles: c_j of it.
        extrema: its critical points in (lower, 1).
    """
    r = len(poles)
    x = np.concatenate(([lower], extrema, [1.0])) ** 2
    unknowns = np.concatenate(([0.0], np.log(zeros), np.log(poles), [0.0]))
    count = 1 + int(abs(power) / STRIDE)
    for step in range(1, count + 1):
        p = power * step / count
        for _ in range(50):
            before = unknowns[-1]
            unknowns = _levelled(unknowns, x, p)
            z, c = np.exp(unknowns[1 : r + 1]), np.exp(unknowns[r + 1 : -1])
            if len(points := _extrema(z, c, p, lower)) != 2 * r:
                break
            x = np.concatenate(([lower], points, [1.0])) ** 2
            if abs(unknowns[-1] - before) < 1e-13 + 1e-10 * abs(before):
                break
    scale = float(np.exp(unknowns[0]) / np.cosh(unknowns[-1]))
    # f rises up to the first point, because s^2 sum_j 1/c_j < 1/2 there; a negative power has a maximum below `lower`.
    return scale, z, c, _extrema(z, c, 0.0, float((2.0 / c).sum() ** -0.5))


def _levelled(unknowns: Array, x: Array, p: float) -> Array:
    """Newton's method for log(f/s^p) = +-h at s^2 = x, signs alternating."""
    r = len(x) // 2 - 1
    signs = (-1.0) ** np.arange(len(x))
    for _ in range(NEWTON):
        zeros, poles = np.exp(unknowns[1 : r + 1]), np.exp(unknowns[r + 1 : -1])
        up, down = x[:, None] + zeros, x[:, None] + poles
        value = unknowns[0] + np.log(up).sum(1) - np.log(down).sum(1) + 0.5 * (1.0 - p) * np.log(x)
        slopes = np.column_stack((np.ones_like(x), zeros / up, -poles / down, -signs))
        # Least squares: the rows are equal to rounding if the error is.
        move = np.linalg.lstsq(slopes, signs * unknowns[-1] - value, rcond=None)[0]
        unknowns = unknowns + move
        if np.abs(move).max() < 1e-13:
            break
    return unknowns


def _extrema(zeros: Array, poles: Array, p: float, lower: float) -> Array:
    """The extrema of s^(1-p) prod_j (s^2 + z_j)/(s^2 + c_j) in (lower, 1)."""

    def log_f(s: Array) -> Array:
        x = s[:, None] ** 2
        return (1.0 - p) * np.log(s) + (np.log(x + zeros) - np.log(x + poles)).sum(1)

    return extrema(log_f, lower, 1.0, POINTS)
