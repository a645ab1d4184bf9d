"""Batching: matrices of one shape are stacked, and matrices with the same short side are solved in one call.

Large matrices are not copied into a stack: that would cost a pass over memory and save nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from inexact_muon.polar.scaling import to_unit_entries

STACKED = 2**18
"""Matrices with at most this many entries are copied into a stack with the others of their shape."""

COPIES = 6
"""Upper bound on the workspace of a method, in copies of its input."""

HALF_COPIES = 3
"""The same in half precision, in float32 copies of the input: two of X, two n x n matrices, and the result."""

LIMIT = 256 * 2**20
"""Bytes of workspace for several matrices at once; a single matrix takes what it needs."""

ACCELERATOR_LIMIT = 6 * 2**30
"""The same on an accelerator: a constant, not the free memory, because stacking affects the last bits of results."""

CACHE = 16 * 2**20
"""Bytes of workspace used at once on a CPU: more is not faster, and large temporaries cause page faults."""

_SAFE = 2.0**24
"""Matrices with a Frobenius norm between 1/_SAFE and _SAFE are multiplied without rescaling."""

Item = TypeVar("Item")
Solve = Callable[[list[Tensor], torch.dtype], list[Tensor]]


def limit_on(device: torch.device, limit: int | None) -> int:
    """`limit`, or the default of the device if it is None."""
    return limit if limit is not None else LIMIT if device.type == "cpu" else ACCELERATOR_LIMIT


def solve_all(
    ms: Sequence[Tensor],
    solve: Solve,
    compute_dtype: Callable[[Tensor], torch.dtype],
    limit: int = LIMIT,
    cast: bool = True,
) -> list[Tensor]:
    """Apply `solve` to every matrix of ms, each (..., n, m); results have the shapes of ms.

    Args:
        solve: called with stacks (batch_i, n, m_i) that have the same n <= m_i and are safe to multiply, and with the
            compute dtype.
        limit: bytes of workspace; at least one matrix is solved at once.
        cast: return the dtype of each matrix; if False, a narrower compute dtype is kept.
    """
    limit = min(limit, CACHE) if ms[0].device.type == "cpu" else limit
    pieces: list[list[Tensor]] = [[] for _ in ms]
    alike: dict[object, list[int]] = {}  # by short side, dtype and device, in order of first appearance
    for i, m in enumerate(ms):
        if m.numel():
            alike.setdefault((min(m.shape[-2:]), m.dtype, m.device), []).append(i)
    for members in alike.values():
        dtype = compute_dtype(ms[members[0]])
        parts = (((i, part), size) for i in members for part, size in _parts(ms[i], dtype, limit))
        for chunk in within(parts, limit):
            matrices = [part for _, part in chunk]
            stacks, places = _stacked(matrices) if len(matrices) > 1 else (matrices, [(0, 0)])
            half = torch.finfo(dtype).bits < 32 and stacks[0].dtype != torch.float64  # `iteration.run` rescales these
            solved = solve([x if half else _rescaled(x) for x in stacks], dtype)
            for (i, part), (stack, low) in zip(chunk, places, strict=True):
                pieces[i].append(solved[stack].narrow(0, low, len(part)))
    results = []
    for solutions, m in zip(pieces, ms, strict=True):
        x = torch.cat(solutions) if len(solutions) > 1 else solutions[0] if solutions else m.clone()
        x = x.mT if solutions and m.shape[-2] > m.shape[-1] else x
        narrow = torch.finfo(x.dtype).bits < torch.finfo(m.dtype).bits
        results.append((x if narrow and not cast else x.to(m.dtype)).reshape(m.shape))
    return results


def _parts(m: Tensor, dtype: torch.dtype, limit: int) -> list[tuple[Tensor, int]]:
    """m as (batch, n, m) with n <= m, split along the batch to fit the limit; each part with its workspace."""
    x = m.detach().reshape(-1, *m.shape[-2:])
    x = x.mT if x.shape[-2] > x.shape[-1] else x
    one = work(m, dtype) // len(x)
    return [(part, len(part) * one) for part in torch.split(x, max(1, limit // one))]


def work(x: Tensor, dtype: torch.dtype = torch.float32) -> int:
    """Bytes of workspace that a method with this compute dtype may need for x."""
    copies = COPIES if torch.finfo(dtype).bits >= 32 else HALF_COPIES
    return copies * x.numel() * max(4, x.element_size())


def within(items: Iterable[tuple[Item, int]], limit: int) -> Iterator[list[Item]]:
    """Group consecutive items of (item, size) so that each group has one item or a total size of at most `limit`."""
    chunk: list[Item] = []
    total = 0
    for item, size in items:
        if chunk and total + size > limit:
            yield chunk
            chunk, total = [], 0
        chunk.append(item)
        total += size
    if chunk:
        yield chunk


def _stacked(parts: list[Tensor]) -> tuple[list[Tensor], list[tuple[int, int]]]:
    """Stacks, and the (stack, first matrix) of each part."""
    groups: dict[object, list[int]] = {}
    for k, part in enumerate(parts):
        small = part.shape[-2] * part.shape[-1] <= STACKED and part.device.type == "cpu"
        groups.setdefault(tuple(part.shape[-2:]) if small else k, []).append(k)
    places: list[tuple[int, int]] = [(0, 0)] * len(parts)
    for stack, members in enumerate(groups.values()):
        low = 0
        for k in members:
            places[k] = (stack, low)
            low += len(parts[k])
    stacked = [[parts[k] for k in members] for members in groups.values()]
    return [torch.cat(same) if len(same) > 1 else same[0] for same in stacked], places


def _rescaled(x: Tensor) -> Tensor:
    """x in float32 or wider, scaled by powers of two to entries near 1 unless it is safe to multiply as it is.

    Reading norms would synchronise an accelerator with the host, so only a CPU skips the pass.
    """
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    if x.device.type == "cpu":
        size = torch.linalg.vector_norm(x, dim=(-2, -1))
        if bool(((size > 1.0 / _SAFE) & (size < _SAFE)).all()):
            return x
    return to_unit_entries(x)
