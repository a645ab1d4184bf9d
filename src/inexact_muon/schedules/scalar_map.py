"""Scalar maps: compositions of odd polynomials, and maps that are applied to a singular value decomposition.

A map holds its coefficients, the interval that they were designed for and their source. Its error is computed from the
coefficients and never looked up by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import inf

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inexact_muon.schedules.prices import Operation, pair, square_products

Array = NDArray[np.float64]

FORMS = ("auto", "direct", "gram")
GROWTH = {3: 5.2, 5: 8.5, 7: 17.9, 9: 45.2}
"""Degree -> sum of absolute (shifted) coefficients of a steep minimax polynomial."""

MARGIN = {"float64": 2.0**-40, "float32": 2.0**-14}
"""Dtype -> what products may raise a singular value by, relatively: a thousand roundings and more. They were seen to
make at most 40, for equal entries, and 10 for equal singular values, of 2048 x 2048 matrices."""


EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
"""Dtype -> machine epsilon, the distance from 1 to the next number."""

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


@dataclass(frozen=True)
class ScalarMap(ABC):
    """An odd function f with f(s) close to 1 on [lower, 1].

    Attributes:
        lower: lower end of the design interval of normalised singular values (0: not stated).
    """

    lower: float
    source: str

    @abstractmethod
    def scalar(self, s: ArrayLike) -> Array:
        """f(s), elementwise, for singular values s of the normalised matrix."""

    @abstractmethod
    def image(self, low: float, high: float) -> tuple[float, float]:
        """(min f, max f) over [low, high], from the critical points of f, not from a grid."""

    def error_bound(self, lower: float) -> float:
        """max |1 - f(s)| over [lower, 1]: the delta of Assumption 1 if no singular value is smaller.

        Args:
            lower: smallest singular value divided by the method's own normaliser, in (0, 1].
        """
        if not 0.0 < lower <= 1.0:
            raise ValueError(f"lower must lie in (0, 1], got {lower}")
        low, high = self.image(lower, 1.0)
        return max(1.0 - low, high - 1.0, 0.0)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Compute dtypes in which the map is numerically stable."""
        return tuple(EPS)

    def computes_in(self, dtype: str | None) -> str:
        """The dtype of the operations if this one is requested."""
        return dtype or "float32"

    @property
    def gram_dtypes(self) -> tuple[str, ...]:
        """Compute dtypes in which the Gram form is stable."""
        return tuple(EPS)

    def for_form(self, dtype: str, form: str) -> str:
        """The dtype itself, or the next one in which the requested form is stable."""
        return next(d for d in (dtype, "float16", "float32") if form != "gram" or d in self.gram_dtypes)

    def operations(self, n: int, m: int, dtype: str = "float32", form: str = "auto") -> tuple[Operation, ...]:
        """Operations to apply the map to an n x m matrix, n <= m."""
        raise NotImplementedError(
            f"{type(self).__name__} has no operation count: define operations or flops of its oracle"
        )


