"""One step along a power of the singular values, and Polyak's step, on functions of matrices."""

from collections.abc import Callable
from itertools import pairwise
from types import ModuleType

import numpy as np
import pytest

from theory_checks._base import PAIRS, check, same

SPECTRA = ((2.0, 0.7, 0.11, 0.004), (1.0, 0.9), (30.0, 3.0, 3.0, 0.3, 0.01))
EXPONENTS = ((1.0, 1.0), (1.4, 1.7), (1.1, 0.8), (0.5, -0.6), (0.0, 0.9))
"""(r, q)"""
POWERS = (-1.3, -0.4, 0.0, 0.25, 1.0)


def quadratic(sigmas: tuple[float, ...], kappa: float, Lambda: float, r: float, q: float) -> tuple[Callable, Callable]:
    """f(x - d) - f(x) as a function of the matrix d, and the matrix D_p as a function of p, for M of random bases."""
    rng = np.random.default_rng(len(sigmas))
    n = len(sigmas)
    u, v = (np.linalg.qr(rng.normal(size=(n + extra, n)))[0] for extra in (1, 3))

    def change(d: np.ndarray) -> float:
        along = [u[:, i] @ d @ v[:, i] for i in range(n)]
        linear = sum(kappa * s**r * a for s, a in zip(sigmas, along, strict=True))
        return sum(Lambda * s**q * a * a / 2 for s, a in zip(sigmas, along, strict=True)) - linear

    return change, lambda p: sum(s**p * np.outer(u[:, i], v[:, i]) for i, s in enumerate(sigmas))


@check
def the_best_step_along_a_power(t: ModuleType) -> None:
    for sigmas in SPECTRA:
        for r, q in EXPONENTS:
            change, direction = quadratic(sigmas, 0.7, 3.0, r, q)
            for p in POWERS:
                gamma, decrease = (f(sigmas, 0.7, 3.0, p, r, q) for f in (t.power_step, t.power_decrease))
                same(-change(gamma * direction(p)), decrease, 1e-9)
                assert all(change(x * gamma * direction(p)) > -decrease for x in (0.99, 1.01))


@check
def the_decrease_has_one_top(t: ModuleType) -> None:
    for sigmas in SPECTRA:
        for r, q in EXPONENTS:
            best = t.power_optimal(r, q)
            for side in (-1.0, 1.0):
                found = [t.power_decrease(sigmas, 0.7, 3.0, best + side * x / 5, r, q) for x in range(9)]
                assert all(a > b for a, b in pairwise(found)), (sigmas, r, q)
            same(t.power_decrease(sigmas, 0.7, 3.0, best, r, q), 0.49 * sum(s ** (2 * r - q) for s in sigmas) / 6.0)
    same(t.power_optimal(1.4, 1.7), 1.4 - 1.7)
    assert t.power_optimal(1.2, 1.2) == 0.0


@check
def no_other_map_does_better(t: ModuleType) -> None:
    rng = np.random.default_rng(0)
    for sigmas in SPECTRA:
        for r, q in EXPONENTS:
            change, direction = quadratic(sigmas, 0.7, 3.0, r, q)
            best = t.power_optimal(r, q)
            most = t.power_decrease(sigmas, 0.7, 3.0, best, r, q)
            d = t.power_step(sigmas, 0.7, 3.0, best, r, q) * direction(best)
            assert all(change(d + 1e-2 * abs(d).max() * rng.normal(size=d.shape)) > -most for _ in range(20))


@check
def powers_tie_if_all_singular_values_are_equal(t: ModuleType) -> None:
    for sigmas in ((0.3,), (0.3, 0.3, 0.3)):
        for r, q in EXPONENTS:
            for p in POWERS:
                same(t.power_share(sigmas, p, r, q), 1.0)
    for r, q in EXPONENTS:  # and only then: at other powers than the best the share is below 1
        assert all(t.power_share((1.0, 0.9), r - q + x, r, q) < 1.0 - 1e-4 for x in (-0.3, 0.3))


@check
def the_share_of_a_power(t: ModuleType) -> None:
    for sigmas in SPECTRA:
        for r, q in EXPONENTS:
            most = t.power_decrease(sigmas, 0.7, 3.0, r - q, r, q)
            for p in POWERS:
                same(t.power_share(sigmas, p, r, q), t.power_decrease(sigmas, 0.7, 3.0, p, r, q) / most)
            weights = np.array(sigmas) ** (2 * r - q)
            logs = np.log(sigmas)
            variance = np.average((logs - np.average(logs, weights=weights)) ** 2, weights=weights)
            for p in (r - q - 1e-3, r - q + 1e-3):
                assert t.power_share(sigmas, p, r, q) == pytest.approx(1 - 1e-6 * variance, abs=1e-8)


@check
def powers_of_what_is_not_positive(t: ModuleType) -> None:
    for sigmas in ((1.0, 0.0), (1.0, -0.1), ()):
        with pytest.raises(ValueError, match="sigmas must be positive"):
            t.power_step(sigmas, 1.0, 1.0, 0.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="Lambda must be positive"):
        t.power_decrease((1.0,), 1.0, 0.0, 0.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="kappa must be positive"):
        t.power_decrease((1.0,), -1.0, 1.0, 0.0, 1.0, 1.0)


@check
def polyak_steps_reach_the_same_value_to_first_order(t: ModuleType) -> None:
    for gap, _ in PAIRS:
        same(t.measured_polyak_step(5.0, 1.7, gap) * (1 - gap) * 1.7, 5.0)
    with pytest.raises(ValueError, match="gap must be below 1"):
        t.measured_polyak_step(5.0, 1.7, 1.0)
    with pytest.raises(ValueError, match="D0 must be positive"):
        t.measured_polyak_step(0.0, 1.7, 0.0)
    with pytest.raises(ValueError, match="dual_momentum must be positive"):
        t.measured_polyak_step(5.0, 0.0, 0.0)
