"""Theorems 1 and 3 with their corollaries, one step, (L0, L1) and layers."""

from math import sqrt
from types import ModuleType

import pytest

from theory_checks._base import PAIRS, RUNS, check, same, wave


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
