"""Design of schedules: the best odd polynomial on an interval, and compositions: Newton-Schulz, CANS, Polar Express."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial
from numpy.typing import ArrayLike

from inexact_muon.schedules.scalar_map import Array, Schedule, polynomial_image


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


THIRDS = 80
"""Steps of the ternary search; each keeps two thirds of an interval."""


def extrema(f: Callable[[Array], Array], low: float, high: float, points: int) -> Array:
    """Interior local extrema s of f on [low, high], ascending; `points` must be enough to separate them."""
    grid = np.linspace(np.log(low), np.log(high), points)
    values = f(np.exp(grid))
    rise = np.diff(values)
    turns = 1 + np.flatnonzero(rise[:-1] * rise[1:] <= 0.0)
    signs = np.where(values[turns] >= values[turns - 1], 1.0, -1.0)
    start, end = grid[turns - 1], grid[turns + 1]
    for _ in range(THIRDS):
        x, y = start + (end - start) / 3.0, end - (end - start) / 3.0
        first = signs * f(np.exp(x)) < signs * f(np.exp(y))
        start, end = np.where(first, x, start), np.where(first, end, y)
    return np.clip(np.exp(0.5 * (start + end)), low, high)


CUSHION = 0.02407327424182761
"""The ratio l/u at which the best quintic maps [l, u] to an interval of ratio 1/10 (its E is 9/11)."""

MOST_STEPS = 64
"""Maximum number of steps. Newton-Schulz of degree 3, the slowest composition, raises 1e-9 to 1 in 56 steps."""


def newton_schulz(steps: int = 5, degree: int = 5) -> Schedule:
    """The Taylor polynomial of this degree, repeated: order (degree+1)/2, slope 1.5 to 2.5 per step."""
    check_steps(steps)
    if degree not in (3, 5, 7, 9):
        raise ValueError(f"newton-schulz: degree must be 3, 5, 7 or 9, got {degree}")
    return Schedule(0.0, f"Taylor, degree {degree}", (taylor(degree),) * steps)


def polar_express(
    steps: int = 5,
    lower: float = 1e-3,
    degree: int | Sequence[int] = 5,
    safety: float = 1.01,
    cushion: float = CUSHION,
    *,
    power: float = 0.0,
) -> Schedule:
    """Greedy minimax composition with a cushion and a safety factor (arXiv 2505.16932).

    On the interval [l, u] the step is the minimax polynomial of [max(l, cushion*u), u], scaled so that the image of
    [l, u] is centred at 1; that image is the interval of the next step. Every step but the last is p(s/safety), because
    rounding may raise a singular value above u, where a minimax polynomial diverges. The intervals include the safety
    factor, so they are exact for any number of steps. For `power` see `blend`.
    """
    schedule = _compose(_degrees(steps, degree), lower, safety, cushion, "Polar Express, arXiv 2505.16932")
    return blend(schedule, check_power(power)) if power else schedule


def cans(steps: int = 5, lower: float = 1e-3, degree: int | Sequence[int] = 5) -> Schedule:
    """Greedy minimax composition without cushion and safety factor: CANS, arXiv 2506.10935.

    It has the smallest delta on [lower, 1] of all compositions with these degrees, but no tolerance above 1.
    """
    return _compose(_degrees(steps, degree), lower, 1.0, 0.0, "CANS, arXiv 2506.10935")


@lru_cache(maxsize=1024)
def _compose(degrees: tuple[int, ...], lower: float, safety: float, cushion: float, source: str) -> Schedule:
    if not 0.0 < lower < 1.0:
        raise ValueError(f"lower must lie in (0, 1), got {lower}")
    if not 1.0 <= safety <= 1.5:
        raise ValueError(f"safety must lie in [1, 1.5], got {safety}")
    if not 0.0 <= cushion < 1.0:
        raise ValueError(f"cushion must lie in [0, 1), got {cushion}")
    low, high = lower, 1.0
    steps: list[tuple[float, ...]] = []
    for t, degree in enumerate(degrees):
        step, _ = minimax(degree, max(low, cushion * high), high)
        centre = 0.5 * sum(polynomial_image(step, low, high))
        factor = safety if t < len(degrees) - 1 else 1.0
        step = tuple(c / centre / factor ** (2 * k + 1) for k, c in enumerate(step))
        low, high = polynomial_image(step, low, high)
        high = max(high, 2.0 - low)  # for the image of [l, safety*u]
        steps.append(step)
    return Schedule(lower, source, tuple(steps), safety)


def check_power(power: float) -> float:
    """Return the power of a tilted map; raise unless it is a number between -0.5 and 0.5."""
    if isinstance(power, bool) or not isinstance(power, int | float) or not abs(power) <= 0.5:
        raise ValueError(f"power must lie in [-0.5, 0.5], got {power!r}")
    return float(power)


def check_steps(steps: int) -> None:
    """Raise unless `steps` is an integer between 1 and `MOST_STEPS`."""
    if isinstance(steps, bool) or not isinstance(steps, int):
        raise TypeError(f"steps must be an integer, got {steps!r}")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    if steps > MOST_STEPS:
        raise ValueError(f"steps must be at most {MOST_STEPS}, got {steps}: more would not reduce the error")


def _degrees(steps: int, degree: int | Sequence[int]) -> tuple[int, ...]:
    check_steps(steps)
    degrees = (degree,) * steps if isinstance(degree, int) else tuple(degree)
    if len(degrees) != steps:
        raise ValueError(
            f"degree has {len(degrees)} degrees for steps={steps}: give one for all steps, or one per step"
        )
    return degrees


POINTS, ROUNDS = 2000, 200
"""Points of the fit, and its rounds of reweighting."""
FINE = 20_000
"""Points between which extrema are searched: far more than five quintics have."""


@dataclass(frozen=True)
class Blend(Schedule):
    """f = sum_k w_k x_k with x_0 = s and x_k = p_k(x_(k-1)); direct form only, in which the x_k are at hand."""

    @property
    def gram_dtypes(self) -> tuple[str, ...]:
        """None: in Gram space every segment would need a further rectangular product."""
        return ()

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
