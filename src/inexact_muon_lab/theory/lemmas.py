"""One step of Algorithm 1: its descent, and the distance of the momentum from the gradient."""

from __future__ import annotations

from math import sqrt

from inexact_muon_lab.theory._base import POSITIVE, statement


@statement("ours", "lemma")
def measured_descent(
    f: float, L: float, gamma: float, dual_momentum: float, error: float, gap: float, overshoot: float
) -> float:
    """f(x^{k+1}) <= f(x^k) - gamma (1-eta) ||m^{k+1}||* + gamma nu ||grad_k - m^{k+1}||* + L gamma^2 nu^2/2."""
    return f - gamma * (1.0 - gap) * dual_momentum + gamma * overshoot * error + L * (gamma * overshoot) ** 2 / 2.0


@statement("Lemma 2", "lemma")
def descent(f: float, L: float, gamma: float, dual_momentum: float, error_next: float, delta: float) -> float:
    """f(x^{k+1}) <= f(x^k) - gamma (1-delta) ||m||* + gamma (1+delta) ||grad_{k+1} - m||* + 3L/2 gamma^2 (1+delta)^2.

    Lemma 2 (Inexact Descent Lemma), m = m^{k+1}. The error is that of the momentum against the gradient at x^{k+1}.
    """
    step_length = gamma * (1.0 + delta)
    return f - gamma * (1.0 - delta) * dual_momentum + step_length * error_next + 3.0 * L / 2.0 * step_length**2


@statement("ours", "step", dual_momentum=POSITIVE)
def measured_polyak_step(D0: float, dual_momentum: float, gap: float) -> float:
    """gamma = D0 / ((1-eta) ||m||*), D0 = f(x^k) - f*: a step along d_hat reaches f* to first order.

    Its ratio for two answers to one m, (1-eta_A)/(1-eta_B), depends on neither f nor m: the transfer rule `descent`. If
    f(x + d) depends on <m, d> only, as for curvature c m m^T, it is the ratio of the best steps exactly.
    """
    return D0 / ((1.0 - gap) * dual_momentum)


@statement("ours", "lemma")
def measured_momentum_error_step(
    previous: float, L: float, rho_sigma: float, gamma_previous: float, alpha: float, overshoot_previous: float
) -> float:
    """E_k <= (1-alpha_k) (E_{k-1} + L gamma_{k-1} nu_{k-1}) + alpha_k rho sigma.

    True, but too weak for the theorem: its fixed point contains the whole noise rho sigma. The unrolled lemma averages
    it.
    """
    return (1.0 - alpha) * (previous + L * gamma_previous * overshoot_previous) + alpha * rho_sigma


@statement("Lemma 1", "lemma")
def momentum_error_step(
    previous: float, L: float, rho_sigma: float, gamma_previous: float, alpha: float, delta_previous: float
) -> float:
    """E_k <= (1-alpha_k) (E_{k-1} + L gamma_{k-1} (1+delta_{k-1})) + rho sigma sqrt(alpha_k/(2-alpha_k)).

    Lemma 1, one step. Correction: the paper prints the drift as L gamma_k (1+delta_k), which is false for falling
    step sizes; the drift belongs to the step before and decays with it. Its fixed point has noise
    rho sigma/sqrt(alpha (2-alpha)): iterating it does not give Theorem 2, the unrolled `momentum_errors` does.
    """
    drift = L * gamma_previous * (1.0 + delta_previous)
    return (1.0 - alpha) * (previous + drift) + rho_sigma * sqrt(alpha / (2.0 - alpha))


@statement("ours", "lemma")
def measured_momentum_error(
    k: float, L: float, rho_sigma: float, gamma: float, alpha: float, overshoot: float
) -> float:
    """E_k <= rho sigma [(1-alpha)^(k+1) + sqrt(alpha/(2-alpha))] + L gamma nu (1-alpha)/alpha."""
    noise = (1.0 - alpha) ** (k + 1.0) + sqrt(alpha / (2.0 - alpha))
    return rho_sigma * noise + L * gamma * overshoot * (1.0 - alpha) / alpha


@statement("Lemma 1", "lemma")
def momentum_error(k: float, L: float, rho_sigma: float, gamma: float, alpha: float, delta: float) -> float:
    """E_k = E||m^{k+1} - grad_k||* <= rho sigma [(1-alpha)^(k+1) + sqrt(alpha/(2-alpha))] + L gamma (1+delta)/alpha.

    Lemma 1, the steady state that its proof ends with. Needs m^0 = g^0, which the statement leaves out.
    """
    overshoot = 1.0 + delta
    return measured_momentum_error(k, L, rho_sigma, gamma, alpha, overshoot) + L * gamma * overshoot  # 1/a = (1-a)/a+1
