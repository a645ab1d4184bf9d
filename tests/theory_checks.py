"""What must be true of `theory`, as functions of the module: run on the real one, and on mutants of it.

Each right side is computed another way: step by step, from the proof, by hand, or by a search.
"""

from collections.abc import Callable
from math import exp, inf, log, pi, sqrt
from types import ModuleType

import numpy as np
import pytest

RUNS = [
    # D0, L, K, rho_sigma, gamma, alpha, delta
    (2.0, 3.0, 50, 0.7, 0.1, 0.3, 0.5),
    (0.3, 11.0, 400, 5.0, 0.003, 0.05, 0.0),
    (40.0, 0.2, 7, 1e-3, 1.5, 1.0, 0.9),
    (1.0, 1.0, 1000, 1.0, 0.01, 0.7, 0.1),
]
PAIRS = [(0.5, 1.5), (0.0, 1.0), (-0.1, 1.2), (0.3, 0.8), (0.9, 2.5)]
CHECKS: list[Callable[[ModuleType], None]] = []


def check(function: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    CHECKS.append(function)
    return function


def same(a: object, b: object, rel: float = 1e-12) -> None:
    assert a == pytest.approx(b, rel=rel, abs=0.0)


def wave(k: int, low: float, high: float) -> list[float]:
    """A sequence between low and high without a pattern."""
    return [low + (high - low) * ((7 * i * i + 3 * i) % 17) / 17.0 for i in range(k)]


# Deterministic


@check
def theorem_1_sums_the_steps(t: ModuleType) -> None:
    gammas, deltas = wave(30, 0.01, 0.2), wave(30, 0.0, 0.6)
    spent, weight = 2.0, 0.0
    for g, d in zip(gammas, deltas, strict=True):
        spent += 3.0 * (g + g * d) * (g + g * d) * 0.5
        weight += g - g * d
    same(t.deterministic_general(2.0, 3.0, gammas, deltas), spent / weight)
    gaps, nus = wave(30, -0.2, 0.5), wave(30, 1.3, 1.7)
    spent = 2.0 + sum(3.0 * g * g * nu * nu * 0.5 for g, nu in zip(gammas, nus, strict=True))
    weight = sum(g - g * gap for g, gap in zip(gammas, gaps, strict=True))
    same(t.measured_deterministic_general(2.0, 3.0, gammas, gaps, nus), spent / weight)


@check
def corollary_1_is_theorem_1_with_constants(t: ModuleType) -> None:
    same(t.deterministic_bound(2.0, 3.0, 5, 0.1, 0.5), 8.675)  # 2/(5 .1 .5) + 3 .1 2.25/(2 .5)
    for D0, L, K, _, gamma, _, delta in RUNS:
        same(t.deterministic_bound(D0, L, K, gamma, delta), t.deterministic_general(D0, L, [gamma] * K, [delta] * K))
        for gap, nu in PAIRS:
            general = t.measured_deterministic_general(D0, L, [gamma] * K, [gap] * K, [nu] * K)
            same(t.measured_deterministic_bound(D0, L, K, gamma, gap, nu), general)


@check
def corollary_2_is_the_minimum_of_corollary_1(t: ModuleType) -> None:
    for D0, L, K, _, _, _, delta in RUNS:
        gamma, bound = t.deterministic_optimal(D0, L, K, delta)
        same(bound, t.deterministic_bound(D0, L, K, gamma, delta))
        assert all(t.deterministic_bound(D0, L, K, gamma * x, delta) > bound for x in (0.99, 1.01))
        same(bound, t.deterministic_factor(delta) * sqrt(2.0 * D0 * L / K))
        for gap, nu in PAIRS:
            gamma, bound = t.measured_deterministic_optimal(D0, L, K, gap, nu)
            same(bound, t.measured_deterministic_bound(D0, L, K, gamma, gap, nu))
            assert all(t.measured_deterministic_bound(D0, L, K, gamma * x, gap, nu) > bound for x in (0.99, 1.01))


@check
def counts_are_where_bounds_reach_eps(t: ModuleType) -> None:
    for D0, L, _, _, _, _, delta in RUNS:
        for eps in (0.1, 0.003):
            K = t.deterministic_iterations(D0, L, eps, delta)
            same(t.deterministic_optimal(D0, L, K, delta).bound, eps)
            same(t.adaptive_iterations(D0, L, eps, delta), K)
            same(t.adaptive_uniform_bound(D0, L, K, delta), eps)
            K = t.l0l1_iterations(D0, L, 2.0, eps, delta)
            same(t.l0l1_bound(D0, L, 2.0, K, delta), eps)
            K = t.layerwise_iterations(D0, eps, [delta, 0.0])
            same(t.layerwise_bound(D0, K, [delta, 0.0]), eps**2)
            for gap, nu in PAIRS:
                K = t.measured_deterministic_iterations(D0, L, eps, gap, nu)
                same(t.measured_deterministic_optimal(D0, L, K, gap, nu).bound, eps)
                K = t.measured_l0l1_iterations(D0, L, 2.0, eps, gap, nu)
                same(t.measured_l0l1_bound(D0, L, 2.0, K, gap, nu), eps)
                K = t.measured_layerwise_iterations(D0, eps, [gap, 0.0], [nu, 1.0])
                same(t.measured_layerwise_bound(D0, K, [gap, 0.0], [nu, 1.0]), eps**2)


@check
def adaptive_step_minimises_what_a_step_promises(t: ModuleType) -> None:
    for gap, nu in PAIRS:
        dual, L = 1.7, 3.0

        def promised(gamma: float, dual: float = dual, L: float = L, gap: float = gap, nu: float = nu) -> float:
            return -gamma * dual * (1 - gap) + 0.5 * L * gamma * gamma * nu * nu

        gamma = t.measured_adaptive_step(L, dual, gap, nu)
        assert all(promised(gamma) < promised(gamma * x) for x in (0.99, 1.01))
        # -promised is w/(2L) dual^2: the weight of this step in the theorem's sum.
        weight = -promised(gamma) * 2 * L / dual**2
        same(t.measured_adaptive_bound(5.0, L, [gap] * 4, [nu] * 4), sqrt(2 * L * 5.0 / (4 * weight)))
    same(t.adaptive_step(3.0, 1.7, 0.5), 1.7 * 0.5 / (3.0 * 1.5 * 1.5))


@check
def theorem_3_sums_the_weights(t: ModuleType) -> None:
    deltas = wave(20, 0.0, 0.7)
    total = sum(((1 - d) / (1 + d)) ** 2 for d in deltas)
    same(t.adaptive_bound(2.0, 3.0, deltas) ** 2, 12.0 / total)
    same(t.adaptive_uniform_bound(2.0, 3.0, 20, 0.7), t.adaptive_bound(2.0, 3.0, [0.7] * 20))


# One step


@check
def descent_lemmas_by_hand(t: ModuleType) -> None:
    same(t.descent(5.0, 3.0, 0.1, 2.0, 0.4, 0.5), 5.0 - 0.1 * 2.0 * 0.5 + 0.1 * 1.5 * 0.4 + 4.5 * 0.01 * 2.25)
    same(t.measured_descent(5.0, 3.0, 0.1, 2.0, 0.4, 0.2, 1.1), 5.0 - 0.16 + 0.044 + 1.5 * 0.0121)
    # The error at x^{k+1} is at most that at x^k plus L gamma nu: ours then implies the paper's.
    next_error = 0.4 + 3.0 * 0.1 * 1.5
    same(t.measured_descent(5.0, 3.0, 0.1, 2.0, next_error, 0.5, 1.5), t.descent(5.0, 3.0, 0.1, 2.0, 0.4, 0.5))


@check
def momentum_error_sums_its_series(t: ModuleType) -> None:
    for _, L, _, rho_sigma, gamma, alpha, delta in RUNS:
        for k in (0, 1, 10):
            past = range(20000 if alpha < 0.1 else 2000)
            noise = sqrt(sum((alpha * (1 - alpha) ** j) ** 2 for j in past))
            drift = sum((1 - alpha) ** (j + 1) for j in past) * L * gamma
            start = (1 - alpha) ** (k + 1)
            ours = t.measured_momentum_error(k, L, rho_sigma, gamma, alpha, 1.3)
            same(ours, rho_sigma * (start + noise) + 1.3 * drift, 1e-9)
            looser = (drift + L * gamma) * (1 + delta)  # sum from j = 0 instead of 1
            same(t.momentum_error(k, L, rho_sigma, gamma, alpha, delta), rho_sigma * (start + noise) + looser, 1e-9)


@check
def one_step_of_the_momentum_error(t: ModuleType) -> None:
    same(t.momentum_error_step(2.0, 3.0, 0.7, 0.1, 0.5, 0.5), 0.5 * (2.0 + 3.0 * 0.1 * 1.5) + 0.7 * sqrt(1 / 3))
    # It holds for the unrolled bound whatever the sequences.
    gammas, alphas, deltas = wave(40, 0.01, 0.2), wave(40, 0.1, 1.0), wave(40, 0.0, 0.6)
    errors = t.measured_momentum_errors(3.0, 0.7, gammas, alphas, [1 + d for d in deltas])
    for k in range(1, 40):
        ours = t.measured_momentum_error_step(errors[k - 1], 3.0, 0.7, gammas[k - 1], alphas[k], 1 + deltas[k - 1])
        paper = t.momentum_error_step(errors[k - 1], 3.0, 0.7, gammas[k - 1], alphas[k], deltas[k - 1])
        assert errors[k] <= ours * (1 + 1e-12) <= paper * (1 + 1e-9)
    same(t.measured_momentum_error_step(2.0, 3.0, 0.7, 0.1, 0.6, 1.5), 0.4 * (2.0 + 3.0 * 0.1 * 1.5) + 0.6 * 0.7)


# Theorem 2 and Corollary 3


def five_terms(
    D0: float, L: float, K: float, rho_sigma: float, gamma: float, alpha: float, delta: float
) -> list[float]:
    """The last line but one of the proof, divided by K gamma (1-delta)."""
    scale = K * gamma * (1 - delta)
    return [
        D0 / scale,
        2 * gamma * rho_sigma / alpha / scale,
        2 * K * gamma * rho_sigma * alpha**0.5 / scale,
        (K * 3 * L * gamma**2 * (1 + delta) ** 2 / 2 + 2 * K * L * gamma**2 * (1 + delta)) / scale,
        2 * K * L * gamma**2 * (1 + delta) / alpha / scale,
    ]


@check
def theorem_2_term_by_term(t: ModuleType) -> None:
    for run in RUNS:
        terms = t.stochastic_terms(*run)
        for ours, theirs in zip(terms, five_terms(*run), strict=True):
            same(ours, theirs)
        assert terms._fields == ("initial", "start", "noise", "step", "drift")
        same(t.stochastic_bound(*run), sum(five_terms(*run)))


@check
def best_gamma_for_a_given_alpha(t: ModuleType) -> None:
    for D0, L, K, rho_sigma, _, alpha, delta in RUNS:
        gamma = t.stochastic_gamma(D0, L, K, alpha, delta)
        best = t.stochastic_bound(D0, L, K, rho_sigma, gamma, alpha, delta)
        assert all(t.stochastic_bound(D0, L, K, rho_sigma, gamma * x, alpha, delta) > best for x in (0.99, 1.01))
        for gap, nu in PAIRS:
            gamma = t.measured_stochastic_gamma(D0, L, K, alpha, gap, nu)
            best = t.measured_stochastic_bound(D0, L, K, rho_sigma, gamma, alpha, gap, nu)
            for x in (0.99, 1.01):
                assert t.measured_stochastic_bound(D0, L, K, rho_sigma, gamma * x, alpha, gap, nu) > best


@check
def corollary_3_as_the_appendix_writes_it(t: ModuleType) -> None:
    for D0, L, rho_sigma, delta in ((2.0, 3.0, 4.0, 0.5), (0.3, 11.0, 2.0, 0.0), (5.0, 1.0, 0.7, 0.8)):
        K = 1e5
        gamma, alpha, bound = t.stochastic_optimal(D0, L, K, rho_sigma, delta)
        same(alpha, (2 * D0 * L * (1 + delta)) ** 0.5 / (K**0.5 * rho_sigma))
        written = D0**0.75 / (2**0.25 * K**0.75 * L**0.25 * rho_sigma**0.5 * (1 + delta) ** 0.25)
        same(gamma, written)
        parts = t.stochastic_optimal_parts(D0, L, K, rho_sigma, delta)
        terms = five_terms(D0, L, K, rho_sigma, gamma, alpha, delta)
        same(parts.quarter, terms[0] + terms[2] + terms[4])
        same(parts.half, terms[1])
        same(parts.three_quarters, terms[3])
        same(bound, sum(parts))


@check
def alpha_is_clipped_and_noise_may_vanish(t: ModuleType) -> None:
    D0, L, delta = 2.0, 3.0, 0.5
    edge = 2 * D0 * L * (1 + delta) / 0.7**2
    for K, clipped in ((edge * 0.999, True), (edge * 1.001, False)):
        found = t.stochastic_optimal(D0, L, K, 0.7, delta)
        assert (found.alpha == 1.0) is clipped is found.clipped
    clipped = t.stochastic_optimal(D0, L, edge / 3, 0.7, delta)
    same(clipped.gamma, t.stochastic_gamma(D0, L, edge / 3, 1.0, delta))
    same(clipped.bound, sum(five_terms(D0, L, edge / 3, 0.7, clipped.gamma, 1.0, delta)))
    with pytest.raises(ValueError, match=f"K must be at least {edge:.6g} for alpha"):
        t.stochastic_optimal_parts(D0, L, edge * 0.999, 0.7, delta)
    t.stochastic_optimal_parts(D0, L, edge * 1.001, 0.7, delta)
    with pytest.raises(ValueError, match="K must be at least inf for alpha"):
        t.stochastic_optimal_parts(D0, L, edge, 0.0, delta)
    for function in (t.stochastic_optimal, t.stochastic_minimum):
        assert tuple(function(D0, L, 100, 0.0, delta)) == (
            t.deterministic_optimal(D0, L, 100, delta).gamma,
            1.0,
            t.deterministic_optimal(D0, L, 100, delta).bound,
        )
    assert t.stochastic_iterations(D0, L, 0.0, 0.1, delta) == t.deterministic_iterations(D0, L, 0.1, delta)
    for gap, nu in PAIRS:
        edge = 4 * D0 * L * nu / ((1 - gap + nu) * 0.7**2)
        assert t.measured_stochastic_optimal(D0, L, edge * 0.999, 0.7, gap, nu).clipped
        assert not t.measured_stochastic_optimal(D0, L, edge * 1.001, 0.7, gap, nu).clipped
        for noise in (0.7, 0.0):
            found = t.measured_stochastic_optimal(D0, L, edge * 0.9, noise, gap, nu)
            gamma, bound = t.measured_deterministic_optimal(D0, L, edge * 0.9, gap, nu)
            same(found.gamma, gamma)
            same(found.bound, bound + (1 - gap + nu) / (1 - gap) * noise)
            assert found.alpha == 1.0
        same(t.measured_stochastic_minimum(D0, L, 100, 0.0, gap, nu).alpha, 1.0)


def zoom(D0: float, L: float, K: float, rho_sigma: float, delta: float) -> tuple[float, float, float]:
    """The smallest sum of the five terms on a grid of (gamma, alpha), made finer around its best point."""
    low, high = np.array([-12.0, -12.0]), np.array([3.0, 0.0])
    for _ in range(12):
        g, a = (np.exp(np.linspace(low[i], high[i], 41)) for i in range(2))
        grid = np.asarray(sum(five_terms(D0, L, K, rho_sigma, g[:, None], a[None, :], delta)))  # type: ignore[arg-type]
        i, j = np.unravel_index(grid.argmin(), grid.shape)
        best, width = np.log([g[i], a[j]]), (high - low) / 4
        low, high = best - width / 2, np.minimum(best + width / 2, [np.inf, 0.0])
    return float(g[i]), float(a[j]), float(grid.min())


@check
def numerical_minimum_against_a_finer_and_finer_grid(t: ModuleType) -> None:
    for D0, L, K, rho_sigma, delta in ((2.0, 3.0, 1e4, 4.0, 0.5), (1.0, 1.0, 30.0, 0.2, 0.1)):
        found = t.stochastic_minimum(D0, L, K, rho_sigma, delta)

        gamma, alpha, bound = zoom(D0, L, K, rho_sigma, delta)
        same(found.bound, bound, 1e-8)
        same(found.gamma, gamma, 1e-3)
        same(found.alpha, alpha, 1e-3)
        measured = t.measured_stochastic_minimum(D0, L, K, rho_sigma, delta, 1 + delta)
        for x in (0.97, 1.03):
            for a in (measured.alpha * x, measured.alpha):
                args = (D0, L, K, rho_sigma, measured.gamma * x, min(a, 1.0), delta, 1 + delta)
                assert t.measured_stochastic_bound(*args) > measured.bound
        same(measured.bound, t.measured_stochastic_bound(D0, L, K, rho_sigma, *measured[:2], delta, 1 + delta))


@check
def the_search_finds_minima_anywhere(t: ModuleType) -> None:
    smallest = t.stochastic.smallest
    for best in (3e-4, 0.02, 0.99, 1.0, 7.0):
        for around in (1e-2, 0.5, 3.0):
            if best > around * exp(-9):
                found = smallest(lambda a, best=best: log(a / best) ** 2 + 1.0, around)
                same(found, min(best, 1.0), 1e-6 if best < 1.0 else 0.0)
    for around in (0.5, 7.0):
        same(smallest(lambda a: a, around), min(around, 1.0) * exp(-10), 1e-6)  # it looks no further down


@check
def stochastic_counts(t: ModuleType) -> None:
    D0, L, rho_sigma, delta = 2.0, 3.0, 4.0, 0.5
    for eps in (3.0, 0.1, 1e-3):
        K = t.stochastic_iterations(D0, L, rho_sigma, eps, delta)
        same(sum(t.stochastic_optimal_parts(D0, L, K, rho_sigma, delta)), eps, 1e-9)
    eps = 1e-6
    leading = t.stochastic_leading_iterations(D0, L, rho_sigma, eps, delta)
    same(leading, t.stochastic_iterations(D0, L, rho_sigma, eps, delta), 1e-4)
    same(t.stochastic_optimal_parts(D0, L, leading, rho_sigma, delta).quarter, eps)
    # An eps that is reached as soon as alpha* <= 1, and one that is not.
    first = 2 * D0 * L * (1 + delta) / rho_sigma**2
    reached = sum(t.stochastic_optimal_parts(D0, L, first * (1 + 1e-12), rho_sigma, delta))
    same(t.stochastic_iterations(D0, L, rho_sigma, 1.001 * reached, delta), first)
    assert t.stochastic_iterations(D0, L, rho_sigma, 0.999 * reached, delta) > 1.0005 * first
    for gap, nu in PAIRS:
        K = t.measured_stochastic_leading_iterations(D0, L, rho_sigma, eps, gap, nu)
        same(t.measured_stochastic_minimum(D0, L, K, rho_sigma, gap, nu).bound, eps, 1e-4)
    for noise, eps in ((4.0, 0.1), (0.01, 0.5)):
        K = t.measured_stochastic_iterations(D0, L, noise, eps, 0.3, 0.8)
        same(t.measured_stochastic_minimum(D0, L, K, noise, 0.3, 0.8).bound, eps, 1e-8)
    without = t.measured_deterministic_iterations(D0, L, 0.1, 0.3, 0.8)
    assert t.measured_stochastic_iterations(D0, L, 0.0, 0.1, 0.3, 0.8) == without


@check
def ours_sums_the_recursion(t: ModuleType) -> None:
    """Every k: the descent inequality with the momentum error's series, all added up."""
    for D0, L, K, rho_sigma, gamma, alpha, _ in RUNS:
        for gap, nu in PAIRS:
            c = (1 - gap) + nu
            spent = D0
            for _ in range(K):
                error = rho_sigma * sqrt(alpha / (2 - alpha)) + L * gamma * nu * (1 / alpha - 1)
                spent += gamma * c * error + L * (gamma * nu) ** 2 / 2
            spent += gamma * c * rho_sigma * sum((1 - alpha) ** (k + 1) for k in range(5000))
            bound = t.measured_stochastic_bound(D0, L, K, rho_sigma, gamma, alpha, gap, nu)
            same(bound, spent / (K * gamma * (1 - gap)), 1e-9)
            terms = t.measured_stochastic_terms(D0, L, K, rho_sigma, gamma, alpha, gap, nu)
            kept, lag = 1 - gap, 1 / alpha - 1
            for name, value in (
                ("initial", D0 / (K * gamma)),
                ("start", c * rho_sigma * lag / K),
                ("noise", c * rho_sigma * (alpha / (2 - alpha)) ** 0.5),
                ("step", L * gamma * nu * nu / 2),
                ("drift", c * L * gamma * nu * lag),
            ):
                same(getattr(terms, name), value / kept, 1e-9)
            shifted = t.measured_stochastic_bound_next(D0, L, K, rho_sigma, gamma, alpha, gap, nu)
            same(shifted, bound + L * gamma * nu)


@check
def our_optimum_is_corollary_3_at_the_worst_pair(t: ModuleType) -> None:
    for D0, L, rho_sigma, delta in ((2.0, 3.0, 4.0, 0.5), (0.3, 11.0, 2.0, 0.0)):
        ours = t.measured_stochastic_optimal(D0, L, 1e5, rho_sigma, delta, 1 + delta)
        paper = t.stochastic_optimal(D0, L, 1e5, rho_sigma, delta)
        same(ours[:2], paper[:2])
        assert ours.bound < paper.bound
        same(ours.bound, t.measured_stochastic_bound(D0, L, 1e5, rho_sigma, *ours[:2], delta, 1 + delta))
    for gap, nu in PAIRS:
        ours = t.measured_stochastic_optimal(2.0, 3.0, 1e5, 4.0, gap, nu)
        same(ours.alpha, 2 * sqrt(6.0 * nu / (1e5 * (1 - gap + nu))) / 4.0)
        same(ours.gamma, sqrt(2.0 * ours.alpha / (1e5 * (1 - gap + nu) * 3.0 * nu)))


# Varying parameters


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


# (L0, L1) and layers


@check
def l0l1_by_hand(t: ModuleType) -> None:
    same(t.l0l1_iterations(2.0, 3.0, 5.0, 0.1, 0.5), 2 * 2.0 * 9 * (300 + 50))
    same(t.measured_l0l1_iterations(2.0, 3.0, 5.0, 0.1, 0.2, 1.6), 2 * 2.0 * 4 * (300 + 50))
    same(t.l0l1_iterations(2.0, 3.0, 0.0, 0.1, 0.5), t.deterministic_iterations(2.0, 3.0, 0.1, 0.5))
    assert t.l0l1_iterations(2.0, 0.0, 5.0, 0.1, 0.0) == pytest.approx(200.0)
    for bound in (t.l0l1_bound(2.0, 3.0, 5.0, 70, 0.5), t.measured_l0l1_bound(2.0, 3.0, 5.0, 70, 0.0, 3.0)):
        same(bound**2 / (3.0 + 5.0 * bound), 2 * 2.0 * 9 / 70)


@check
def layers_by_hand(t: ModuleType) -> None:
    gammas, deltas = [[0.1, 0.2], [0.3, 0.4]], [[0.0, 0.5], [0.1, 0.2]]
    total = 3.0 * 0.01 + 5.0 * 0.04 * 2.25 + 3.0 * 0.09 * 1.21 + 5.0 * 0.16 * 1.44
    same(t.layerwise_sum(2.0, [3.0, 5.0], gammas, deltas), 2.0 + total / 2)
    gaps = [[0.0, 0.4], [0.1, 0.2]]
    nus = [[1.0, 1.5], [1.1, 1.2]]
    same(t.measured_layerwise_sum(2.0, [3.0, 5.0], gammas, gaps, nus), 2.0 + total / 2)
    same(t.worst_layer_factor([0.0, 0.5, 0.2]), 9.0)
    same(t.measured_worst_layer_factor([0.0, 0.2, 0.5], [1.0, 1.6, 0.9]), 4.0)
    same(t.layerwise_bound(2.0, 8, [0.0, 0.5]), 4.5)
    same(t.layerwise_iterations(2.0, 0.1, [0.0, 0.5]), 3600.0)


# Factors and models


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


# Conditions


@check
def what_is_refused(t: ModuleType) -> None:
    def refuses(words: str, function: Callable[..., object], *args: object) -> None:
        with pytest.raises(ValueError, match=words):
            function(*args)

    for delta in (1.0, 1.05, -0.05, float("nan")):
        refuses(r"delta must lie in \[0, 1\)", t.deterministic_factor, delta)
        refuses(r"delta must lie in \[0, 1\)", t.stochastic_sensitivity, 1, 1, 9, 0.0, delta)
        refuses(r"delta must lie in \[0, 1\)", t.layerwise_iterations, 1, 1, [0.0, delta])
    refuses("no bound can hold", t.deterministic_factor, 1.0)
    for gap in (1.0, 1.05, float("nan"), -inf):
        refuses("gap must be below 1", t.measured_deterministic_factor, gap, 3.0)
    refuses("below 1 - gap", t.measured_deterministic_factor, 0.1, 0.899)
    t.measured_deterministic_factor(0.1, 0.9)
    t.measured_deterministic_factor(0.1, 0.9 * (1 - 1e-12))
    t.deterministic_factor(0.999)
    for alpha in (0.0, 1.05, -0.05):
        refuses(r"alpha must lie in \(0, 1\]", t.stochastic_gamma, 1, 1, 1, alpha, 0)
    t.stochastic_gamma(1, 1, 1, 1.0, 0)
    t.stochastic_gamma(1, 1, 1, 1e-3, 0)
    for bad in (0.0, -1.0, inf, float("nan")):
        refuses("D0 must be positive", t.deterministic_bound, bad, 1, 1, 1, 0)
        refuses("gamma must be positive", t.deterministic_bound, 1, 1, 1, bad, 0)
        refuses("overshoot must be positive", t.measured_momentum_error, 1, 1, 1, 1, 1, bad)
    t.deterministic_bound(1e-3, 1e-3, 1e-3, 1e-3, 0)
    for bad in (-0.05, inf, float("nan")):
        refuses("rho_sigma must be finite", t.stochastic_bound, 1, 1, 1, bad, 1, 1, 0)
        refuses("rho_sigma must be finite", t.measured_stochastic_optimal, 1, 1, 1, bad, 0, 1)
    t.stochastic_bound(1, 1, 1, 1e-3, 1, 1, 0)
    t.stochastic_bound(1, 1, 1, 0.0, 1, 1, 0)
    for L0, L1 in ((0.0, 0.0), (-0.05, 1.0), (1.0, -0.05), (inf, 1.0), (1.0, inf)):
        refuses("L0 and L1", t.l0l1_bound, 1, L0, L1, 1, 0)
    t.l0l1_bound(1, 0.01, 0.01, 1, 0)
    refuses("one length", t.deterministic_general, 1, 1, [0.1, 0.2], [0.1, 0.2, 0.3])
    refuses("gammas must be positive", t.deterministic_general, 1, 1, [], [])
    same(t.deterministic_general(1, 1, 0.1, 0.2), t.deterministic_general(1, 1, [0.1], [0.2]))
    for lower in (0.0, 1.05, -0.05):
        refuses("lower must lie", t.polar_express_error, lower, 1)
        refuses("lower must lie", t.polar_express_steps, 0.5, lower)
    t.polar_express_error(0.05, 1)
    for delta in (0.0, 1.0, 1.05):
        refuses(r"delta must lie in \(0, 1\)", t.polar_express_steps, delta, 0.5)
    assert t.polar_express_steps(0.05, 0.9, 3) == 1
    for degree in (1, 2, 4):
        refuses("degree must be odd", t.polar_express_error, 0.5, 1, degree)
    for steps in (-1, 1.5):
        refuses("steps must be a whole number", t.polar_express_error, 0.5, steps)
    refuses("did you mean 'spectral'", t.rho, "spectrl", 1, 1)
    for shape in ((0, 1), (1, 0)):
        refuses("n and m must be at least 1", t.rho, "sign", *shape)


@check
def the_table_knows_every_function(t: ModuleType) -> None:
    public = {f for n, f in vars(t).items() if callable(f) and not isinstance(f, type) and not n.startswith("_")}
    assert {s.function for s in t.BOUNDS.values()} == public
    for name, s in t.BOUNDS.items():
        assert s.name == name == s.function.__name__.replace("_", "-")
        assert s.kind in {"bound", "optimum", "count", "step", "lemma", "factor", "model"}
        assert (s.source == "ours") == name.startswith("measured-")
        assert s.statement
        if s.source != "ours":
            assert any(word in s.function.__doc__ for word in s.source.split(" and ")), name
