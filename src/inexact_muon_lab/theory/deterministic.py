"""Full gradients, no momentum: x^{k+1} = x^k + gamma_k d_hat^k with d_hat^k the LMO output for grad f(x^k).

Constant step sizes, then the adaptive one that maximises the guaranteed descent, computed from ||grad_k||*, then the
same under (L0, L1)-smoothness, f(y) <= f(x) + <grad f(x), y-x> + (L0 + L1 ||grad f(x)||*)/2 norm(y-x)^2 along the run:
`adaptive_step` with L = L0 + L1 ||grad_k||*, where either constant may be zero, not both.

Last, several blocks, each with its ball, its constant L_i and its oracle. Correction to Assumption 5: smoothness must
be joint, f(X+D) <= f(X) + sum_i <grad_i, D_i> + 1/2 sum_i L_i norm(D_i)^2 for simultaneous updates of all blocks.
Constants for one block at a time are too small by up to the number of blocks p if f is convex (p L_i then suffices, and
(x_1 + ... + x_p)^2/2 needs it), and by any factor if it is not (x_1 x_2 has L_i = 0).

Each statement of the paper is the two-number one at (gap, overshoot) = (delta, 1 + delta).
"""

from __future__ import annotations

from math import sqrt

import numpy as np

from inexact_muon_lab.theory._base import Numbers, Optimum, aligned, statement, worst_pair


@statement("ours", "bound")
def measured_deterministic_general(D0: float, L: float, gammas: Numbers, gaps: Numbers, overshoots: Numbers) -> float:
    """min_{k<K} ||grad_k||* <= (D0 + L/2 sum gamma_k^2 nu_k^2) / sum gamma_k (1-eta_k).

    The sequences are those of the run: nothing has to be an upper bound. It bounds the mean of ||grad_k||* with weights
    gamma_k (1-eta_k) as well.
    """
    gamma, gap, nu = aligned(gammas=gammas, gaps=gaps, overshoots=overshoots)
    return float((D0 + L / 2.0 * ((gamma * nu) ** 2).sum()) / (gamma * (1.0 - gap)).sum())


@statement("ours", "bound")
def measured_deterministic_bound(D0: float, L: float, K: float, gamma: float, gap: float, overshoot: float) -> float:
    """mean_{k<K} ||grad_k||* <= 1/(1-eta) [D0/(K gamma) + L gamma nu^2/2]."""
    return (D0 / (K * gamma) + L * gamma * overshoot**2 / 2.0) / (1.0 - gap)


@statement("ours", "optimum")
def measured_deterministic_optimal(D0: float, L: float, K: float, gap: float, overshoot: float) -> Optimum:
    """gamma* = sqrt(2 D0/(K L))/nu; mean_{k<K} ||grad_k||* <= nu/(1-eta) sqrt(2 D0 L/K)."""
    return Optimum(sqrt(2.0 * D0 / (K * L)) / overshoot, overshoot / (1.0 - gap) * sqrt(2.0 * D0 * L / K))


@statement("ours", "count")
def measured_deterministic_iterations(D0: float, L: float, eps: float, gap: float, overshoot: float) -> float:
    """K >= 2 D0 L/eps^2 (nu/(1-eta))^2 gives mean ||grad_k||* <= eps with gamma*, min with the adaptive step."""
    return 2.0 * D0 * L * (overshoot / ((1.0 - gap) * eps)) ** 2


@statement("Theorem 1", "bound")
def deterministic_general(D0: float, L: float, gammas: Numbers, deltas: Numbers) -> float:
    """min_{k<K} ||grad_k||* <= (D0 + L/2 sum gamma_k^2 (1+delta_k)^2) / sum gamma_k (1-delta_k).

    Theorem 1 (General Result).
    """
    return measured_deterministic_general(D0, L, gammas, *worst_pair(deltas))


@statement("Corollary 1", "bound")
def deterministic_bound(D0: float, L: float, K: float, gamma: float, delta: float) -> float:
    """mean_{k<K} ||grad_k||* <= D0/(K gamma (1-delta)) + L gamma (1+delta)^2/(2 (1-delta)).

    Corollary 1 (Constant Parameters).
    """
    return measured_deterministic_bound(D0, L, K, gamma, *worst_pair(delta))


@statement("Corollary 2", "optimum")
def deterministic_optimal(D0: float, L: float, K: float, delta: float) -> Optimum:
    """gamma* = sqrt(2 D0/(K L))/(1+delta); mean_{k<K} ||grad_k||* <= (1+delta)/(1-delta) sqrt(2 D0 L/K).

    Corollary 2 (Optimal Parameters).
    """
    return measured_deterministic_optimal(D0, L, K, *worst_pair(delta))


