"""Algorithm 1 with constant step size and momentum under noise: Theorem 2 and Corollary 3."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, inf, log, sqrt
from typing import NamedTuple

import numpy as np

from inexact_muon_lab.extras import require
from inexact_muon_lab.theory._base import StochasticOptimum, statement, worst_pair
from inexact_muon_lab.theory.deterministic import deterministic_iterations, deterministic_optimal


class Terms(NamedTuple):
    """The five terms of Theorem 2: D0/(K gamma), 2 rho sigma/(alpha K), 2 rho sigma sqrt(alpha), and two in L gamma."""

    initial: float
    start: float
    noise: float
    step: float
    drift: float


class Parts(NamedTuple):
    """The three parts of the bound at Corollary 3's parameters, by the power of K."""

    quarter: float
    half: float
    three_quarters: float


@statement("Theorem 2", "bound")
def stochastic_terms(
    D0: float, L: float, K: float, rho_sigma: float, gamma: float, alpha: float, delta: float
) -> Terms:
    """C1/gamma, C2/alpha, C3 sqrt(alpha), C4 gamma, C5 gamma/alpha: the five terms of `stochastic_bound`.

    Theorem 2, as split in the proof of Corollary 3. Correction: C4 = L (1+delta)(7+3 delta)/(2(1-delta)), as proved;
    the printed theorem lacks the factor 1+delta.
    """
    descent, overshoot = 1.0 - delta, 1.0 + delta
    return Terms(
        D0 / (K * gamma * descent),
        2.0 * rho_sigma / (K * alpha * descent),
        2.0 * rho_sigma * sqrt(alpha) / descent,
        L * gamma * overshoot * (7.0 + 3.0 * delta) / (2.0 * descent),
        2.0 * L * gamma * overshoot / (alpha * descent),
    )


@statement("Theorem 2", "bound")
def stochastic_bound(
    D0: float, L: float, K: float, rho_sigma: float, gamma: float, alpha: float, delta: float
) -> float:
    """mean_{k=1..K} E||grad_k||* <= 1/(1-delta) [D0/(K gamma) + 2 rho sigma (1/(alpha K) + sqrt(alpha)) + L gamma B].

    Theorem 2, B = (1+delta)(7+3 delta)/2 + 2(1+delta)/alpha. Corrections: B's first part as proved, not as printed (see
    `stochastic_terms`; the printed value is true as well, by the two-number proof); needs m^0 = g^0, which is not
    stated; Assumption 3 must hold given the whole past, not x^k alone.
    """
    return sum(stochastic_terms(D0, L, K, rho_sigma, gamma, alpha, delta))


@statement("Theorem 2", "step")
def stochastic_gamma(D0: float, L: float, K: float, alpha: float, delta: float) -> float:
    """gamma that minimises Theorem 2 for a given alpha: sqrt(D0 / (K L (1+delta) ((7+3 delta)/2 + 2/alpha)))."""
    return sqrt(D0 / (K * L * (1.0 + delta) * ((7.0 + 3.0 * delta) / 2.0 + 2.0 / alpha)))


@statement("Corollary 3", "optimum")
def stochastic_optimal(D0: float, L: float, K: float, rho_sigma: float, delta: float) -> StochasticOptimum:
    """alpha* = sqrt(2 D0 L (1+delta)/K)/(rho sigma); gamma* = sqrt(D0 alpha*/(2 K L (1+delta))).

    Corollary 3, with the appendix's constants and rho, which the printed corollary drops; gamma* is its
    D0^(3/4)/(2^(1/4) K^(3/4) L^(1/4) (rho sigma)^(1/2) (1+delta)^(1/4)). The bound is Theorem 2's at these parameters.
    Correction: alpha* <= 1 is unstated. Above 1 alpha is clipped to 1 (`.clipped`) and gamma minimises the bound
    there. Without noise it falls back to `deterministic_optimal`, which bounds the mean over k = 0..K-1.
    """
    if rho_sigma == 0.0:
        return _without_noise(D0, L, K, delta)
    alpha = asymptotic_alpha(D0, L, K, rho_sigma, *worst_pair(delta))
    if alpha < 1.0:
        gamma = sqrt(D0 * alpha / (2.0 * K * L * (1.0 + delta)))
    else:
        alpha, gamma = 1.0, stochastic_gamma(D0, L, K, 1.0, delta)
    return StochasticOptimum(gamma, alpha, stochastic_bound(D0, L, K, rho_sigma, gamma, alpha, delta))


