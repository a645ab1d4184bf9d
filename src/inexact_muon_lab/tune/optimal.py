"""The paper's best settings as keyword arguments of an optimizer."""

from __future__ import annotations

from inexact_muon_lab.theory.deterministic import deterministic_optimal
from inexact_muon_lab.theory.stochastic import stochastic_optimal


def constant_optimal(D0: float, L: float, K: float, delta: float, rho_sigma: float = 0.0) -> dict[str, float]:
    """lr and momentum of Corollary 2 (no noise) or Corollary 3, as keyword arguments of an optimizer.

    No noise: gamma* = sqrt(2 D0/(K L))/(1+delta), momentum 0. Noise: alpha* = sqrt(2 D0 L (1+delta)/K)/(rho sigma),
    momentum = 1 - alpha*.

    >>> constant_optimal(D0=2.0, L=1.0, K=100, delta=0.0)
    {'lr': 0.2, 'momentum': 0.0}
    """
    if rho_sigma == 0.0:
        return {"lr": deterministic_optimal(D0, L, K, delta).gamma, "momentum": 0.0}
    best = stochastic_optimal(D0, L, K, rho_sigma, delta)
    return {"lr": best.gamma, "momentum": 1.0 - best.alpha}
