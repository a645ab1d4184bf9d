"""One step along a power of the singular values, if gradient and curvature are powers of them too.

For M = sum_i s_i u_i v_i^T with s_i > 0, let f(x - gamma D) = f(x) - gamma <G, D> + gamma^2/2 <D, H D>, where
<G, u_i v_i^T> = kappa s_i^r, and H is diagonal in the basis u_i v_i^T with entries Lambda s_i^q. The direction of power
p is D_p = sum_i s_i^p u_i v_i^T: p = 0 is the polar factor of M, p = 1 is M. S(t) = sum_i s_i^t.

Each statement is about one step at its best step size, not about a run.
"""

from __future__ import annotations

import numpy as np

from inexact_muon_lab.theory._base import Numbers, statement


@statement("ours", "optimum")
def power_optimal(r: float, q: float) -> float:
    """p* = r - q: the decrease of the best step along D_p rises with p below p* and falls above.

    The polar factor is best if and only if q = r. Strictly, unless all s_i are equal: then the D_p are multiples of one
    matrix, and every p is as good, whatever q and r. D_{p*} is best among all sum_i f_i u_i v_i^T, powers or not.
    """
    return r - q


@statement("ours", "lemma")
def power_decrease(sigmas: Numbers, kappa: float, Lambda: float, p: float, r: float, q: float) -> float:
    """f(x) - min_gamma f(x - gamma D_p) = kappa^2 S(p+r)^2 / (2 Lambda S(2p+q)), S(t) = sum_i s_i^t.

    Largest at p* = r - q (`power_optimal`), where it is kappa^2 S(2r-q)/(2 Lambda).
    """
    return 0.5 * power_step(sigmas, kappa, Lambda, p, r, q) * kappa * _sum(sigmas, p + r)


@statement("ours", "step")
def power_step(sigmas: Numbers, kappa: float, Lambda: float, p: float, r: float, q: float) -> float:
    """gamma = kappa S(p+r) / (Lambda S(2p+q)), S(t) = sum_i s_i^t: the best step along D_p."""
    return kappa * _sum(sigmas, p + r) / (Lambda * _sum(sigmas, 2.0 * p + q))


@statement("ours", "factor")
def power_share(sigmas: Numbers, p: float, r: float, q: float) -> float:
    """S(p+r)^2 / (S(2p+q) S(2r-q)) <= 1: the decrease of the best step along D_p over that along D_{p*}.

    1 - (p-p*)^2 Var(log s) to second order, with weights s_i^(2r-q). Equal to 1 if and only if p = p* or all s_i are
    equal.
    """
    return power_decrease(sigmas, 1.0, 1.0, p, r, q) / power_decrease(sigmas, 1.0, 1.0, power_optimal(r, q), r, q)


def _sum(sigmas: Numbers, t: float) -> float:
    """S(t)."""
    return float((np.asarray(sigmas, dtype=float) ** t).sum())