@statement("Corollary 4", "count")
def deterministic_iterations(D0: float, L: float, eps: float, delta: float) -> float:
    """K >= 2 D0 L/eps^2 ((1+delta)/(1-delta))^2 gives mean_{k<K} ||grad_k||* <= eps with gamma*.

    Corollary 4 (Iteration Complexity with Constant Step Size), which prints the order; its proof has the constant 2.
    """
    return measured_deterministic_iterations(D0, L, eps, *worst_pair(delta))


@statement("ours", "step")
def measured_adaptive_step(L: float, dual: float, gap: float, overshoot: float) -> float:
    """gamma_k = (1-eta_k) ||grad_k||* / (L nu_k^2); for (L0, L1)-smoothness pass L = L0 + L1 ||grad_k||*."""
    return (1.0 - gap) * dual / (L * overshoot**2)


@statement("ours", "bound")
def measured_adaptive_bound(D0: float, L: float, gaps: Numbers, overshoots: Numbers) -> float:
    """min_{k<K} ||grad_k||* <= sqrt(2 L D0 / sum (1-eta_k)^2/nu_k^2) with the adaptive step.

    The sequences are those from which the steps were computed, each an upper bound on the true one.
    """
    gap, nu = aligned(gaps=gaps, overshoots=overshoots)
    return sqrt(2.0 * L * D0 / float((((1.0 - gap) / nu) ** 2).sum()))


@statement("Theorem 3", "step")
def adaptive_step(L: float, dual: float, delta: float) -> float:
    """gamma_k = (1-delta_k) ||grad_k||* / (L (1+delta_k)^2).

    Theorem 3 (adaptive step size); layer by layer, with L_i, Theorem 7; with L = L0 + L1 ||grad_k||*, Theorem 5.
    """
    return measured_adaptive_step(L, dual, *worst_pair(delta))


@statement("Theorem 3", "bound")
def adaptive_bound(D0: float, L: float, deltas: Numbers) -> float:
    """min_{k<K} ||grad_k||* <= sqrt(2 L D0 / sum ((1-delta_k)/(1+delta_k))^2) with the adaptive step.

    Theorem 3 (adaptive step size), the square root of both sides.
    """
    return measured_adaptive_bound(D0, L, *worst_pair(deltas))


@statement("Corollary 5", "bound")
def adaptive_uniform_bound(D0: float, L: float, K: float, delta: float) -> float:
    """min_{k<K} ||grad_k||* <= (1+delta)/(1-delta) sqrt(2 L D0/K) if every delta_k <= delta < 1.

    Corollary 5: the value of Corollary 2, without knowing D0 or K in advance, for the minimum instead of the mean.
    """
    return measured_deterministic_optimal(D0, L, K, *worst_pair(delta)).bound


@statement("Corollary 6", "count")
def adaptive_iterations(D0: float, L: float, eps: float, delta: float) -> float:
    """K >= 2 D0 L/eps^2 ((1+delta)/(1-delta))^2 gives min_{k<K} ||grad_k||* <= eps with the adaptive step.

    Corollary 6 (Iteration Complexity with Adaptive Step Size), with the constant that its proof gives.
    """
    return measured_deterministic_iterations(D0, L, eps, *worst_pair(delta))


@statement("ours", "count")
def measured_l0l1_iterations(D0: float, L0: float, L1: float, eps: float, gap: float, overshoot: float) -> float:
    """K >= 2 D0 (nu/(1-eta))^2 (L0/eps^2 + L1/eps) gives min_{k<K} ||grad_k||* <= eps with the adaptive step."""
    _check(L0, L1)
    return 2.0 * D0 * (overshoot / (1.0 - gap)) ** 2 * (L0 / eps**2 + L1 / eps)


@statement("Theorem 5", "count")
def l0l1_iterations(D0: float, L0: float, L1: float, eps: float, delta: float) -> float:
    """K >= 2 D0 ((1+delta)/(1-delta))^2 (L0/eps^2 + L1/eps) gives min_{k<K} ||grad_k||* <= eps with the adaptive step.

    Theorem 5 (Iteration Complexity for (L0, L1)-Smoothness). Correction: its proof reverses the inequality on phi(eps),
    which must be phi(eps) >= 2 D0 ((1+delta)/(1-delta))^2/K; the stated K is right.
    """
    return measured_l0l1_iterations(D0, L0, L1, eps, *worst_pair(delta))


@statement("ours", "bound")
def measured_l0l1_bound(D0: float, L0: float, L1: float, K: float, gap: float, overshoot: float) -> float:
    """min_{k<K} ||grad_k||* <= (B L1 + sqrt(B^2 L1^2 + 4 B L0))/2, B = 2 D0 (nu/(1-eta))^2/K."""
    _check(L0, L1)
    budget = 2.0 * D0 * (overshoot / (1.0 - gap)) ** 2 / K
    return (budget * L1 + sqrt((budget * L1) ** 2 + 4.0 * budget * L0)) / 2.0


