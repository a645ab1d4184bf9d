"""(L0, L1)-smoothness: f(y) <= f(x) + <grad f(x), y-x> + (L0 + L1 ||grad f(x)||*)/2 norm(y-x)^2 along the run.

The step is `adaptive_step` with L = L0 + L1 ||grad_k||*. Either constant may be zero, not both.
"""

from __future__ import annotations

from math import sqrt

from inexact_muon_lab.theory._base import check_oracle, worst_pair


def measured_l0l1_iterations(D0: float, L0: float, L1: float, eps: float, gap: float, overshoot: float) -> float:
    """K >= 2 D0 (nu/(1-eta))^2 (L0/eps^2 + L1/eps) gives min_{k<K} ||grad_k||* <= eps with the adaptive step."""
    _check(L0, L1)
    check_oracle(gap, overshoot, D0=D0, eps=eps)
    return 2.0 * D0 * (overshoot / (1.0 - gap)) ** 2 * (L0 / eps**2 + L1 / eps)


def l0l1_iterations(D0: float, L0: float, L1: float, eps: float, delta: float) -> float:
    """K >= 2 D0 ((1+delta)/(1-delta))^2 (L0/eps^2 + L1/eps) gives min_{k<K} ||grad_k||* <= eps with the adaptive step.

    Theorem 5 (Iteration Complexity for (L0, L1)-Smoothness). Correction: its proof reverses the inequality on phi(eps),
    which must be phi(eps) >= 2 D0 ((1+delta)/(1-delta))^2/K; the stated K is right.
    """
    return measured_l0l1_iterations(D0, L0, L1, eps, *worst_pair(delta))


def measured_l0l1_bound(D0: float, L0: float, L1: float, K: float, gap: float, overshoot: float) -> float:
    """min_{k<K} ||grad_k||* <= (B L1 + sqrt(B^2 L1^2 + 4 B L0))/2, B = 2 D0 (nu/(1-eta))^2/K."""
    _check(L0, L1)
    check_oracle(gap, overshoot, D0=D0, K=K)
    budget = 2.0 * D0 * (overshoot / (1.0 - gap)) ** 2 / K
    return (budget * L1 + sqrt((budget * L1) ** 2 + 4.0 * budget * L0)) / 2.0


def l0l1_bound(D0: float, L0: float, L1: float, K: float, delta: float) -> float:
    """min_{k<K} ||grad_k||* <= (B L1 + sqrt(B^2 L1^2 + 4 B L0))/2, B = 2 D0 ((1+delta)/(1-delta))^2/K.

    Theorem 5, the inequality phi(min) <= B of its proof solved for the minimum.
    """
    return measured_l0l1_bound(D0, L0, L1, K, *worst_pair(delta))


def _check(L0: float, L1: float) -> None:
    if not (0.0 <= L0 < float("inf") and 0.0 <= L1 < float("inf") and L0 + L1 > 0.0):
        raise ValueError(f"L0 and L1 must be finite, not negative and not both zero, got {L0} and {L1}")
