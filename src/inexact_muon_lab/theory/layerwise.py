"""Several blocks, each with its ball, its constant L_i and its oracle. Deterministic.

Correction to Assumption 5: smoothness must be joint, f(X+D) <= f(X) + sum_i <grad_i, D_i> + 1/2 sum_i L_i norm(D_i)^2
for simultaneous updates of all blocks. Constants for one block at a time are too small by up to the number of blocks p
if f is convex (p L_i then suffices, and (x_1 + ... + x_p)^2/2 needs it), and by any factor if it is not (x_1 x_2 has
L_i = 0).
"""

from __future__ import annotations

import numpy as np

from inexact_muon_lab.theory._base import Numbers, aligned, check, check_oracle, statement, worst_pair


@statement("ours", "factor")
def measured_worst_layer_factor(gaps: Numbers, overshoots: Numbers) -> float:
    """max_i (nu_i/(1-eta_i))^2."""
    check_oracle(gaps, overshoots)
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
    check_oracle(gaps, overshoots, D0=D0, Ls=Ls, gammas=gammas)
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
    check(D0=D0, K=K)
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
    check(D0=D0, eps=eps)
    return 2.0 * D0 / eps**2 * measured_worst_layer_factor(gaps, overshoots)


@statement("Theorem 7", "count")
def layerwise_iterations(D0: float, eps: float, deltas: Numbers) -> float:
    """K >= 2 D0/eps^2 max_i ((1+delta_i)/(1-delta_i))^2 gives min_{k<K} sum_i ||grad_{k,i}||*^2/L_i <= eps^2.

    Theorem 7 (Iteration Complexity with Layer-Wise Adaptive Step Sizes).
    """
    return measured_layerwise_iterations(D0, eps, *worst_pair(deltas))
