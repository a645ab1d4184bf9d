"""Varying parameters, factors, models."""

from math import exp, log, pi, sqrt
from types import ModuleType

import numpy as np

from theory_checks._base import PAIRS, RUNS, check, same, wave


def product(alphas: list[float], first: int, last: int) -> float:
    return float(np.prod([1 - alphas[j] for j in range(first, last + 1)]))


@check
def momentum_errors_product_by_product(t: ModuleType) -> None:
    n, L, rho_sigma = 25, 3.0, 0.7
    gammas, alphas, deltas = wave(n, 0.01, 0.2), wave(n, 0.05, 1.0), wave(n, 0.0, 0.6)
    nus = [1 + d for d in deltas]
    for power, found in (
        (1, t.momentum_errors(L, rho_sigma, gammas, alphas, deltas)),
        (2, t.measured_momentum_errors(L, rho_sigma, gammas, alphas, nus)),
    ):
        for k in range(n):
            noise = sum(alphas[i] ** 2 * product(alphas, i + 1, k) ** power for i in range(k + 1))
            drift = sum(gammas[i] * nus[i] * product(alphas, i + 1, k) for i in range(k))
            same(found[k], rho_sigma * (product(alphas, 0, k) + sqrt(noise)) + L * drift)


@check
def general_bounds_by_hand(t: ModuleType) -> None:
    gammas, deltas, errors = [0.1, 0.2], [0.5, 0.0], [3.0, 4.0]
    top = 2.0 + 1.5 * 3.0 * (0.01 * 2.25 + 0.04) + 2 * 3.0 * (0.01 * 1.5 + 0.04) + 2 * (0.3 + 0.8)
    same(t.general_stochastic_bound(2.0, 3.0, gammas, deltas, errors), top / (0.05 + 0.2))
    gaps, nus = [0.2, -0.1], [1.1, 1.3]
    top = 2.0 + 0.1 * 1.9 * 3.0 + 0.2 * 2.4 * 4.0 + 1.5 * (0.01 * 1.21 + 0.04 * 1.69)
    same(t.measured_general_bound(2.0, 3.0, gammas, gaps, nus, errors), top / (0.08 + 0.22))
    alphas = [0.3, 0.6]
    filled = t.momentum_errors(3.0, 0.7, gammas, alphas, deltas)
    same(t.varying_bound(2.0, 3.0, 0.7, gammas, alphas, deltas),
         t.general_stochastic_bound(2.0, 3.0, gammas, deltas, filled))  # fmt: skip
    filled = t.measured_momentum_errors(3.0, 0.7, gammas, alphas, nus)
    same(t.measured_varying_bound(2.0, 3.0, 0.7, gammas, alphas, gaps, nus),
         t.measured_general_bound(2.0, 3.0, gammas, gaps, nus, filled))  # fmt: skip


@check
def constant_sequences_approach_theorem_2(t: ModuleType) -> None:
    """The unrolled sums stay below their infinite series, and reach them."""
    for D0, L, K, rho_sigma, gamma, alpha, delta in RUNS:
        pair = (delta, 1 + delta)
        summed = t.measured_varying_bound(D0, L, rho_sigma, [gamma] * K, [alpha] * K, [pair[0]] * K, [pair[1]] * K)
        assert summed <= t.measured_stochastic_bound(D0, L, K, rho_sigma, gamma, alpha, *pair) * (1 + 1e-12)
        assert t.varying_bound(D0, L, rho_sigma, [gamma] * K, [alpha] * K, [delta] * K) <= t.stochastic_bound(
            D0, L, K, rho_sigma, gamma, alpha, delta
        )
    long = t.measured_varying_bound(1.0, 1.0, 1.0, [0.01] * 5000, [0.5] * 5000, 0.2, 1.2)
    same(long, t.measured_stochastic_bound(1.0, 1.0, 5000, 1.0, 0.01, 0.5, 0.2, 1.2), 1e-3)


@check
def theorem_4_schedule_and_its_sum(t: ModuleType) -> None:
    gammas, alphas = t.agnostic_schedule(50, 0.3, 0.8)
    for k in range(50):
        same(gammas[k] ** 4, 0.3**4 / (k + 1) ** 3)
        same(alphas[k] ** 2, 0.8**2 / (k + 1))
    same(t.time_varying_bound(2.0, 3.0, 50, 0.7, 0.3, 0.8, 0.5),
         t.varying_bound(2.0, 3.0, 0.7, gammas, alphas, [0.5] * 50))  # fmt: skip
    same(t.measured_time_varying_bound(2.0, 3.0, 50, 0.7, 0.3, 0.8, 0.2, 1.1),
         t.measured_varying_bound(2.0, 3.0, 0.7, gammas, alphas, [0.2] * 50, [1.1] * 50))  # fmt: skip


