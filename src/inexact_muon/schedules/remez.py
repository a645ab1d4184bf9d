"""Best odd polynomial approximation of 1 on an interval of positive numbers, by the Remez exchange algorithm."""

from __future__ import annotations

from functools import lru_cache
from math import comb

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial


def taylor(degree: int) -> tuple[float, ...]:
    """Classical Newton-Schulz: s * sum_k binom(2k,k)/4^k (1-s^2)^k, as coefficients of s, s^3, ...

    It is the limit of the minimax polynomial on [l, u] as l/u -> 1, after dividing s by the centre.
    """
    one_minus_y = Polynomial([1.0, -1.0])
    terms = (comb(2 * k, k) / 4.0**k * one_minus_y**k for k in range(_half_degree(degree) + 1))
    h = sum(terms, Polynomial([0.0]))
    return tuple(float(c) for c in h.coef)


@lru_cache(maxsize=4096)  # compositions with equal first steps share them
def minimax(degree: int, lower: float, upper: float = 1.0) -> tuple[tuple[float, ...], float]:
    """The odd polynomial p of this degree that minimises E = max |1 - p(s)| over [lower, upper].

    Unique, and characterised by q+2 points lower = x_0 < ... < x_{q+1} = upper, degree = 2q+1, with
    1 - p(x_i) = (-1)^i E (Amsel et al., Polar Express, arXiv 2505.16932, section 3).

    Returns:
        coefficients of s, s^3, ..., s^degree, and E.
    """
    q = _half_degree(degree)
    if not 0.0 < lower <= upper:
        raise ValueError(f"need 0 < lower <= upper, got [{lower}, {upper}]")
    half_width = (upper - lower) / (upper + lower)
    if half_width ** (q + 1) < 1e-14:  # the linear system of the exchange would be singular up to rounding
        centre = 0.5 * (lower + upper)
        error = comb(2 * q + 2, q + 1) / 2.0 ** (2 * q + 1) * half_width ** (q + 1)
        return tuple(c / centre ** (2 * k + 1) for k, c in enumerate(taylor(degree))), error
    return _exchange(q, lower / upper, upper)


def _exchange(q: int, lower: float, upper: float) -> tuple[tuple[float, ...], float]:
    """Remez exchange on [lower, 1] in the basis s T_k(mapped s^2), then rescaled to [lower*upper, upper]."""
    domain = [lower**2, 1.0]
    y = Chebyshev.identity(domain=domain)
    x = lower + (1.0 - lower) * 0.5 * (1.0 - np.cos(np.pi * np.arange(q + 2) / (q + 1)))
    signs = (-1.0) ** np.arange(q + 2)
    error = 0.0
    for _ in range(100):
        mapped = (2.0 * x**2 - (1.0 + lower**2)) / (1.0 - lower**2)
        basis = x[:, None] * np.polynomial.chebyshev.chebvander(mapped, q)
        *coefficients, new_error = np.linalg.solve(np.column_stack((basis, signs)), np.ones(q + 2))
        h = Chebyshev(coefficients, domain=domain)
        critical = np.sort((h + 2.0 * y * h.deriv()).roots().real)
        x = np.concatenate(([lower], np.sqrt(np.clip(critical, lower**2, 1.0)), [1.0]))
        if abs(new_error - error) < 1e-15:
            break
        error = float(new_error)
    power = h.convert(domain=[-1, 1], kind=Polynomial, window=[-1, 1]).coef
    return tuple(float(c) / upper ** (2 * k + 1) for k, c in enumerate(power)), error


def _half_degree(degree: int) -> int:
    if degree % 2 == 0 or not 3 <= degree <= 13:
        raise ValueError(f"degree must be odd and between 3 and 13, got {degree}")
    return (degree - 1) // 2
