"""Scale a matrix to a spectral norm of at most 1, without overflow or underflow.

Shapes: x is (batch, n, m) with n <= m; scales are (batch, 1, 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

LEAST_GUARD = {
    torch.float64: 2.0**-40,
    torch.float32: 2.0**-18,
    torch.float16: 2.0**-9,
    torch.bfloat16: 2.0**-6,
}
"""Compute dtype -> smallest `guard`: eight roundings to half precision, thirty and more to the others."""

ONE_PASS = 8192
"""Largest side for which an accelerator, whose reductions are trees, sums the squares of a half-precision matrix at
once; otherwise rows are summed first, so that no chain of additions is longer than a row."""


def to_unit_entries(x: Tensor, dim: int | tuple[int, ...] = (-2, -1)) -> Tensor:
    """x times the power of two for which its largest entry is in [1, 2): exact, and the same for x and 2^k x."""
    largest = torch.linalg.vector_norm(x, torch.inf, dim=dim, keepdim=True).double()
    # In float64 the power of two for any float32 value is a normal number, so one multiplication is enough.
    exponent = 1 - torch.frexp(largest).exponent
    if x.dtype != torch.float64:
        return torch.mul(x, torch.ldexp(torch.ones_like(largest), exponent), out=torch.empty_like(x))
    half = torch.div(exponent, 2, rounding_mode="floor")
    one = torch.ones_like(largest)
    return x * torch.ldexp(one, half) * torch.ldexp(one, exponent - half)


def guard(dtype: torch.dtype, n: int, m: int, normalise: str = "schatten4") -> float:
    """Relative margin of `gram_bound`: by how much the norm of a computed n x n Gram matrix can be low.

    The norm of the computed A = X X^T + E has to bound the singular values of X. With unit roundoff u of the additions
    (float32 for half precision), g = m u and any order of summation, |E_ij| <= g |x_i| |x_j| for the rows x_i of X, so
    ||E||_F <= g tr(X X^T). Then:

        frobenius    tr A >= (1 - g) sigma_1^2
        schatten4    ||A||_F >= (1 - g - g^2 n/2) sigma_1^2: what has a large trace has a large norm

    The norm itself sums rows of n terms and then n rows, 2 n u. A polynomial that is best on [0, 1]
    diverges above it, so this is a bound for every n and m, not an observed error. Products in TensorFloat32 are not
    covered.
    """
    u = 0.5 * torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    g = m * u
    spread = g * g * n / 2.0 if normalise == "schatten4" else 0.0
    rounded = 2.0 * torch.finfo(dtype).eps if torch.finfo(dtype).bits < 32 else 0.0
    low = g + spread + rounded + (2 * n + 16) * u
    return max(LEAST_GUARD[dtype], 0.5 * low / (1.0 - low))


_cached_guard = lru_cache(maxsize=1024)(guard)


def gram_bound(gram: Tensor, normalise: str, dtype: torch.dtype, inner: Sequence[tuple[int, int]]) -> Tensor:
    """An upper bound on the square of the largest singular value of X, from X X^T; positive also for X = 0.

    It includes the margin `guard` for rounding in `dtype`.

    Args:
        inner: (number of matrices, columns m of X) of consecutive parts of the batch.
    """
    n = gram.shape[-1]
    precise = torch.promote_types(gram.dtype, torch.float32)
    if normalise == "frobenius":
        square = gram.to(precise).diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True).unsqueeze(-1)
    elif gram.device.type != "cpu" and torch.finfo(gram.dtype).bits < 32 and n <= ONE_PASS:
        square = torch.linalg.vector_norm(gram, dim=(-2, -1), keepdim=True, dtype=precise)
    else:
        rows = torch.linalg.vector_norm(gram, dim=-1, keepdim=True, dtype=precise)
        square = torch.linalg.vector_norm(rows, dim=-2, keepdim=True)
    margin_of = guard if torch.compiler.is_compiling() else _cached_guard  # torch.compile traces no cache
    margins = [(1.0 + margin_of(dtype, n, m, normalise)) ** 2 for _, m in inner]
    if len(set(margins)) == 1:
        square.mul_(margins[0])
    else:
        for part, margin in zip(torch.split(square, [count for count, _ in inner]), margins, strict=True):
            part.mul_(margin)
    return square.clamp_(min=torch.finfo(precise).tiny)


def probes(n: int, count: int, like: Tensor) -> Tensor:
    """An n x count standard normal matrix in the dtype and on the device of `like`.

    Drawn from a separate generator, so that the global random state does not change.
    """
    return _draw(n, count).to(dtype=like.dtype, device=like.device)


@lru_cache(maxsize=64)
def _draw(n: int, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(20251019)
    return torch.randn(n, count, generator=generator, dtype=torch.float64)