@dataclass(frozen=True)
class Schedule(ScalarMap):
    """p_T o ... o p_1 with p_t(s) = c_0 s + c_1 s^3 + ... + c_q s^(2q+1).

    Attributes:
        coefficients: one tuple (c_0, ..., c_q) per step.
        safety: factor by which a singular value may exceed 1 through rounding; inf if no step is minimax.
        weights: of s and of the value after each step, in a `Blend`; empty for the value after the last step.
    """

    coefficients: tuple[tuple[float, ...], ...]
    safety: float = inf
    weights: tuple[float, ...] = ()

    @property
    def degrees(self) -> list[int]:
        """Degree of each step."""
        return [2 * len(step) - 1 for step in self.coefficients]

    @cached_property
    def dtypes(self) -> tuple[str, ...]:
        """Dtypes whose rounding error is within the safety factor; beyond it the next step would amplify the error.

        Rounding in a step changes singular values by about 0.3 eps times `GROWTH`.
        """
        growth = max(GROWTH.get(degree, inf) for degree in self.degrees)
        return tuple(d for d, eps in EPS.items() if d in FULL or self.safety >= 1.0 + 0.15 * growth * eps)

    def runs_gram(self, n: int, m: int, dtype: str, form: str) -> bool:
        """Whether n x m matrices use the Gram form: for form auto if m/n > 1.5 and it is stable in the dtype.

        In float32 and float64 the two forms agree within 2e-3 and 1e-9; in float16 the Gram form adds at most 0.015 to
        the overshoot of a method with a bound below 0.15; in bfloat16 it is unstable.
        """
        if form == "auto":
            wide = max(n, m) > GRAM_ASPECT * min(n, m) and len(self.coefficients) > 1
            return wide and dtype in self.gram_dtypes
        return form == "gram"

    @cached_property
    def gram_dtypes(self) -> tuple[str, ...]:
        first = self.coefficients[:-1:2]  # the first step of each segment of two
        stable = all(abs(step[0]) <= GENTLE for step in first) and max(self.overshoots) <= OVERSHOOT
        return (*FULL, "float16") if stable else FULL

    def operations(self, n: int, m: int, dtype: str = "float32", form: str = "auto") -> tuple[Operation, ...]:
        """A pair of products per segment and h(R) of each step.

        R <- h(R) R h(R) and Q <- Q h(R) are three more between two steps of the Gram form.
        """
        steps = len(self.coefficients)
        segments = 1 + len(restarts(steps, dtype)) if self.runs_gram(n, m, dtype, form) else steps
        count = sum(map(square_products, self.degrees)) + 3 * (steps - segments)
        return *pair(n, m, segments, dtype), Operation("symmetric", n, n, n, count, dtype)

    @cached_property
    def ends(self) -> tuple[float, ...]:
        """Upper bound on the singular values before each step, and after the last, if they start in [0, 1]."""
        bounds = [1.0]
        for step in self.coefficients:
            low, high = polynomial_image(step, 0.0, bounds[-1])
            bounds.append(max(high, -low))
        return tuple(bounds)

    def margins(self, dtype: str, gram: bool = False) -> tuple[float, ...]:
        """Relative excess of its interval that each step is computed for, where the safety factor does not cover it.

        Without a safety factor it is `MARGIN` of the dtype; in float16 and `gram` form, after a restart, it is the
        `overshoots` of the segment before. Schedules without minimax steps do not need one.
        """
        steps, margin = len(self.coefficients), MARGIN.get(dtype, 0.0)
        each = [0.0] + [margin if self.safety < 1.0 + margin else 0.0] * (steps - 1)
        if gram and dtype == "float16":
            for at, overshoot in zip(restarts(steps, dtype), self.overshoots, strict=False):
                each[at] = max(0.0, (1.0 + overshoot) / self.safety - 1.0)
        return tuple(each)

    def guarded(self, dtype: str, gram: bool = False) -> Schedule:
        """The schedule that is computed: p_t(s/(1 + margin_t)).

        A minimax polynomial diverges above its interval, and the steps of a composition without a safety factor
        multiply a rounding error there by 1e5. Each step lowers the smallest singular values by its margin.
        """
        margins = self.margins(dtype, gram)
        if not any(margins):
            return self
        pairs = zip(self.coefficients, margins, strict=True)
        shrunk = (tuple(c / (1.0 + margin) ** (2 * k + 1) for k, c in enumerate(step)) for step, margin in pairs)
        return replace(self, coefficients=tuple(shrunk))

    @cached_property
    def overshoots(self) -> tuple[float, ...]:
        """By how much each segment in float16 can exceed the interval of the next step, relatively.

        X is multiplied by h_1(R) h_2(R_2), where R_2 = h_1(R) R h_1(R) should be the square of x = s h_1(s^2), but
        carries two roundings of R, of ||E|| <= 2 u U^2 on singular values up to U, and those of two products:

            |R_2 - x^2| <= e = 2 u U^2 h_1^2 + u (max|h_1| max|r h_1(r)| + U_2^2),    x h_2(x^2 +- e), not p_2(x)
        """
        steps, ends, result, u = self.coefficients, self.ends, [], 0.5 * EPS["float16"]
        polynomial = np.polynomial.polynomial.polyval
        for low, high in pairwise((0, *restarts(len(steps), "float16"), len(steps))):
            s = np.linspace(0.0, ends[low], 4001)
            x, e = s, np.zeros_like(s)
            if high - low == 2:
                h = polynomial(s * s, steps[low])
                e = u * (2.0 * (ends[low] * h) ** 2 + np.abs(h).max() * np.abs(s * s * h).max() + ends[low + 1] ** 2)
                x = s * h
            reached = max(float(np.abs(x * polynomial(x * x + t * e, steps[high - 1])).max()) for t in (-1, 0, 1))
            result.append(max(0.0, reached / ends[high] - 1.0) if ends[high] > 0.0 else 0.0)
        return tuple(result)

    @property
    def slope(self) -> float:
        """f'(0), the gain of the smallest singular values (and of rounding noise)."""
        return float(np.prod([step[0] for step in self.coefficients]))

    def iterates(self, s: ArrayLike) -> list[Array]:
        """s, p_1(s), p_2(p_1(s)), ..., elementwise."""
        values = [np.asarray(s, dtype=np.float64)]
        for step in self.coefficients:
            values.append(values[-1] * np.polynomial.polynomial.polyval(values[-1] ** 2, step))
        return values

    def scalar(self, s: ArrayLike) -> Array:
        return self.iterates(s)[-1]

    def image(self, low: float, high: float) -> tuple[float, float]:
        # A continuous map takes intervals to intervals, so the range of the composition follows step by step, exactly.
        for step in self.coefficients:
            low, high = polynomial_image(step, low, high)
        return low, high


@dataclass(frozen=True)
class ByDecomposition(ScalarMap):
    """A map that is not computed by an iteration, but applied to a singular value decomposition."""

    @property
    def dtypes(self) -> tuple[str, ...]:
        return FULL

    def computes_in(self, dtype: str | None) -> str:
        return dtype or "float64"

    def operations(self, n: int, m: int, dtype: str = "float64", form: str = "auto") -> tuple[Operation, ...]:
        """Golub and Van Loan's count for U, S, V by R-SVD, 6 m n^2 + 20 n^3, and the product U V^T."""
        parts = Operation("decomposition", n, n, m, 3, dtype), Operation("decomposition", n, n, n, 10, dtype)
        return *parts, Operation("product", n, m, n, 1, dtype)


@dataclass(frozen=True)
class Exact(ByDecomposition):
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
    # A double root is computed as a complex pair, hence the tolerance; additional points of the interval do no harm.
    squares = roots.real[(np.abs(roots.imag) <= 1e-5 * np.abs(roots.real)) & (roots.real > 0.0)]
    candidates = np.concatenate((np.sqrt(squares), -np.sqrt(squares)))
    points = np.concatenate(([low, high], candidates[(candidates > low) & (candidates < high)]))
    values = points * np.polynomial.polynomial.polyval(points * points, step)
    return float(values.min()), float(values.max())
