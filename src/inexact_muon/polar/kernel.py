"""Symmetric products and inverses, and a custom torch operator for the products where it is faster on an accelerator.

`torch.ops.inexact_muon.symmetric_product` writes alpha a b + beta add into `out`. On CUDA it runs the Triton kernel of
`inexact_muon.polar.triton_kernel`, elsewhere `baddbmm`, so that tracing and tests need no GPU. It was not timed here:
the sizes follow published measurements of similar kernels.

Products, a b = [[P, R^T], [R, S]]: three blocks instead of four, and recursively for the diagonal blocks. Half of the
work is saved in the limit; on two CPU cores in float32 a 768 x 768 product takes 0.72 of the full one, 1536 x 1536
takes 0.6, and below `UNDIVIDED` smaller blocks cost more than they save.

Inverses: LAPACK factors a batch one matrix at a time, on one core if n is small. Here the inverse of the Cholesky
factor is built from blocks, so that most of the work is batched products: 18 matrices of 128 x 128 take half the time
of LAPACK. From side `TRIANGULAR` on the last product also skips the zeros of the factor: 24 matrices of 256 x 256 take
three quarters of LAPACK's time on an AMD CPU; without that there is no gain on an Intel CPU. It is as stable as LAPACK:
inverting the blocks of the matrix itself (4 products per level instead of 5) loses all accuracy at a condition number
of 1e5.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

INSTALLED = find_spec("triton") is not None

SMALLEST = {(8, 0): 1024, (9, 0): 3072}
"""CUDA compute capability -> smallest side for which the kernel is used: where it was measured to be faster, with a
margin on an H100, which breaks even near 2800."""

LEAST = min(SMALLEST.values())
"""Below this side no device uses the kernel."""

UNKNOWN = 4096
"""Smallest side on devices without published measurements: larger than that of any other device."""

TILE, FEWEST = 128, 108
"""Side of a tile, and the minimum number of tiles in a batch: one per multiprocessor of an A100."""


def uses_kernel(n: int, batch: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the kernel computes a batch of n x n products: half precision only, large n and enough tiles."""
    if device.type != "cuda" or not INSTALLED or dtype not in (torch.float16, torch.bfloat16):
        return False
    tiles = -(-n // TILE)
    return n >= smallest_side(device) and batch * tiles * (tiles + 1) // 2 >= FEWEST


def smallest_side(device: torch.device) -> int:
    """Smallest side for which a device uses the kernel; ROCm never does."""
    if torch.version.hip is not None:
        return 2**31
    try:
        return SMALLEST.get(torch.cuda.get_device_capability(device), UNKNOWN)
    except (AssertionError, RuntimeError):  # this machine has no such device
        return UNKNOWN


@torch.library.custom_op(
    "inexact_muon::symmetric_product",
    mutates_args=("out",),
    schema="(Tensor a, Tensor b, Tensor? add, float beta, float alpha, Tensor(a!) out) -> ()",
)
def symmetric_kernel(a: Tensor, b: Tensor, add: Tensor | None, beta: float, alpha: float, out: Tensor) -> None:
    """out = alpha a b + beta add, for a (batch, n, k) and b (batch, k, n); a b and add are symmetric."""
    out.copy_(torch.baddbmm(out if add is None else add, a, b, beta=0.0 if add is None else beta, alpha=alpha))


@symmetric_kernel.register_fake
def _(a: Tensor, b: Tensor, add: Tensor | None, beta: float, alpha: float, out: Tensor) -> None:
    return None


@symmetric_kernel.register_kernel("cuda")
def _(a: Tensor, b: Tensor, add: Tensor | None, beta: float, alpha: float, out: Tensor) -> None:
    from inexact_muon.polar.triton_kernel import launch

    launch(a, b, add, beta, alpha, out)


UNDIVIDED = 384
"""Blocks of fewer rows are not divided."""

BLOCK = 32
BLOCKED = range(64, 384)
"""Sides for which blocks are faster, given at least `SEVERAL` matrices."""

TRIANGULAR = 256
"""Smallest side of a triangular matrix W for which W^T W is computed by blocks."""

SEVERAL = 4


def symmetric_product(
    a: Tensor,
    b: Tensor,
    add: Tensor | None = None,
    beta: float = 0.0,
    alpha: float = 1.0,
    out: Tensor | None = None,
) -> Tensor:
    """alpha a b + beta add, for (batch, n, k) and (batch, k, n) whose product is symmetric in exact arithmetic.

    In half precision `out` may be `add`.
    """
    n = a.shape[-2]
    if n >= LEAST and uses_kernel(n, len(a), a.dtype, a.device):
        out = a.new_empty(len(a), n, n) if out is None else out
        symmetric_kernel(a, b, add, beta, alpha, out)
        return out
    whole = n < UNDIVIDED or a.device.type != "cpu" or torch.finfo(a.dtype).bits < 32
    if whole and add is not None and out is add:
        return add.baddbmm_(a, b, beta=beta, alpha=alpha)
    if whole and add is not None:
        return torch.baddbmm(add, a, b, beta=beta, alpha=alpha, out=out)
    if whole and alpha == 1.0 and out is None:
        return torch.bmm(a, b)
    out = a.new_empty(len(a), n, n) if out is None else out
    if whole:
        torch.bmm(a, b, out=out)
    else:
        h = n // 2
        low = torch.bmm(a[:, h:], b[:, :, :h], out=out[:, h:, :h])
        out[:, :h, h:].copy_(low.mT)
        symmetric_product(a[:, :h], b[:, :, :h], out=out[:, :h, :h])
        symmetric_product(a[:, h:], b[:, :, h:], out=out[:, h:, h:])
    if alpha != 1.0:
        out.mul_(alpha)
    return out if add is None else out.add_(add, alpha=beta)


def spd_inverse(a: Tensor) -> tuple[Tensor, Tensor]:
    """(a^-1, failed): matrices of the batch that are not positive definite up to rounding fail; theirs is undefined."""
    if a.device.type == "cpu" and a.shape[-1] in BLOCKED and len(a) >= SEVERAL:
        root = torch.zeros_like(a)
        failed = _inverse_root(a, root)
        return _square(root, torch.empty_like(a)), failed
    factor, info = torch.linalg.cholesky_ex(a.mT)  # column-major, as LAPACK expects
    return torch.cholesky_inverse(factor), info != 0


def _inverse_root(a: Tensor, out: Tensor) -> Tensor:
    """Write the lower triangular W with W^T W = a^-1 into `out`, which must be zero; return which of the batch failed.

    a = [[A, .], [C, D]]:  W = [[P, 0], [-S C P^T P, S]] with P, S the inverse roots of A and D - (C P^T)(C P^T)^T.
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
    """W^T W of a lower triangular W, written into `out`.

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
