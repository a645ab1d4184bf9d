"""Slow-down factors of an inexact oracle on the optimal rates, and why noise reduces them.

By the envelope theorem, the exponent of (1+delta) in an optimised bound is the fraction of the bound that contains it,
times its power there. Deterministic: half of the bound contains (1+delta)^2, exponent 1. Stochastic: a quarter contains
(1+delta), exponent 1/4: of the three balanced terms only the drift of the gradient relative to the momentum depends on
the step length, and the term with (1+delta)^2 is of lower order. Both have the same 1/(1-delta).
"""

from __future__ import annotations

from inexact_muon_lab.theory._base import statement, worst_pair
from inexact_muon_lab.theory.stochastic import stochastic_minimum, stochastic_terms


@statement("ours", "factor")
def measured_deterministic_factor(gap: float, overshoot: float) -> float:
    """nu/(1-eta)."""
    return overshoot / (1.0 - gap)


@statement("ours", "factor")
def measured_stochastic_factor(gap: float, overshoot: float) -> float:
    """nu^(1/4) ((1-eta+nu)/2)^(3/4) / (1-eta)."""
    descent = 1.0 - gap
    return overshoot**0.25 * ((descent + overshoot) / 2.0) ** 0.75 / descent


@statement("Corollary 2", "factor")
def deterministic_factor(delta: float) -> float:
    """(1+delta)/(1-delta).

    Corollary 2: the factor of the rate.
    """
    return measured_deterministic_factor(*worst_pair(delta))


@statement("Corollary 3", "factor")
def stochastic_factor(delta: float) -> float:
    """(1+delta)^(1/4)/(1-delta).

    Corollary 3: the factor of the leading part of the rate.
    """
    return measured_stochastic_factor(*worst_pair(delta))


@statement("Corollary 3", "factor")
def stochastic_sensitivity(D0: float, L: float, K: float, rho_sigma: float, delta: float) -> float:
    """d log((1-delta) bound) / d log(1+delta) at the minimum of Theorem 2; 1/4 as K grows, 1 without noise.

    Commentary on Corollary 3. With terms T_i at the minimum: (T5 + T4 (1 + 3(1+delta)/(7+3 delta))) / sum T_i. At
    finite K the step term T4 raises it and the start term T2 lowers it. The 1 of the deterministic rate is that of
    Corollary 2.
    """
    if rho_sigma == 0.0:
        return 1.0
    best = stochastic_minimum(D0, L, K, rho_sigma, delta)
    terms = stochastic_terms(D0, L, K, rho_sigma, best.gamma, best.alpha, delta)
    step_power = 1.0 + 3.0 * (1.0 + delta) / (7.0 + 3.0 * delta)
    return (terms.drift + step_power * terms.step) / sum(terms)
