"""Matrix operations of an oracle by kind, shape and dtype; `prices` has their costs.

    product         a (rows x inner)(inner x cols) product: 2 rows cols inner flops
    symmetric       a product with a symmetric result, of which half is enough; counted in full
    inverse         of a positive definite matrix: a Cholesky factor (n^3/3) and its inverse (2 n^3/3)
    decomposition   a part of a singular value decomposition, by its flops

Terms of lower order (norms, additions) are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log
from typing import Literal

import numpy as np

Kind = Literal["product", "symmetric", "inverse", "decomposition"]

FLOPS: dict[Kind, int] = {"product": 2, "symmetric": 2, "inverse": 1, "decomposition": 2}
"""Flops per rows x cols x inner."""

EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
"""Dtype -> machine epsilon, the distance from 1 to the next number."""


@dataclass(frozen=True)
class Operation:
    """`count` operations of one kind; `rows` is the short side of the oracle's matrix."""

    kind: Kind
    rows: int
    cols: int
    inner: int
    count: float = 1
    dtype: str = "float32"

    @property
    def volume(self) -> float:
        """rows x cols x inner, times count."""
        return self.count * self.rows * self.cols * self.inner

    @property
    def flops(self) -> float:
        """Floating-point operations; an integer if count is an integer."""
        return FLOPS[self.kind] * self.volume


def square_products(degree: int) -> int:
    """Number of n x n products to compute h(A) from A, for an odd polynomial s h(s^2).

    Degree 9 needs as many as degree 7, by A^2 (c_2 I + c_3 A + c_4 A^2); from degree 11 on Horner in A^2.
    """
    return {3: 0, 5: 1, 7: 2, 9: 2}.get(degree, (degree + 1) // 4)


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


Curve = tuple[tuple[int, float], ...]
"""Points (n, cost)."""


def at(curve: Curve, n: int) -> float:
    """The curve at n: linear in log n between its points, constant outside."""
    return float(np.interp(log(n), [log(x) for x, _ in curve], [y for _, y in curve]))
