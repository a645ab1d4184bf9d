"""Rounding error of a method, to be added to its error bound: an estimate from above, computed from coefficients."""

from __future__ import annotations

from itertools import pairwise
from math import inf, isfinite, prod

import numpy as np
import torch

from inexact_muon.polar._base import NAMES, PolarMethod
from inexact_muon.polar.polynomial import Composition
from inexact_muon.polar.rational import Zolotarev
from inexact_muon.polar.scaling import guard
from inexact_muon.schedules.rational import Rational
from inexact_muon.schedules.scalar_map import EPS, restarts


def reached(method: PolarMethod, n: int, m: int, lower: float, dtype: torch.dtype, spread: bool = False) -> float:
    """Error on [lower, 1] for one n x m matrix in float32 or float64: error bound plus `rounding`."""
    # The norm is multiplied by 1 + guard, and may be high by as much as it may be low.
    lower = lower / (1.0 + guard(dtype, min(n, m), max(n, m), method.normaliser)) ** 2
    if isinstance(method, Composition):
        lower = lower / prod(1.0 + margin for margin in method.map.margins(NAMES[dtype]))
    return method.error_bound(lower) + rounding(method, n, m, dtype, spread)


def rounding(method: PolarMethod, n: int, m: int, dtype: torch.dtype, spread: bool = False) -> float:
    """Rounding error for any spectrum within the design interval, or for those that are `spread` over it.

    Polynomials in direct form: eps (8 + sqrt(n) + 2 slope + r/2), where n is the short side, on which random errors of
    products grow by its root, and r is the amplification of a rounding error at the upper ends u of the steps'
    intervals, r <- |p'(u)| (1 + r); infinite if the iteration then diverges. A safety factor, or the margin with which
    others are computed, absorbs the errors of all steps but the last. In Gram form a segment of slope S multiplies the
    rounding error of its Gram matrix by S^2, and later segments by their slopes. A rational function: see `_rational`.
    """
    eps, base = EPS[NAMES[dtype]], 8.0 + min(n, m) ** 0.5
    if isinstance(method, Zolotarev):
        return _rational(method.map, EPS[method.map.computes_in(NAMES[dtype])], base, spread)
    if not isinstance(method, Composition):
        return 0.0
    steps, r = method.map.coefficients, 0.0
    for step, u in zip(steps, method.map.ends[:-1], strict=True):
        before = 0.0 if isfinite(method.map.safety) else r
        r = abs(sum((2 * k + 1) * c * u ** (2 * k) for k, c in enumerate(step))) * (1.0 + before)
        if r * eps > LOST:
            return inf
    total = base + 2.0 * abs(method.map.slope) + 0.5 * r
    if method.runs_gram(n, m, dtype):
        slopes = [abs(step[0]) for step in steps]
        edges = pairwise((0, *restarts(len(slopes), NAMES[dtype]), len(slopes)))
        total += GRAM * max((prod(slopes[i:j]) ** 2 * prod(slopes[j:]) for i, j in edges if j - i > 1), default=0.0)
    return eps * total


GRAM = 12.0
"""Factor of the Gram form: twice the largest one observed for 6000 random matrices of short side 4 to 130."""

LOST = 0.25
"""Error above 1 + E beyond which the iteration of a steep minimax polynomial diverges."""

RATIONAL = 6.0
"""Rounding errors of the Gram matrix and of its factorisation, in eps: twice the largest one that searches found, with
few large singular values, the others near `lower`, and the large ones in few rows."""

SPREAD, SPREAD_POLISHED = 0.05, 0.4
"""The same over the smallest shift, for spread spectra, without and with a polish."""


def _rational(f: Rational, eps: float, base: float, spread: bool) -> float:
    """An error E of X X^T + c_j I changes f by scale sum_j |a_j| s/(s^2 + c_j)^2 ||E||, largest where s is small.

    That is the case if all singular values but a few, which determine ||E||, are there. A polish multiplies it by the
    sum of its coefficients.
    """
    growth, typical = (sum(map(abs, f.polish)), SPREAD_POLISHED) if f.polish else (1.0, SPREAD)
    if spread:
        return eps * growth * (base + typical / min(f.poles))
    s = np.geomspace(min(f.lower, 0.5 * min(f.poles) ** 0.5), 1.0, 1000)[:, None]
    gain = f.scale * (np.abs(f.residues) * s / (s * s + np.array(f.poles)) ** 2).sum(-1).max()
    return float(eps * growth * (base + RATIONAL * gain))
