"""X -> p_T(... p_1(X)) for odd polynomials, in two forms that agree in exact arithmetic.

    direct   A = X X^T,  X <- h(A) X                                         at each step
    gram     R = X X^T,  Q = I;  Z = h(R),  Q <- Q Z,  R <- Z R Z  at each step;  X <- Q X at the end

The Gram form does its steps on n x n matrices, which pays when m > 1.5 n. It squares the condition
number, and rounding leaves tiny negative eigenvalues in R that grow by h(0)^2 a step; a restart
(X <- Q X, R <- X X^T, Q <- I) stops both. Shapes: x is (batch, n, m), n <= m; gram is (batch, n, n).
"""

from __future__ import annotations

from collections.abc import Collection
from math import comb

import torch
from torch import Tensor

from inexact_muon.polar.scaling import frobenius, gram_bound, guarded
from inexact_muon.schedules.scalar_map import Schedule

GRAM_ASPECT = 1.5
"""m/n above which the Gram form needs fewer products than the direct one, for every degree."""


def restarts(steps: int) -> tuple[int, ...]:
    """Steps after which the Gram form restarts: after the second, then after every third."""
    return tuple(range(2, steps, 3))


def normalised(x: Tensor, dtype: torch.dtype, normalise: str) -> tuple[Tensor, Tensor | None]:
    """x over an upper bound on its largest singular value, in `dtype`, and its Gram matrix if formed.

    The bound is computed in float32 or better from what was rounded to `dtype`.
    """
    if normalise == "frobenius":
        return (x / guarded(frobenius(x), dtype)).to(dtype), None
    n = x.shape[-2]
    x = x * (n**0.5 / frobenius(x))  # rows of norm 1 on average: the Gram matrix suits half precision
    rounded = x.to(dtype)
    gram = rounded @ rounded.mT
    bound = guarded(gram_bound(gram, normalise), dtype).to(x.dtype)
    return (x / bound).to(dtype), gram.to(x.dtype).div(bound * bound).to(dtype)


def direct(x: Tensor, schedule: Schedule, gram: Tensor | None) -> Tensor:
    """Two rectangular products a step."""
    for step, upper in zip(schedule.coefficients, schedule.uppers, strict=True):
        a, rest = polynomial(x @ x.mT if gram is None else gram, step, upper)
        x, gram = torch.baddbmm(x, rest, x, beta=a), None
    return x


def gram_form(x: Tensor, schedule: Schedule, gram: Tensor | None, again: Collection[int]) -> Tensor:
    """Two rectangular products a segment; `again` are the steps after which it restarts."""
    last = len(schedule.coefficients)
    r = x @ x.mT if gram is None else gram
    q: Tensor | None = None
    for t, (step, upper) in enumerate(zip(schedule.coefficients, schedule.uppers, strict=True), start=1):
        a, rest = polynomial(r, step, upper)
        if q is None:
            q = rest.clone()
            q.diagonal(dim1=-2, dim2=-1).add_(a)
        else:
            q = torch.baddbmm(q, q, rest, beta=a)
        if t == last or t in again:
            x = q @ x
            if t < last:
                r, q = x @ x.mT, None
        else:
            right = torch.baddbmm(r, r, rest, beta=a)
            r = torch.baddbmm(right, rest, right, beta=a)
    return x


def polynomial(gram: Tensor, step: tuple[float, ...], upper: float) -> tuple[float, Tensor]:
    """h(A) as (a, B) with h(A) = a I + B, so that one fused product applies it.

    Half precision and degree >= 7: h is expanded about upper^2/2 instead of 0, which divides the sum of
    absolute coefficients, and with it the rounding error, by 10 to 35.
    """
    if len(step) >= 4 and torch.finfo(gram.dtype).bits == 16:
        shift = 0.5 * upper * upper
        gram = gram.clone()
        gram.diagonal(dim1=-2, dim2=-1).sub_(shift)
        step = expand_about(step, shift)
    a, rest = step[0], step[1:]
    if len(rest) == 1:
        return a, gram * rest[0]
    if len(rest) == 2:
        return a, torch.baddbmm(gram, gram, gram, beta=rest[0], alpha=rest[1])
    square = gram @ gram
    if len(rest) <= 4:  # b A + A^2 (c I + d A + e A^2)
        inner = gram * rest[2] if len(rest) == 3 else torch.add(gram * rest[2], square, alpha=rest[3])
        inner.diagonal(dim1=-2, dim2=-1).add_(rest[1])
        return a, torch.baddbmm(gram, square, inner, beta=rest[0])
    return a, _horner(gram, square, rest)


def _horner(gram: Tensor, square: Tensor, rest: tuple[float, ...]) -> Tensor:
    """sum_k rest_k A^(k+1) by Horner in A^2: pairs (c_k I + c_(k+1) A) A."""
    pairs = [rest[k : k + 2] for k in range(0, len(rest), 2)]
    total: Tensor | None = None
    for pair in reversed(pairs):
        term = gram * pair[0] if len(pair) == 1 else torch.add(gram * pair[0], square, alpha=pair[1])
        total = term if total is None else torch.baddbmm(term, square, total)
    assert total is not None
    return total


def expand_about(step: tuple[float, ...], shift: float) -> tuple[float, ...]:
    """Coefficients e_k with sum_k c_k y^k = sum_k e_k (y - shift)^k."""
    q = len(step)
    return tuple(sum(step[j] * comb(j, k) * shift ** (j - k) for j in range(k, q)) for k in range(q))
