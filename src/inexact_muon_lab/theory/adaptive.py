"""Full gradients and the step size that maximises the guaranteed descent, from the dual norm of the gradient."""

from __future__ import annotations

from math import sqrt

import numpy as np

from inexact_muon_lab.theory._base import Numbers, aligned, check_oracle, worst_pair
from inexact_muon_lab.theory.deterministic import measured_deterministic_iterations, measured_deterministic_optimal


def measured_adaptive_step(L: float, dual: float, gap: float, overshoot: float) -> float:
    """gamma_k = (1-eta_k) ||grad_k||* / (L nu_k^2); for (L0, L1)-smoothness pass L = L0 + L1 ||grad_k||*."""
    check_oracle(gap, overshoot, L=L, dual=dual)
    return (1.0 - gap) * dual / (L * overshoot**2)


def measured_adaptive_bound(D0: float, L: float, gaps: Numbers, overshoots: Numbers) -> float:
    """min_{k<K} ||grad_k||* <= sqrt(2 L D0 / sum (1-eta_k)^2/nu_k^2) with the adaptive step.

    The sequences are those from which the steps were computed, each an upper bound on the true one.
    """
    check_oracle(gaps, overshoots, D0=D0, L=L)
    gap, nu = aligned(gaps=gaps, overshoots=overshoots)
    return sqrt(2.0 * L * D0 / float((((1.0 - gap) / nu) ** 2).sum()))


def adaptive_step(L: float, dual: float, delta: float) -> float:
    """gamma_k = (1-delta_k) ||grad_k||* / (L (1+delta_k)^2).

    Theorem 3 (adaptive step size); layer by layer, with L_i, Theorem 7; with L = L0 + L1 ||grad_k||*, Theorem 5.
    """
    return measured_adaptive_step(L, dual, *worst_pair(delta))


def adaptive_bound(D0: float, L: float, deltas: Numbers) -> float:
    """min_{k<K} ||grad_k||* <= sqrt(2 L D0 / sum ((1-delta_k)/(1+delta_k))^2) with the adaptive step.

    Theorem 3 (adaptive step size), the square root of both sides.
    """
    return measured_adaptive_bound(D0, L, *worst_pair(np.asarray(deltas)))


def adaptive_uniform_bound(D0: float, L: float, K: float, delta: float) -> float:
    """min_{k<K} ||grad_k||* <= (1+delta)/(1-delta) sqrt(2 L D0/K) if every delta_k <= delta < 1.

    Corollary 5: the value of Corollary 2, without knowing D0 or K in advance, for the minimum instead of the mean.
    """
    return measured_deterministic_optimal(D0, L, K, *worst_pair(delta)).bound


def adaptive_iterations(D0: float, L: float, eps: float, delta: float) -> float:
    """K >= 2 D0 L/eps^2 ((1+delta)/(1-delta))^2 gives min_{k<K} ||grad_k||* <= eps with the adaptive step.

    Corollary 6 (Iteration Complexity with Adaptive Step Size), with the constant that its proof gives.
    """
    return measured_deterministic_iterations(D0, L, eps, *worst_pair(delta))
