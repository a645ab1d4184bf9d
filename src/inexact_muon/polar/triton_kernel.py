"""Triton kernel of a symmetric product: lower tiles are computed and also written transposed. Extra: `triton`."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

TILES: dict[int, tuple[int, int, int, int]] = {2: (128, 64, 8, 3), 4: (64, 16, 4, 3)}
"""Bytes of an entry -> side of a tile, entries of k at once, warps, stages: nothing is tuned at run time.
`benchmarks/results/kernels.md` has registers and shared memory on each architecture."""


@triton.jit  # type: ignore[untyped-decorator]
def symmetric_kernel(  # type: ignore[no-untyped-def]  # compiled by Triton, which reads no annotations but constexpr
    a,
    b,
    add,
    out,
    n,
    k,
    beta,
    alpha,
    a_batch,
    a_row,
    a_k,
    b_batch,
    b_k,
    b_column,
    add_batch,
    add_row,
    add_column,
    out_batch,
    out_row,
    out_column,
    ADDS: tl.constexpr,
    SIDE: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """One tile (i, j), i >= j, of alpha a b + beta add; entries below the diagonal are also written to (j, i)."""
    tile = tl.program_id(0)
    batch = tl.program_id(1).to(tl.int64)
    i = ((tl.sqrt(8.0 * tile + 1.0) - 1.0) / 2.0).to(tl.int32)
    i -= (i * (i + 1) // 2 > tile).to(tl.int32)  # the root may be rounded either way
    i += ((i + 1) * (i + 2) // 2 <= tile).to(tl.int32)
    j = tile - i * (i + 1) // 2
    rows = i * SIDE + tl.arange(0, SIDE)
    columns = j * SIDE + tl.arange(0, SIDE)
    depth = tl.arange(0, DEPTH)
    at_row, at_column = rows[:, None].to(tl.int64), columns[None, :].to(tl.int64)
    a += batch * a_batch + at_row * a_row + depth[None, :] * a_k
    b += batch * b_batch + depth[:, None] * b_k + at_column * b_column
    total = tl.zeros((SIDE, SIDE), dtype=tl.float32)
    for done in range(0, k, DEPTH):
        inside = depth < k - done
        block = tl.load(a, mask=(rows[:, None] < n) & inside[None, :], other=0.0)
        right = tl.load(b, mask=inside[:, None] & (columns[None, :] < n), other=0.0)
        total = tl.dot(block, right, total, input_precision="ieee")
        a += DEPTH * a_k
        b += DEPTH * b_k
    total *= alpha
    here = (rows[:, None] < n) & (columns[None, :] <= rows[:, None])
    if ADDS:
        add += batch * add_batch + at_row * add_row + at_column * add_column
        total += beta * tl.load(add, mask=here, other=0.0).to(tl.float32)
    entries = total.to(out.dtype.element_ty)
    out += batch * out_batch
    tl.store(out + at_row * out_row + at_column * out_column, entries, mask=here)
    below = here & (columns[None, :] < rows[:, None])
    tl.store(out + at_column * out_row + at_row * out_column, entries, mask=below)


def grid(n: int, batch: int, side: int) -> tuple[int, int]:
    """(number of lower tiles, number of matrices)"""
    tiles = -(-n // side)
    return tiles * (tiles + 1) // 2, batch


def launch(a: Tensor, b: Tensor, add: Tensor | None, beta: float, alpha: float, out: Tensor) -> None:
    """out = alpha a b + beta add, for (batch, n, k) and (batch, k, n) of any strides; out may be add."""
    side, depth, warps, stages = TILES[a.element_size()]
    batch, n, k = a.shape
    read = out if add is None else add
    kernel: Any = symmetric_kernel[grid(n, batch, side)]
    kernel(
        *(a, b, read, out, n, k, beta, alpha, *a.stride(), *b.stride(), *read.stride(), *out.stride()),
        ADDS=add is not None,
        SIDE=side,
        DEPTH=depth,
        num_warps=warps,
        num_stages=stages,
        enable_fp_fusion=True,  # Triton 3.9 warns if it is not set
    )
