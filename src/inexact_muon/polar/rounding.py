"""What rounding adds to the error bound of a method, as an envelope that is computed from its numbers."""

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
    """The error on [lower, 1] of one n x m matrix in the compute dtype float32 or float64: bound and rounding."""
    return method.error_bound(lower / (1.0 + guard(dtype))) + rounding(method, n, m, dtype)


def rounding(method: PolarMethod, n: int, m: int, dtype: torch.dtype) -> float:
    """The envelope, for spectra that are spread over the design interval.

    Polynomials in direct form: eps (8 + 2 slope + r/2), where r is what the steps make of a rounding error at the upper
    end of their intervals; infinite if it leaves them for good. In Gram form a segment of slope S multiplies the
    rounding of its Gram matrix by S^2, and later segments by their slope. A rational function moves by a share of
    eps/shift, and a polish multiplies that. If nearly all singular values lie at `lower` itself, it moves by up to
    ten times as much, which is not counted.
    """
    eps = EPS[NAMES[dtype]]
    if isinstance(method, Zolotarev):
        shift, eps = min(method.rational.poles), EPS[method.map.computes_in(NAMES[dtype])]
        if isinstance(method.map, Polished):
            return sum(map(abs, method.map.step)) * eps * (8.0 + POLISHED / shift)
        return eps * (8.0 + RATIONAL / shift)
    if not isinstance(method, Composition):
        return 0.0
    total = 8.0 + 2.0 * abs(method.map.slope) + 0.5 * _above(method, eps)
    return eps * (total + (GRAM * _segments(method, dtype) if method.runs_gram(n, m, dtype) else 0.0))


FLOAT16 = {"direct": 0.005, "gram": 0.02}
"""What float16 products with sums in float32 add to the overshoot of a method whose bound is at most 0.22, and, beside
twice that bound, to its gap. Measured by emulation over the spectra of the tests, recorded momentum and shapes up to
1024 x 4096 (`tests/test_tensor_cores.py`): at most 0.001 and 0.014."""

GRAM = 12.0
"""Twice the largest factor that 6000 random matrices of short side 4 to 130 needed."""

LOST = 0.25
"""An error above 1 + E from which a steep minimax polynomial does not come back."""

RATIONAL, POLISHED = 0.05, 0.2
"""The same for spread spectra and rational functions."""


def _above(method: Composition, eps: float) -> float:
    """The sum over the steps of what later ones make of an error of 1 at the upper end u: r <- |p'(u)| (1 + r)."""
    r = 0.0
    for step, u in zip(method.map.coefficients, method.map.uppers, strict=True):
        r = abs(sum((2 * k + 1) * c * u ** (2 * k) for k, c in enumerate(step))) * (1.0 + r)
        if r * eps > LOST:
            return inf
    return r


def _segments(method: Composition, dtype: torch.dtype) -> float:
    """The largest S^2 times later slopes over the segments of more than one step."""
    slopes = [abs(step[0]) for step in method.map.coefficients]
    edges = [0, *restarts(len(slopes), NAMES[dtype]), len(slopes)]
    found = [prod(slopes[i:j]) ** 2 * prod(slopes[j:]) for i, j in pairwise(edges) if j - i > 1]
    return max(found, default=0.0)
