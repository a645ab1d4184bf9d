"""Inverses of symmetric positive definite matrices, (batch, n, n).

The library factors a batch one matrix at a time, on one core while n is small. There the inverse of the Cholesky factor
is built from blocks, so that most of the work is products over the whole batch: 18 matrices of 128 x 128 take half the
time, two poles more than that. From `TRIANGULAR` on the last product skips the zeros of the factor, too: 24 matrices of
256 x 256 then take three quarters of the library's time on an AMD CPU; without that nothing is won on an Intel one.
As stable as the library's: explicit inverses of the matrix itself in the blocks (4 products a level instead of 5) lose
everything at a condition number of 1e5.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 32
BLOCKED = range(64, 384)
"""Sides for which blocks are faster, if there are `FEWEST` matrices or more."""

TRIANGULAR = 256
"""Smallest side of a triangle whose product with itself is divided."""

FEWEST = 4


def spd_inverse(a: Tensor) -> tuple[Tensor, Tensor]:
    """a^-1, and which of the batch could not be factored (not positive definite to rounding): there it is garbage."""
    if a.device.type == "cpu" and a.shape[-1] in BLOCKED and len(a) >= FEWEST:
        root = torch.zeros_like(a)
        failed = _inverse_root(a, root)
        return _square(root, torch.empty_like(a)), failed
    factor, info = torch.linalg.cholesky_ex(a.mT)  # column-major, as the library wants it
    return torch.cholesky_inverse(factor), info != 0


def _inverse_root(a: Tensor, out: Tensor) -> Tensor:
    """Writes the lower triangle W of W^T W = a^-1 into out, which is zero; returns which failed.

    a = [[A, .], [C, D]]:  W = [[P, 0], [-S C P^T P, S]] with P, S the same for A and for D - (C P^T)(C P^T)^T.
    """
    n = a.shape[-1]
    if n <= BLOCK:
        factor, info = torch.linalg.cholesky_ex(a)
        identity = torch.eye(n, dtype=a.dtype, device=a.device).expand_as(a)
        out.copy_(torch.linalg.solve_triangular(factor, identity, upper=False))
        return info != 0
    h = n // 2
    p, s, low = out[:, :h, :h], out[:, h:, h:], out[:, h:, :h]
    failed = _inverse_root(a[:, :h, :h], p)
    below = torch.bmm(a[:, h:, :h], p.mT)
    failed |= _inverse_root(torch.baddbmm(a[:, h:, h:], below, below.mT, alpha=-1.0), s)
    torch.bmm(torch.bmm(s, below), p, out=low)
    low.neg_()
    return failed


def _square(w: Tensor, out: Tensor) -> Tensor:
    """W^T W of a lower triangle, written into out.

    W = [[P, 0], [L, S]]:  W^T W = [[P^T P + L^T L, .], [S^T L, S^T S]].
    """
    n = w.shape[-1]
    if n < TRIANGULAR:
        return torch.bmm(w.mT, w, out=out)
    h = n // 2
    low, s = w[:, h:, :h], w[:, h:, h:]
    _square(w[:, :h, :h], out[:, :h, :h]).baddbmm_(low.mT, low)
    _square(s, out[:, h:, h:])
    out[:, :h, h:].copy_(torch.bmm(s.mT, low, out=out[:, h:, :h]).mT)
    return out