@statement("Theorem 5", "bound")
def l0l1_bound(D0: float, L0: float, L1: float, K: float, delta: float) -> float:
    """min_{k<K} ||grad_k||* <= (B L1 + sqrt(B^2 L1^2 + 4 B L0))/2, B = 2 D0 ((1+delta)/(1-delta))^2/K.

    Theorem 5, the inequality phi(min) <= B of its proof solved for the minimum.
    """
    return measured_l0l1_bound(D0, L0, L1, K, *worst_pair(delta))


@statement("ours", "factor")
def measured_worst_layer_factor(gaps: Numbers, overshoots: Numbers) -> float:
    """max_i (nu_i/(1-eta_i))^2."""
    return float(np.max(np.asarray(overshoots) / (1.0 - np.asarray(gaps))) ** 2)


@statement("Theorem 7", "factor")
def worst_layer_factor(deltas: Numbers) -> float:
    """max_i ((1+delta_i)/(1-delta_i))^2.

    Theorem 7: the worst layer determines the number of iterations.
    """
    return measured_worst_layer_factor(*worst_pair(deltas))


@statement("ours", "bound")
def measured_layerwise_sum(D0: float, Ls: Numbers, gammas: Numbers, gaps: Numbers, overshoots: Numbers) -> float:
    """sum_{k,i} gamma_{k,i} (1-eta_{k,i}) ||grad_{k,i}||* <= D0 + 1/2 sum_{k,i} L_i gamma_{k,i}^2 nu_{k,i}^2."""
    gamma, _, nu = aligned(gammas=gammas, gaps=gaps, overshoots=overshoots)
    return float(D0 + (np.asarray(Ls) * (gamma * nu) ** 2).sum() / 2.0)


@statement("Theorem 6", "bound")
def layerwise_sum(D0: float, Ls: Numbers, gammas: Numbers, deltas: Numbers) -> float:
    """sum_{k,i} gamma_{k,i} (1-delta_{k,i}) ||grad_{k,i}||* <= D0 + 1/2 sum_{k,i} L_i gamma_{k,i}^2 (1+delta_{k,i})^2.

    Theorem 6 (General Convergence Bound for Layer-Wise Method); arrays are (steps, layers), Ls (layers,). Correction:
    the L_i must be joint constants, see the module.
    """
    return measured_layerwise_sum(D0, Ls, gammas, *worst_pair(deltas))


@statement("ours", "bound")
def measured_layerwise_bound(D0: float, K: float, gaps: Numbers, overshoots: Numbers) -> float:
    """min_{k<K} sum_i ||grad_{k,i}||*^2/L_i <= 2 D0/K max_i (nu_i/(1-eta_i))^2 with the adaptive steps."""
    return 2.0 * D0 / K * measured_worst_layer_factor(gaps, overshoots)


@statement("Theorem 7", "bound")
def layerwise_bound(D0: float, K: float, deltas: Numbers) -> float:
    """min_{k<K} sum_i ||grad_{k,i}||*^2/L_i <= 2 D0/K max_i ((1+delta_i)/(1-delta_i))^2 with the adaptive steps.

    Theorem 7 (Iteration Complexity with Layer-Wise Adaptive Step Sizes), before it is solved for K.
    """
    return measured_layerwise_bound(D0, K, *worst_pair(deltas))


@statement("ours", "count")
def measured_layerwise_iterations(D0: float, eps: float, gaps: Numbers, overshoots: Numbers) -> float:
    """K >= 2 D0/eps^2 max_i (nu_i/(1-eta_i))^2 gives min_{k<K} sum_i ||grad_{k,i}||*^2/L_i <= eps^2."""
    return 2.0 * D0 / eps**2 * measured_worst_layer_factor(gaps, overshoots)


@statement("Theorem 7", "count")
def layerwise_iterations(D0: float, eps: float, deltas: Numbers) -> float:
    """K >= 2 D0/eps^2 max_i ((1+delta_i)/(1-delta_i))^2 gives min_{k<K} sum_i ||grad_{k,i}||*^2/L_i <= eps^2.

    Theorem 7 (Iteration Complexity with Layer-Wise Adaptive Step Sizes).
    """
    return measured_layerwise_iterations(D0, eps, *worst_pair(deltas))


def _check(L0: float, L1: float) -> None:
    if not (0.0 <= L0 < float("inf") and 0.0 <= L1 < float("inf") and L0 + L1 > 0.0):
        raise ValueError(f"L0 and L1 must be finite, not negative and not both zero, got {L0} and {L1}")
