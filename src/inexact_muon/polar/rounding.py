"""Rounding error of a method, to be added to its error bound: an estimate from above, computed from coefficients."""

from __future__ import annotations

from itertools import pairwise
from math import inf, prod

import torch

from inexact_muon.polar._base import NAMES, PolarMethod
from inexact_muon.polar.polynomial import Composition
from inexact_muon.polar.rational import Zolotarev
from inexact_muon.polar.scaling import guard
from inexact_muon.schedules import Polished
from inexact_muon.schedules.operations import EPS
from inexact_muon.schedules.scalar_map import restarts


def reached(method: PolarMethod, n: int, m: int, lower: float, dtype: torch.dtype) -> float:
    """Error on [lower, 1] for one n x m matrix in float32 or float64: error bound plus rounding."""
    return method.error_bound(lower / (1.0 + guard(dtype))) + rounding(method, n, m, dtype)


def rounding(method: PolarMethod, n: int, m: int, dtype: torch.dtype) -> float:
    """Rounding error for spectra that are spread over the design interval.

    Polynomials in direct form: eps (8 + 2 slope + r/2), where r is the amplification of a rounding error at the upper
    ends of the steps' intervals; infinite if the iteration then diverges. In Gram form a segment of slope S multiplies
    the rounding error of its Gram matrix by S^2, and later segments by their slopes. A rational function has an error
    proportional to eps/shift, which a polish multiplies. If nearly all singular values are equal to `lower`, its error
    is up to ten times as large, which is not included.
    """
    eps = EPS[NAMES[dtype]]
    if isinstance(method, Zolotarev):
        shift, eps = min(method.rational.poles), EPS[method.map.computes_in(NAMES[dtype])]
        if isinstance(method.map, Polished):
            return sum(map(abs, method.map.step)) * eps * (8.0 + POLISHED / shift)
        return eps * (8.0 + RATIONAL / shift)
    if not isinstance(method, Composition):
        return 0.0
    total = 8.0 + 2.0 * abs(method.map.slope) + 0.5 * _amplification(method, eps)
    return eps * (total + (GRAM * _gram_amplification(method, dtype) if method.runs_gram(n, m, dtype) else 0.0))


FLOAT16 = {"direct": 0.005, "gram": 0.02}
"""Form -> bound on what float16 products with float32 accumulation add to the overshoot of a method whose error bound
is at most 0.22; the gap changes by at most this plus twice the error bound. Emulation of the spectra of the tests,
recorded momentum and shapes up to 1024 x 4096 gave at most 0.001 and 0.014 (`tests/test_tensor_cores.py`)."""

GRAM = 12.0
"""Factor of the Gram form: twice the largest one observed for 6000 random matrices of short side 4 to 130."""

LOST = 0.25
"""Error above 1 + E beyond which the iteration of a steep minimax polynomial diverges."""

RATIONAL, POLISHED = 0.05, 0.4
"""Factors of rational functions without and with polish, for spread spectra; CPUs differ by a factor of two."""


def _amplification(method: Composition, eps: float) -> float:
    """Sum over the steps of the amplification of an error at the upper end u by later steps: r <- |p'(u)| (1 + r)."""
    r = 0.0
    for step, u in zip(method.map.coefficients, method.map.uppers, strict=True):
        r = abs(sum((2 * k + 1) * c * u ** (2 * k) for k, c in enumerate(step))) * (1.0 + r)
        if r * eps > LOST:
            return inf
    return r


def _gram_amplification(method: Composition, dtype: torch.dtype) -> float:
    """Maximum of S^2 times the later slopes, over the segments of more than one step."""
    slopes = [abs(step[0]) for step in method.map.coefficients]
    edges = [0, *restarts(len(slopes), NAMES[dtype]), len(slopes)]
    found = [prod(slopes[i:j]) ** 2 * prod(slopes[j:]) for i, j in pairwise(edges) if j - i > 1]
    return max(found, default=0.0)
