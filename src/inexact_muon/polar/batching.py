"""Many matrices at once: those of one shape in one stack, those of one short side in one call.

A large matrix stays where it is, since copying it into a stack would cost a pass and win nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from inexact_muon.polar.scaling import to_unit_entries

STACKED = 2**18
"""Matrices of up to so many entries are copied into one stack with the others of their shape."""

COPIES = 6
"""Upper bound on what a method holds at once, in copies of its input."""

HALF_COPIES = 3
"""The same for products in half precision, in float32 copies: two of X, two n x n matrices, and the answer."""

LIMIT = 256 * 2**20
"""Bytes that the work on several matrices may take; a single one takes what it needs."""

ACCELERATOR_LIMIT = 6 * 2**30
"""The same on an accelerator: a constant, not free memory, because what is stacked together decides the last bits."""

CACHE = 16 * 2**20
"""Bytes of work that a CPU does at once: more is not faster, and large temporaries cost page faults."""

_SAFE = 2.0**24

Item = TypeVar("Item")
Solve = Callable[[list[Tensor], torch.dtype], list[Tensor]]


def limit_on(device: torch.device, limit: int | None) -> int:
    """The limit given, or the default of the device."""
    return limit if limit is not None else LIMIT if device.type == "cpu" else ACCELERATOR_LIMIT


def solve_all(
    ms: Sequence[Tensor],
    solve: Solve,
    compute_dtype: Callable[[Tensor], torch.dtype],
    limit: int = LIMIT,
    cast: bool = True,
) -> list[Tensor]:
    """`solve` on every matrix of ms, each (..., n, m), in the shape it came in.

    Args:
        solve: gets stacks (batch_i, n, m_i) of one n <= m_i with entries of moderate size, and the compute dtype.
        limit: bytes of work at once; at least one matrix is worked on.
        cast: to the dtype it came in; else a narrower compute dtype stays.
    """
    limit = min(limit, CACHE) if ms[0].device.type == "cpu" else limit
    pieces: list[list[Tensor]] = [[] for _ in ms]
    for members in _alike(ms):
        dtype = compute_dtype(ms[members[0]])
        parts = (((i, part), work(part, dtype)) for i in members for part in _parts(ms[i], dtype, limit))
        for chunk in within(parts, limit):
            given = [part for _, part in chunk]
            stacks, places = _stacked(given) if len(given) > 1 else (given, [(0, 0)])
            half = torch.finfo(dtype).bits < 32 and stacks[0].dtype != torch.float64  # there sizes are taken in float64
            solved = solve([x if half else _moderate(x) for x in stacks], dtype)
            for (i, part), (stack, low) in zip(chunk, places, strict=True):
                pieces[i].append(solved[stack].narrow(0, low, len(part)))
    return [_joined(found, m, cast) for found, m in zip(pieces, ms, strict=True)]


def _alike(ms: Sequence[Tensor]) -> list[list[int]]:
    """Indices by short side, dtype and device, in order of first appearance."""
    groups: dict[object, list[int]] = {}
    for i, m in enumerate(ms):
        if m.numel():
            groups.setdefault((min(m.shape[-2:]), m.dtype, m.device), []).append(i)
    return list(groups.values())


def _parts(m: Tensor, dtype: torch.dtype, limit: int) -> list[Tensor]:
    """m as (batch, n, m) with n <= m, cut along the batch where it is over the limit."""
    x = m.detach().reshape(-1, *m.shape[-2:])
    x = x.mT if x.shape[-2] > x.shape[-1] else x
    return list(torch.split(x, max(1, limit * len(x) // work(x, dtype))))


def work(x: Tensor, dtype: torch.dtype = torch.float32) -> int:
    """Bytes that a method with this compute dtype may need at once for x."""
    copies = COPIES if torch.finfo(dtype).bits >= 32 else HALF_COPIES
    return copies * x.numel() * max(4, x.element_size())


def within(items: Iterable[tuple[Item, int]], limit: int) -> Iterator[list[Item]]:
    """Consecutive items whose sizes fit the limit together; one at least."""
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
    """Stacks, and for each part its (stack, first row)."""
    groups: dict[object, list[int]] = {}
    for k, part in enumerate(parts):
        small = part.shape[-2] * part.shape[-1] <= STACKED and part.device.type == "cpu"
        groups.setdefault(tuple(part.shape[-2:]) if small else k, []).append(k)
    stacks: list[Tensor] = []
    places: list[tuple[int, int]] = [(0, 0)] * len(parts)
    for members in groups.values():
        low = 0
        for k in members:
            places[k] = (len(stacks), low)
            low += len(parts[k])
        stacks.append(torch.cat([parts[k] for k in members]) if len(members) > 1 else parts[members[0]])
    return stacks, places


def _moderate(x: Tensor) -> Tensor:
    """x in float32 or wider, brought to entries near 1 by powers of two; not touched where products are safe anyway.

    Looking at its size waits for the device, so that only a CPU skips the pass.
    """
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    if x.device.type == "cpu":
        size = torch.linalg.vector_norm(x, dim=(-2, -1))
        if bool(((size > 1.0 / _SAFE) & (size < _SAFE)).all()):
            return x
    return to_unit_entries(x)


def _joined(pieces: list[Tensor], m: Tensor, cast: bool) -> Tensor:
    """The answer to m from the pieces of its batch."""
    if not pieces:
        return m.clone()
    x = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
    x = x.mT if m.shape[-2] > m.shape[-1] else x
    narrow = torch.finfo(x.dtype).bits < torch.finfo(m.dtype).bits
    return (x if narrow and not cast else x.to(m.dtype)).reshape(m.shape)
