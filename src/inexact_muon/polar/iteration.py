"""X <- F_S(... F_1(X)), where each factor F multiplies X from the left by a function of X X^T.

    direct     one factor per polynomial:   A = X X^T,  X <- h(A) X
    gram       one factor per segment of several:   R = X X^T,  Q = I;  Z = h(R),  Q <- Q Z,  R <- Z R Z;  X <- Q X
    rational   one factor:   X <- (a I + sum_j r_j (X X^T + c_j I)^-1) X

The Gram form computes its steps on n x n matrices, which is faster if m > 1.5 n. It squares the condition number, and
rounding leaves tiny negative eigenvalues in R that grow by h(0)^2 per step; a restart (a new segment) stops both. In
float16 it restarts after every second step; in bfloat16 it is unstable. Apart from two products per factor all matrices
are n x n, so matrices with the same short side n and any m are batched.

Shapes: xs are (batch_i, n, m_i), n <= m_i; gram is (sum batch_i, n, n).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import comb

import torch
from torch import Tensor

from inexact_muon.polar.kernel import symmetric_product
from inexact_muon.polar.scaling import gram_bound
from inexact_muon.schedules.scalar_map import Schedule

Factor = Callable[[Tensor], tuple[float, Tensor]]
"""gram -> (a, B), which represents the matrix a I + B."""

TINY = 1e-150
"""Lower bound on norms, so that the zero matrix maps to zero; smaller than the norm of any nonzero float32 matrix."""


def run(
    xs: Sequence[Tensor],
    factors: Sequence[Factor],
    dtype: torch.dtype,
    normalise: str,
    weights: Sequence[float] = (),
) -> list[Tensor]:
    """Apply the factors one after the other to xs, divided by an upper bound on the largest singular value.

    Args:
        weights: return the sum of weights[k] X_k, X_0 being xs over that bound, instead of the last X.
    """
    half = torch.finfo(dtype).bits < 32
    stacks, places = _rounded(xs, dtype) if half else ([x.to(dtype) for x in xs], [(i, 0) for i in range(len(xs))])
    sums: list[Tensor] = []
    for k, factor in enumerate(factors):
        moved, bound = _step(stacks, factor, None if k else normalise)
        if weights and bound is not None:
            bounds = torch.split(bound, [len(x) for x in stacks])
            sums = [x * (weights[0] / b).to(x.dtype) for x, b in zip(stacks, bounds, strict=True)]
        for total, x in zip(sums, moved[: len(sums)], strict=True):  # torch 2.6 compiles no zip of other lengths
            total.add_(x, alpha=weights[k + 1])
        stacks = moved
    stacks = sums or stacks
    return [stacks[stack].narrow(0, low, len(x)) for (stack, low), x in zip(places, xs, strict=True)]


def _step(xs: list[Tensor], factor: Factor, normalise: str | None) -> tuple[list[Tensor], Tensor | None]:
    """Apply one factor. With `normalise`, the upper bound, which is returned, divides n x n matrices instead of X."""
    counts, n, dtype = [len(x) for x in xs], xs[0].shape[-2], xs[0].dtype
    if len(xs) == 1:
        gram = symmetric_product(xs[0], xs[0].mT)
    else:
        gram = xs[0].new_empty(sum(counts), n, n)
        for x, out in zip(xs, torch.split(gram, counts), strict=True):
            symmetric_product(x, x.mT, out=out)
    inner = [(count, x.shape[-1]) for count, x in zip(counts, xs, strict=True)]
    square = gram_bound(gram, normalise, dtype, inner) if normalise else None
    a, b = factor(gram if square is None else gram.div_(square))
    del gram
    if square is None and torch.finfo(dtype).bits < 32:  # rounding a I + B to half precision would lose digits of B
        qs = torch.split(b, counts)
        return [torch.baddbmm(x, q, x, beta=a) if a else torch.bmm(q, x) for q, x in zip(qs, xs, strict=True)], None
    if a:
        b.diagonal(dim1=-2, dim2=-1).add_(a)
    if square is not None:  # rounding the diagonal only rescales rows; dividing X would round it twice
        b.div_(square.sqrt_())
    return [torch.bmm(q, x) for q, x in zip(torch.split(b, counts), xs, strict=True)], square


def multiplier(gram: Tensor, factor: Factor, normalise: str) -> Tensor:
    """The matrix Q of the result Q X of one factor, from X X^T alone: (batch, n, n) in float64, as nothing restarts."""
    # The columns are unknown here: in float64 the least guard covers 14,000 of them.
    square = gram_bound(gram, normalise, gram.dtype, [(gram.shape[0], gram.shape[1])])
    a, q = factor(gram / square)
    q.diagonal(dim1=-2, dim2=-1).add_(a)
    return q.div_(square.sqrt_())


def _rounded(xs: Sequence[Tensor], dtype: torch.dtype) -> tuple[list[Tensor], list[tuple[int, int]]]:
    """xs in half precision, stacked by shape and scaled to rows of norm 1/2 to 1 on average; and the place of each.

    Divided by a power of two, which is exact, rounded and stacked in one pass; half-precision input is not rounded
    again. Norms are computed in float64, in which squares of float32 entries neither overflow nor underflow.
    """
    counts = [len(x) for x in xs]
    sizes = xs[0].new_empty(sum(counts), 1, 1, dtype=torch.float64)
    for x, size in zip(xs, torch.split(sizes, counts), strict=True):
        torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True, dtype=torch.float64, out=size)
    sizes.clamp_(min=TINY).mul_(xs[0].shape[-2] ** -0.5)
    sizes.div_(torch.frexp(sizes).mantissa)  # the next power of two, exactly
    filled = {x.shape[-2:]: 0 for x in xs}
    places, order = [], list(filled)
    for x in xs:
        places.append((order.index(x.shape[-2:]), filled[x.shape[-2:]]))
        filled[x.shape[-2:]] += len(x)
    stacks = [sizes.new_empty((count, *shape), dtype=dtype) for shape, count in filled.items()]
    for x, size, (stack, low) in zip(xs, torch.split(sizes, counts), places, strict=True):
        torch.div(x, size, out=stacks[stack].narrow(0, low, len(x)))
    return stacks, places


def factors_of(schedule: Schedule, restarts: tuple[int, ...]) -> list[Segment]:
    """The factors of a composition that restarts after these steps; restarting after every step is the direct form."""
    steps = list(zip(schedule.coefficients, schedule.ends[:-1], strict=True))
    edges = [0, *restarts, len(steps)]
    return [Segment(tuple(steps[low:high])) for low, high in pairwise(edges)]


@dataclass(frozen=True)
class Segment:
    """Q after several steps of the Gram form; Q h(R) and h(R) R h(R) are symmetric because Q, R and h(R) commute.

    Attributes:
        steps: (coefficients, upper bound on the singular values before the step)
        weights: if any, the result is the sum of weights[k] Q_k, where Q_0 = I and Q_k is Q after k steps.
    """

    steps: tuple[tuple[tuple[float, ...], float], ...]
    weights: tuple[float, ...] = ()

    def __call__(self, r: Tensor) -> tuple[float, Tensor]:
        """(a, B) from R, where Q = a I + B."""
        (step, upper), *later = self.steps
        a, rest = polynomial(r, step, upper, keep=len(later) > 0)  # not bool(later): torch 2.6 cannot compile it
        if not later and not self.weights:
            return a, rest
        q = rest.clone()
        q.diagonal(dim1=-2, dim2=-1).add_(a)
        total = q
        if self.weights:
            total = q * self.weights[1]
            total.diagonal(dim1=-2, dim2=-1).add_(self.weights[0])
        for k, (step, upper) in enumerate(later, 1):
            right = symmetric_product(r, rest, add=r, beta=a)
            r = symmetric_product(rest, right, add=right, beta=a)
            a, rest = polynomial(r, step, upper, keep=k < len(later))
            q = symmetric_product(q, rest, add=q, beta=a)
            total = total.add_(q, alpha=self.weights[k + 1]) if self.weights else q
        return 0.0, total


def polynomial(gram: Tensor, step: tuple[float, ...], upper: float, keep: bool = True) -> tuple[float, Tensor]:
    """h(A) as (a, B) with h(A) = a I + B.

    In half precision degree 9 is h(A) = e W^2 + f A + g I with W = A^2 + p A + r I: two products and no other pass but
    over a diagonal; it rounds as little as the expansion below. B overwrites A unless `keep`.
    Other degrees >= 7 in half precision: h is expanded about upper^2/2 instead of 0, which divides the sum of absolute
    coefficients, and with it the rounding error, by 10 to 35. A is shifted in place unless `keep`.
    """
    half = torch.finfo(gram.dtype).bits == 16
    if half and len(step) == 5 and step[4]:
        a, b, c, d, e = step
        p = 0.5 * d / e
        r = 0.5 * (c / e - p * p)
        w = symmetric_product(gram, gram, add=gram, beta=p)
        w.diagonal(dim1=-2, dim2=-1).add_(r)
        out = None if keep else gram
        return a - e * r * r, symmetric_product(w, w, add=gram, beta=b - 2.0 * e * p * r, alpha=e, out=out)
    if half and len(step) >= 4:
        shift = 0.5 * upper * upper
        gram = gram.clone() if keep else gram
        gram.diagonal(dim1=-2, dim2=-1).sub_(shift)
        step = expand_about(step, shift)
    a, rest = step[0], step[1:]
    if len(rest) == 1:
        return a, gram * rest[0]
    if len(rest) == 2:
        return a, symmetric_product(gram, gram, add=gram, beta=rest[0], alpha=rest[1])
    square = symmetric_product(gram, gram)
    if len(rest) == 3:  # b A + A^2 (c I + d A)
        inner = gram * rest[2]
        inner.diagonal(dim1=-2, dim2=-1).add_(rest[1])
        return a, symmetric_product(square, inner, add=gram, beta=rest[0])
    if len(rest) == 4 and rest[3]:  # b A + e A^2 (c/e I + d/e A + A^2)
        inner = torch.add(square, gram, alpha=rest[2] / rest[3])
        inner.diagonal(dim1=-2, dim2=-1).add_(rest[1] / rest[3])
        return a, symmetric_product(square, inner, add=gram, beta=rest[0], alpha=rest[3])
    return a, _horner(gram, square, rest)


def _horner(gram: Tensor, square: Tensor, rest: tuple[float, ...]) -> Tensor:
    """sum_k rest_k A^(k+1) by Horner in A^2: pairs (c_k I + c_(k+1) A) A."""
    pairs = [rest[k : k + 2] for k in range(0, len(rest), 2)]
    total: Tensor | None = None
    for pair in reversed(pairs):
        term = gram * pair[0] if len(pair) == 1 else torch.add(gram * pair[0], square, alpha=pair[1])
        total = term if total is None else symmetric_product(square, total, add=term, beta=1.0)
    assert total is not None
    return total


def expand_about(step: tuple[float, ...], shift: float) -> tuple[float, ...]:
    """Coefficients e_k with sum_k c_k y^k = sum_k e_k (y - shift)^k."""
    q = len(step)
    return tuple(sum(step[j] * comb(j, k) * shift ** (j - k) for j in range(k, q)) for k in range(q))
