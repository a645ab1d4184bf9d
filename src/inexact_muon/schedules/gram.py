"""The Gram form of a composition: where it restarts, and what the rounding of X X^T does to it in float16."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from inexact_muon.schedules.operations import EPS

FULL = ("float64", "float32")
"""Dtypes that have factorisations and in which the Gram form is stable."""

GRAM_ASPECT = 1.5
"""m/n above which the Gram form needs fewer products than the direct one, for every degree."""

GENTLE = 10.0
"""Maximum slope h(0) of the first of two steps in float16: negative eigenvalues of size h(0)^2 eps are at most 0.1."""

OVERSHOOT = 0.1
"""Maximum of `overshoots` for which float16 has a Gram form: that of the last segment is not made up for."""


def restarts(steps: int, dtype: str = "float32") -> tuple[int, ...]:
    """Steps after which the Gram form restarts: after the second, then after every third, or second in float16.

    In float16 a third step before the first restart would act on eigenvalues near -1 instead of 0 and diverge for some
    matrices (measured: overshoot up to 7e4 with a single restart after step 3, 1.0046 with this rule, six quintics).
    """
    return tuple(range(2, steps, 3 if dtype in FULL else 2))


def stable(coefficients: Sequence[Sequence[float]], each: Sequence[float]) -> bool:
    """Whether the Gram form is stable in float16; `each` are its `overshoots`."""
    first = coefficients[:-1:2]  # the first step of each segment of two
    return all(abs(step[0]) <= GENTLE for step in first) and max(each) <= OVERSHOOT


def overshoots(coefficients: Sequence[Sequence[float]], ends: Sequence[float]) -> tuple[float, ...]:
    """By how much each segment in float16 can exceed the interval of the next step, relatively.

    X is multiplied by h_1(R) h_2(R_2), where R_2 = h_1(R) R h_1(R) should be the square of x = s h_1(s^2), but carries
    two roundings of R, of ||E|| <= 2 u U^2 on singular values up to U, and those of two products:

        |R_2 - x^2| <= e = 2 u U^2 h_1^2 + u (max|h_1| max|r h_1(r)| + U_2^2),    x h_2(x^2 +- e) instead of p_2(x)

    Args:
        ends: upper bounds U on the singular values before each step and after the last.
    """
    steps, result, u = len(coefficients), [], 0.5 * EPS["float16"]
    polynomial = np.polynomial.polynomial.polyval
    for low, high in pairwise((0, *restarts(steps, "float16"), steps)):
        s = np.linspace(0.0, ends[low], 4001)
        x, e = s, np.zeros_like(s)
        if high - low == 2:
            h = polynomial(s * s, coefficients[low])
            e = u * (2.0 * (ends[low] * h) ** 2 + np.abs(h).max() * np.abs(s * s * h).max() + ends[low + 1] ** 2)
            x = s * h
        reached = max(float(np.abs(x * polynomial(x * x + t * e, coefficients[high - 1])).max()) for t in (-1, 0, 1))
        result.append(max(0.0, reached / ends[high] - 1.0) if ends[high] > 0.0 else 0.0)
    return tuple(result)
