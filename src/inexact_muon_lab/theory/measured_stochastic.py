"""Algorithm 1 under noise in two numbers: ours, proved in docs/theory.md. No Nesterov, no weight decay, m^0 = g^0."""

from __future__ import annotations

from math import exp, log, sqrt

from inexact_muon_lab.extras import require
from inexact_muon_lab.theory._base import StochasticOptimum, statement
from inexact_muon_lab.theory.deterministic import measured_deterministic_iterations, measured_deterministic_optimal
from inexact_muon_lab.theory.stochastic import Terms, asymptotic_alpha, smallest


@statement("ours", "bound")
def measured_stochastic_terms(
    D0: float, L: float, K: float, rho_sigma: float, gamma: float, alpha: float, gap: float, overshoot: float
) -> Terms:
    """1/(1-eta) times D0/(K gamma), c rho sigma a/K, c rho sigma s, L gamma nu^2/2, L gamma nu c a: the five terms.

    c = 1-eta+nu, a = (1-alpha)/alpha, s = sqrt(alpha/(2-alpha)).
    """
    descent = 1.0 - gap
    lag = (1.0 - alpha) / alpha
    c = (descent + overshoot) / descent
    return Terms(
        D0 / (K * gamma * descent),
        c * rho_sigma * lag / K,
        c * rho_sigma * sqrt(alpha / (2.0 - alpha)),
        L * gamma * overshoot**2 / (2.0 * descent),
        c * L * gamma * overshoot * lag,
    )


@statement("ours", "bound")
def measured_stochastic_bound(
    D0: float, L: float, K: float, rho_sigma: float, gamma: float, alpha: float, gap: float, overshoot: float
) -> float:
    """mean_{k<K} E||grad_k||* <= 1/(1-eta) [D0/(K gamma) + c rho sigma (a/K + s) + L gamma nu (c a + nu/2)].

    c = 1-eta+nu, a = (1-alpha)/alpha, s = sqrt(alpha/(2-alpha)); gap and overshoot bound those of every step of every
    run. Averages over a run are not enough. At (delta, 1+delta) it lies below Theorem 2, term by term.
    """
    return sum(measured_stochastic_terms(D0, L, K, rho_sigma, gamma, alpha, gap, overshoot))


@statement("ours", "bound")
def measured_stochastic_bound_next(
    D0: float, L: float, K: float, rho_sigma: float, gamma: float, alpha: float, gap: float, overshoot: float
) -> float:
    """mean_{k=1..K} E||grad_k||* <= measured_stochastic_bound + L gamma nu: the left side of Theorem 2."""
    bound = measured_stochastic_bound(D0, L, K, rho_sigma, gamma, alpha, gap, overshoot)
    return bound + L * gamma * overshoot


@statement("ours", "step")
def measured_stochastic_gamma(D0: float, L: float, K: float, alpha: float, gap: float, overshoot: float) -> float:
    """gamma* for a given alpha: sqrt(D0 / (K L nu (c (1-alpha)/alpha + nu/2))), c = 1-eta+nu."""
    c = 1.0 - gap + overshoot
    return sqrt(D0 / (K * L * overshoot * (c * (1.0 - alpha) / alpha + overshoot / 2.0)))


@statement("ours", "optimum")
def measured_stochastic_optimal(
    D0: float, L: float, K: float, rho_sigma: float, gap: float, overshoot: float
) -> StochasticOptimum:
    """alpha* = 2 sqrt(D0 L nu/(K c))/(rho sigma); gamma* = sqrt(D0 alpha*/(K c L nu)), c = 1-eta+nu.

    At (delta, 1+delta) these are Corollary 3's. They minimise the leading terms with sqrt(alpha) for
    sqrt(alpha/(2-alpha)): the bound at them stays within 1.6 % of its smallest value as K grows
    (`measured_stochastic_minimum`). alpha* >= 1, K <= 4 D0 L nu/(c (rho sigma)^2), is clipped to 1 (`.clipped`), with
    the best gamma there, which is the deterministic one; so is the case without noise.
    """
    alpha = asymptotic_alpha(D0, L, K, rho_sigma, gap, overshoot)
    if alpha < 1.0:
        gamma = sqrt(D0 * alpha / (K * (1.0 - gap + overshoot) * L * overshoot))
    else:
        alpha, gamma = 1.0, measured_deterministic_optimal(D0, L, K, gap, overshoot).gamma
    return StochasticOptimum(gamma, alpha, measured_stochastic_bound(D0, L, K, rho_sigma, gamma, alpha, gap, overshoot))


@statement("ours", "optimum")
def measured_stochastic_minimum(
    D0: float, L: float, K: float, rho_sigma: float, gap: float, overshoot: float
) -> StochasticOptimum:
    """The smallest value of measured_stochastic_bound over gamma > 0 and alpha in (0, 1], found numerically."""

    def bound(alpha: float) -> float:
        gamma = measured_stochastic_gamma(D0, L, K, alpha, gap, overshoot)
        return measured_stochastic_bound(D0, L, K, rho_sigma, gamma, alpha, gap, overshoot)

    alpha = smallest(bound, asymptotic_alpha(D0, L, K, rho_sigma, gap, overshoot))
    return StochasticOptimum(measured_stochastic_gamma(D0, L, K, alpha, gap, overshoot), alpha, bound(alpha))


@statement("ours", "count")
def measured_stochastic_iterations(
    D0: float, L: float, rho_sigma: float, eps: float, gap: float, overshoot: float
) -> float:
    """The K at which measured_stochastic_minimum is eps, found numerically; without noise the deterministic count."""
    brentq = require("scipy.optimize", "cli").brentq

    without = measured_deterministic_iterations(D0, L, eps, gap, overshoot)
    if rho_sigma == 0.0:
        return without

    def excess(t: float) -> float:  # t = log K; noise only adds to the bound, so that it is positive at `low`
        return log(measured_stochastic_minimum(D0, L, exp(t), rho_sigma, gap, overshoot).bound / eps)

    low = log(without) - 1.0
    return exp(float(brentq(excess, low, low + 100.0, xtol=1e-10)))


@statement("ours", "count")
def measured_stochastic_leading_iterations(
    D0: float, L: float, rho_sigma: float, eps: float, gap: float, overshoot: float
) -> float:
    """K ~ 2^5 D0 L (rho sigma)^2 nu c^3 / ((1-eta) eps)^4, c = 1-eta+nu: the leading order of the count, eps^(-4).

    At the minimum over gamma and alpha. At (delta, 1+delta) half of the paper's, with sqrt(alpha) for sqrt(alpha/2).
    """
    c = 1.0 - gap + overshoot
    return 2.0**5.0 * D0 * L * rho_sigma**2 * overshoot * c**3 / ((1.0 - gap) * eps) ** 4