@statement("Corollary 3", "bound")
def stochastic_optimal_parts(D0: float, L: float, K: float, rho_sigma: float, delta: float) -> Parts:
    """2^(9/4) (D0 L (1+d))^(1/4) (rho sigma)^(1/2)/(K^(1/4)(1-d)) + a part in K^(-1/2) + a part in K^(-3/4).

    Corollary 3, the appendix's full bound. Defined while alpha* <= 1, that is K >= 2 D0 L (1+delta)/(rho sigma)^2.
    """
    if asymptotic_alpha(D0, L, K, rho_sigma, *worst_pair(delta)) > 1.0:
        needed = 2.0 * D0 * L * (1.0 + delta) / rho_sigma**2 if rho_sigma else inf
        raise ValueError(
            f"K must be at least {needed:.6g} for alpha* <= 1, got {K}: use stochastic_optimal, which clips"
        )
    return _parts(D0, L, K, rho_sigma, delta)


def _parts(D0: float, L: float, K: float, rho_sigma: float, delta: float) -> Parts:
    descent, scale = 1.0 - delta, D0 * L * (1.0 + delta)
    return Parts(
        2.0**2.25 * scale**0.25 * sqrt(rho_sigma) / (K**0.25 * descent),
        sqrt(2.0) * rho_sigma**2 / (sqrt(K * scale) * descent),
        (7.0 + 3.0 * delta) * scale**0.75 / (2.0**1.25 * K**0.75 * descent * sqrt(rho_sigma)),
    )


@statement("Theorem 2", "optimum")
def stochastic_minimum(D0: float, L: float, K: float, rho_sigma: float, delta: float) -> StochasticOptimum:
    """The smallest value of Theorem 2's bound over gamma > 0 and alpha in (0, 1], found numerically.

    Not in the paper, which has the asymptotic optimum of Corollary 3 only.
    """
    if rho_sigma == 0.0:
        return _without_noise(D0, L, K, delta)

    def bound(alpha: float) -> float:
        gamma = stochastic_gamma(D0, L, K, alpha, delta)
        return stochastic_bound(D0, L, K, rho_sigma, gamma, alpha, delta)

    alpha = smallest(bound, asymptotic_alpha(D0, L, K, rho_sigma, *worst_pair(delta)))
    return StochasticOptimum(stochastic_gamma(D0, L, K, alpha, delta), alpha, bound(alpha))


@statement("Corollary 3", "count")
def stochastic_iterations(D0: float, L: float, rho_sigma: float, eps: float, delta: float) -> float:
    """The smallest K for which Corollary 3's full bound is at most eps (and alpha* <= 1).

    Corollary 3, solved for K with all constants; for small eps it is `stochastic_leading_iterations`.
    """
    brentq = require("scipy.optimize", "cli").brentq

    if rho_sigma == 0.0:
        return deterministic_iterations(D0, L, eps, delta)
    first = asymptotic_alpha(D0, L, 1.0, rho_sigma, *worst_pair(delta)) ** 2
    parts = _parts(D0, L, first, rho_sigma, delta)

    def excess(u: float) -> float:  # u = (first/K)^(1/4)
        return parts.quarter * u + parts.half * u**2 + parts.three_quarters * u**3 - eps

    return first if excess(1.0) <= 0.0 else float(first / brentq(excess, 0.0, 1.0, xtol=1e-300, rtol=1e-14) ** 4)


@statement("Corollary 3", "count")
def stochastic_leading_iterations(D0: float, L: float, rho_sigma: float, eps: float, delta: float) -> float:
    """K ~ 2^9 D0 L (rho sigma)^2 (1+delta) / ((1-delta) eps)^4: the leading order of the count, eps^(-4).

    Corollary 3, its dominant part solved for K.
    """
    return 2.0**9.0 * D0 * L * rho_sigma**2 * (1.0 + delta) / ((1.0 - delta) * eps) ** 4


def smallest(bound: Callable[[float], float], around: float) -> float:
    """alpha in (0, 1] with the smallest bound: a grid from far below a guess up to 1, then a local search."""
    minimize_scalar = require("scipy.optimize", "cli").minimize_scalar

    grid = np.linspace(log(min(around, 1.0)) - 10.0, 0.0, 120)
    best = int(np.argmin([bound(exp(t)) for t in grid]))
    ends = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    minimum = minimize_scalar(lambda t: bound(exp(t)), bounds=ends, method="bounded", options={"xatol": 1e-10})
    return min(1.0, exp(float(minimum.x)), key=bound)


def asymptotic_alpha(D0: float, L: float, K: float, rho_sigma: float, gap: float, overshoot: float) -> float:
    """alpha* = 2 sqrt(D0 L nu/(K c))/(rho sigma), c = 1-eta+nu, not clipped; Corollary 3's at (delta, 1+delta)."""
    scale = D0 * L * overshoot / (K * (1.0 - gap + overshoot))
    return 2.0 * sqrt(scale) / rho_sigma if rho_sigma else inf


def _without_noise(D0: float, L: float, K: float, delta: float) -> StochasticOptimum:
    gamma, bound = deterministic_optimal(D0, L, K, delta)
    return StochasticOptimum(gamma, 1.0, bound)