@check
def theorem_4_in_closed_form_by_hand(t: ModuleType) -> None:
    zeta = sum(k**-1.5 for k in range(1, 200000)) + 2 / sqrt(199999.5)
    for alpha in (1.0, 0.02):
        initial = {1.0: 1.0, 0.02: exp(0.04) * sqrt(2 * pi / 0.02)}[alpha]
        lag = 0.7 * 0.3 * (initial + (1 + log(80)) * sqrt(alpha + alpha**2))
        lag += 3.0 * 0.09 * 1.5 * (1 + log(80)) / alpha
        below = 4 * 0.3 * 0.5 * (81**0.25 - 1)
        top = 2.0 + 3.0 * 0.09 * zeta * (1.5 * 2.25 + 2 * 1.5) + 2 * lag
        same(t.time_varying_rate(2.0, 3.0, 80, 0.7, 0.3, alpha, 0.5), top / below, 1e-8)
        top = 2.0 + 3.0 * 0.09 * zeta * 2.25 / 2 + 2.2 * lag
        below = 4 * 0.3 * 0.7 * (81**0.25 - 1)
        same(t.measured_time_varying_rate(2.0, 3.0, 80, 0.7, 0.3, alpha, 0.3, 1.5), top / below, 1e-8)


@check
def theorem_4_closed_form_lies_above_the_sum(t: ModuleType) -> None:
    for alpha in (1.0, 0.3, 0.02):
        for K in (1, 2, 10, 500):
            args = (2.0, 3.0, K, 0.7, 0.3, alpha, 0.4)
            assert t.time_varying_bound(*args) <= t.time_varying_rate(*args)
            assert t.measured_time_varying_bound(*args, 1.2) <= t.measured_time_varying_rate(*args, 1.2)


@check
def factors_by_hand(t: ModuleType) -> None:
    same(t.deterministic_factor(0.5), 3.0)
    same(t.stochastic_factor(0.5) ** 4, 1.5 * 16)
    same(t.measured_deterministic_factor(0.2, 1.6), 2.0)
    same(t.measured_stochastic_factor(0.2, 1.6) ** 4, 1.6 * 1.2**3 / 0.8**4)


@check
def factors_are_those_of_the_optimal_bounds(t: ModuleType) -> None:
    for delta in (0.1, 0.5):
        parts = [t.stochastic_optimal_parts(2.0, 3.0, 1e6, 4.0, d).quarter for d in (delta, 0.0)]
        same(t.stochastic_factor(delta), parts[0] / parts[1])
    for gap, nu in PAIRS:
        counts = [t.measured_stochastic_leading_iterations(2.0, 3.0, 4.0, 0.1, *p) for p in ((gap, nu), (0.0, 1.0))]
        same(t.measured_stochastic_factor(gap, nu) ** 4, counts[0] / counts[1])


@check
def sensitivity_is_the_slope_of_the_minimum(t: ModuleType) -> None:
    for K, delta in ((30.0, 0.3), (1e4, 0.0), (1e4, 0.6)):
        low, high = max(delta - 1e-3, 0.0), delta + 1e-3
        value = [log((1 - d) * t.stochastic_minimum(1.0, 1.0, K, 2.0, d).bound) for d in (low, high)]
        slope = (value[1] - value[0]) / (log(1 + high) - log(1 + low))
        middle = sqrt((1 + low) * (1 + high)) - 1
        same(t.stochastic_sensitivity(1.0, 1.0, K, 2.0, middle), slope, 1e-5)
    same(t.stochastic_sensitivity(1.0, 1.0, 1e16, 2.0, 0.3), 0.25, 1e-3)
    assert t.stochastic_sensitivity(1.0, 1.0, 100, 0.0, 0.3) == 1.0


@check
def error_model_by_hand(t: ModuleType) -> None:
    same(t.polar_express_error(0.6, 0), 0.64)
    same(t.polar_express_error(0.6, 2, 3), 0.64**4)
    same(t.polar_express_error(0.6, 2), 0.64**9)
    same(t.polar_express_error(0.6, 2, degree=7), 0.64**16)
    assert t.polar_express_error(1.0, 1) == 0.0
    for degree in (3, 5, 7):
        for steps in (0, 1, 3, 4):
            delta = t.polar_express_error(0.3, steps, degree)
            assert t.polar_express_steps(delta, 0.3, degree) == steps
            assert t.polar_express_steps(delta * 0.999, 0.3, degree) == steps + 1
    assert t.polar_express_steps(0.99, 0.6) == 0
    assert t.polar_express_steps(0.5, 1.0) == 0
    assert t.polar_express_steps(t.polar_express_error(0.3, 3), 0.3) == 3


@check
def rho_of_the_balls(t: ModuleType) -> None:
    expected = {"spectral": 3, "sign": sqrt(144), "euclidean": 1, "col-norm": 4, "row-norm": 3, "nuclear": 1}
    for name, value in expected.items():
        same(t.rho(name, 9, 16), value)
    assert t.rho("spectral", 16, 9) == 3.0
    assert t.rho("sign", 1, 1) == 1.0
