"""Full gradients, no momentum: x^{k+1} = x^k + gamma_k d_hat^k with d_hat^k the LMO output for grad f(x^k).

Each statement of the paper is the two-number one at (gap, overshoot) = (delta, 1 + delta).
"""

from __future__ import annotations

from math import sqrt

from inexact_muon_lab.theory._base import Numbers, Optimum, aligned, check_oracle, worst_pair


def measured_deterministic_general(D0: float, L: float, gammas: Numbers, gaps: Numbers, overshoots: Numbers) -> float:
    """min_{k<K} ||grad_k||* <= (D0 + L/2 sum gamma_k^2 nu_k^2) / sum gamma_k (1-eta_k).

    The sequences are those of the run: nothing has to be an upper bound. It bounds the mean of ||grad_k||* with weights
    gamma_k (1-eta_k) as well.
    """
    check_oracle(gaps, overshoots, D0=D0, L=L, gammas=gammas)
    gamma, gap, nu = aligned(gammas=gammas, gaps=gaps, overshoots=overshoots)
    return float((D0 + L / 2.0 * ((gamma * nu) ** 2).sum()) / (gamma * (1.0 - gap)).sum())


def measured_deterministic_bound(D0: float, L: float, K: float, gamma: float, gap: float, overshoot: float) -> float:
    """mean_{k<K} ||grad_k||* <= 1/(1-eta) [D0/(K gamma) + L gamma nu^2/2]."""
    check_oracle(gap, overshoot, D0=D0, L=L, K=K, gamma=gamma)
    return (D0 / (K * gamma) + L * gamma * overshoot**2 / 2.0) / (1.0 - gap)


def measured_deterministic_optimal(D0: float, L: float, K: float, gap: float, overshoot: float) -> Optimum:
    """gamma* = sqrt(2 D0/(K L))/nu; mean_{k<K} ||grad_k||* <= nu/(1-eta) sqrt(2 D0 L/K)."""
    check_oracle(gap, overshoot, D0=D0, L=L, K=K)
    return Optimum(sqrt(2.0 * D0 / (K * L)) / overshoot, overshoot / (1.0 - gap) * sqrt(2.0 * D0 * L / K))


def measured_deterministic_iterations(D0: float, L: float, eps: float, gap: float, overshoot: float) -> float:
    """K >= 2 D0 L/eps^2 (nu/(1-eta))^2 gives mean ||grad_k||* <= eps with gamma*, min with the adaptive step."""
    check_oracle(gap, overshoot, D0=D0, L=L, eps=eps)
    return 2.0 * D0 * L * (overshoot / ((1.0 - gap) * eps)) ** 2


def deterministic_general(D0: float, L: float, gammas: Numbers, deltas: Numbers) -> float:
    """min_{k<K} ||grad_k||* <= (D0 + L/2 sum gamma_k^2 (1+delta_k)^2) / sum gamma_k (1-delta_k).

    Theorem 1 (General Result).
    """
    return measured_deterministic_general(D0, L, gammas, *worst_pair(deltas))


def deterministic_bound(D0: float, L: float, K: float, gamma: float, delta: float) -> float:
    """mean_{k<K} ||grad_k||* <= D0/(K gamma (1-delta)) + L gamma (1+delta)^2/(2 (1-delta)).

    Corollary 1 (Constant Parameters).
    """
    return measured_deterministic_bound(D0, L, K, gamma, *worst_pair(delta))


def deterministic_optimal(D0: float, L: float, K: float, delta: float) -> Optimum:
    """gamma* = sqrt(2 D0/(K L))/(1+delta); mean_{k<K} ||grad_k||* <= (1+delta)/(1-delta) sqrt(2 D0 L/K).

    Corollary 2 (Optimal Parameters).
    """
    return measured_deterministic_optimal(D0, L, K, *worst_pair(delta))


def deterministic_iterations(D0: float, L: float, eps: float, delta: float) -> float:
    """K >= 2 D0 L/eps^2 ((1+delta)/(1-delta))^2 gives mean_{k<K} ||grad_k||* <= eps with gamma*.

    Corollary 4 (Iteration Complexity with Constant Step Size), which prints the order; its proof has the constant 2.
    """
    return measured_deterministic_iterations(D0, L, eps, *worst_pair(delta))
