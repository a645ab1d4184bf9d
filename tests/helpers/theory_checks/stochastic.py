"""Theorem 2, Corollary 3 and ours."""

from math import exp, log, sqrt
from types import ModuleType

import numpy as np
import pytest

from theory_checks._base import PAIRS, RUNS, check, same


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
