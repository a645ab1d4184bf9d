"""Algorithm 1 with step size, momentum and error that change from step to step.

A(i, k) = prod_{j=i..k} (1-alpha_j), 1 if empty. All sums are taken step by step; m^0 = g^0.
"""

from __future__ import annotations

from math import exp, log, pi, sqrt

import numpy as np

from inexact_muon_lab.theory._base import Floats, Numbers, aligned, check_length, statement, worst_pair

ZETA = 2.612375348685488
"""zeta(3/2) = sum_k k^(-3/2)."""


@statement("ours", "lemma")
def measured_momentum_errors(
    L: float, rho_sigma: float, gammas: Numbers, alphas: Numbers, overshoots: Numbers
) -> Floats:
    """E_k <= rho sigma [A(0,k) + (sum_{i<=k} alpha_i^2 A(i+1,k)^2)^(1/2)] + L sum_{i<k} gamma_i nu_i A(i+1,k)."""
    return _unrolled(L, rho_sigma, gammas, alphas, overshoots, 2)


@statement("Lemma 3", "lemma")
def momentum_errors(L: float, rho_sigma: float, gammas: Numbers, alphas: Numbers, deltas: Numbers) -> Floats:
    """E_k <= rho sigma [A(0,k) + (sum_{i<=k} alpha_i^2 A(i+1,k))^(1/2)] + L sum_{i<k} gamma_i (1+delta_i) A(i+1,k).

    Lemma 3 (Momentum Error Bound for Time-Varying Parameters), T = k+1. Correction: its drift sum runs one term too
    far, to i = k; re-indexing the proof's sum ends at i = k-1.
    """
    return _unrolled(L, rho_sigma, gammas, alphas, worst_pair(deltas)[1], 1)


@statement("ours", "bound")
def measured_general_bound(
    D0: float, L: float, gammas: Numbers, gaps: Numbers, overshoots: Numbers, errors: Numbers
) -> float:
    """min_{k<K} E||grad_k||* <= (D0 + sum gamma_k c_k E_k + L/2 sum gamma_k^2 nu_k^2) / sum gamma_k (1-eta_k).

    c_k = 1-eta_k+nu_k; errors are bounds on E_k. Bounds the mean with weights gamma_k (1-eta_k) as well.
    """
    gamma, gap, nu, error = aligned(gammas=gammas, gaps=gaps, overshoots=overshoots, errors=errors)
    lag = gamma * (1.0 - gap + nu) * error
    return float((D0 + (lag + L / 2.0 * (gamma * nu) ** 2).sum()) / (gamma * (1.0 - gap)).sum())


@statement("Lemma 4", "bound")
def general_stochastic_bound(D0: float, L: float, gammas: Numbers, deltas: Numbers, errors: Numbers) -> float:
    """min_{k=1..K} E||grad_k||* <= (D0 + sum [L g_k^2 (1+d_k) (3(1+d_k)/2 + 2) + 2 g_k E_k]) / sum g_k (1-d_k).

    Lemma 4 (General Convergence Bound), divided by the sum of weights; g = gamma, d = delta, errors are bounds on E_k.
    """
    gamma, gap, nu, error = aligned(gammas=gammas, gaps=deltas, overshoots=worst_pair(deltas)[1], errors=errors)
    square = L * gamma**2 * nu * (3.0 / 2.0 * nu + 2.0)
    return float((D0 + (square + 2.0 * gamma * error).sum()) / (gamma * (1.0 - gap)).sum())


@statement("ours", "bound")
def measured_varying_bound(
    D0: float, L: float, rho_sigma: float, gammas: Numbers, alphas: Numbers, gaps: Numbers, overshoots: Numbers
) -> float:
    """`measured_general_bound` with E_k from `measured_momentum_errors`.

    gaps and overshoots bound, step by step, those of every run: under noise they depend on the run.
    """
    errors = measured_momentum_errors(L, rho_sigma, gammas, alphas, overshoots)
    return measured_general_bound(D0, L, gammas, gaps, overshoots, errors)


@statement("Lemmas 3 and 4", "bound")
def varying_bound(D0: float, L: float, rho_sigma: float, gammas: Numbers, alphas: Numbers, deltas: Numbers) -> float:
    """`general_stochastic_bound` with E_k from `momentum_errors`.

    Lemmas 3 and 4 together: Theorem 4 before its schedule is chosen.
    """
    errors = momentum_errors(L, rho_sigma, gammas, alphas, deltas)
    return general_stochastic_bound(D0, L, gammas, deltas, errors)


@statement("Theorem 4", "step")
def agnostic_schedule(K: int, gamma: float, alpha: float) -> tuple[Floats, Floats]:
    """gamma_k = gamma/(k+1)^(3/4), alpha_k = alpha/(k+1)^(1/2) for k < K.

    Theorem 4 (Convergence with Time-Varying Parameters).
    """
    check_length(K)
    k = np.arange(1, int(K) + 1, dtype=float)
    return gamma / k**0.75, alpha / k**0.5


@statement("ours", "bound")
def measured_time_varying_bound(
    D0: float, L: float, K: int, rho_sigma: float, gamma: float, alpha: float, gap: float, overshoot: float
) -> float:
    """`measured_varying_bound` with gamma_k = gamma/(k+1)^(3/4) and alpha_k = alpha/(k+1)^(1/2), summed."""
    gammas, alphas = agnostic_schedule(K, gamma, alpha)
    return measured_varying_bound(
        D0, L, rho_sigma, gammas, alphas, np.full(gammas.shape, gap), np.full(gammas.shape, overshoot)
    )


@statement("Theorem 4", "bound")
def time_varying_bound(
    D0: float, L: float, K: int, rho_sigma: float, gamma: float, alpha: float, delta: float
) -> float:
    """`varying_bound` with gamma_k = gamma/(k+1)^(3/4) and alpha_k = alpha/(k+1)^(1/2), summed.

    Theorem 4 (Convergence with Time-Varying Parameters), the series summed instead of O(). Correction: the paper's
    last step loses the initial noise; here it is kept, being part of E_k.
    """
    gammas, alphas = agnostic_schedule(K, gamma, alpha)
    return varying_bound(D0, L, rho_sigma, gammas, alphas, np.full(gammas.shape, delta))


@statement("ours", "bound")
def measured_time_varying_rate(
    D0: float, L: float, K: float, rho_sigma: float, gamma: float, alpha: float, gap: float, overshoot: float
) -> float:
    """(D0 + L gamma^2 nu^2 zeta(3/2)/2 + c S) / (4 gamma (1-eta)((K+1)^(1/4)-1)), S as below, nu for 1+delta."""
    lag = _lag_sum(L, K, rho_sigma, gamma, alpha, overshoot)
    top = D0 + L * (gamma * overshoot) ** 2 * ZETA / 2.0 + (1.0 - gap + overshoot) * lag
    return top / _weight_sum(K, gamma, gap)


@statement("Theorem 4", "bound")
def time_varying_rate(
    D0: float, L: float, K: float, rho_sigma: float, gamma: float, alpha: float, delta: float
) -> float:
    """(D0 + L gamma^2 (1+delta) zeta(3/2)(3(1+delta)/2 + 2) + 2 S) / (4 gamma (1-delta)((K+1)^(1/4)-1)).

    Theorem 4 with explicit constants: S = rho sigma gamma (I + H sqrt(alpha(1+alpha))) + L gamma^2 (1+delta) H/alpha
    bounds sum gamma_k E_k, with H = 1 + log K and I = min(1/alpha, e^(2 alpha) sqrt(2 pi/alpha)). Corrections: the
    initial noise I, lost in the paper, is added; the sum of gamma_k keeps (K+1)^(1/4) - 1, which the paper weakens to
    K^(1/4) - 1. Proof of the constants, for which the paper cites another work: docs/theory.md.
    """
    overshoot = 1.0 + delta
    lag = _lag_sum(L, K, rho_sigma, gamma, alpha, overshoot)
    top = D0 + L * gamma**2 * overshoot * ZETA * (3.0 * overshoot / 2.0 + 2.0) + 2.0 * lag
    return top / _weight_sum(K, gamma, delta)


def _lag_sum(L: float, K: float, rho_sigma: float, gamma: float, alpha: float, overshoot: float) -> float:
    """An upper bound on sum gamma_k E_k under the schedule."""
    harmonic = 1.0 + log(K)
    initial = min(1.0 / alpha, exp(2.0 * alpha) * sqrt(2.0 * pi / alpha))
    noise = rho_sigma * gamma * (initial + harmonic * sqrt(alpha * (1.0 + alpha)))
    return noise + L * gamma**2 * overshoot * harmonic / alpha


def _weight_sum(K: float, gamma: float, gap: float) -> float:
    """A lower bound on sum gamma_k (1-eta)."""
    return 4.0 * gamma * (1.0 - gap) * ((K + 1.0) ** 0.25 - 1.0)


def _unrolled(L: float, rho_sigma: float, gammas: Numbers, alphas: Numbers, overshoots: Numbers, power: int) -> Floats:
    """Both lemmas: the noise products are squared in ours and not in the paper's, (1-x)^2 <= 1-x."""
    gamma, alpha, nu = aligned(gammas=gammas, alphas=alphas, overshoots=overshoots)
    errors = np.empty(gamma.shape)
    initial, variance, drift = 1.0, 0.0, 0.0
    for k, (step_length, a) in enumerate(zip((gamma * nu).tolist(), alpha.tolist(), strict=True)):
        beta = 1.0 - a
        initial *= beta
        variance = beta**power * variance + a**2
        drift *= beta
        errors[k] = rho_sigma * (initial + sqrt(variance)) + L * drift
        drift += step_length
    return errors
