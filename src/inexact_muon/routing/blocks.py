"""Blocks of consecutive rows of a weight, each a head, from the rows that tensors hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

import numpy as np

from inexact_muon.routing.reading.rows import Index, WeightRows
from inexact_muon.views import Interleaved, Split, Stacked, View


@dataclass(frozen=True)
class Block:
    """Rows of one head.

    Attributes:
        role: query, key, value, or empty.
        parts: rows of its parts, such as those that are rotated and those that are not.
        normed: whether they are normalised after the layer, so that their size has no effect.
    """

    first: int
    size: int
    role: str
    parts: tuple[int, ...] = ()
    normed: bool = False


def view_of(blocks: Sequence[Block]) -> View:
    """A matrix per head."""
    sizes = [block.size for block in blocks]
    period = next(n for n in range(1, len(sizes) + 1) if sizes == sizes[:n] * (len(sizes) // n))
    if period == 1:
        return Stacked(len(sizes))
    return Interleaved(tuple(sizes[:period]), len(sizes) // period) if period < len(sizes) else Split(tuple(sizes))


def described(blocks: Sequence[Block], columns: int) -> str:
    """Such as "query: 12 heads of 64 x 768" and "query, key, value: 12 + 4 + 4 heads of 64 x 768"."""
    parts = list(dict.fromkeys(block.role for block in blocks))
    groups = [[block for block in blocks if block.role == part] for part in parts]
    named = ", ".join(part or "other" for part in parts)
    by_size = [(size, [str(len(g)) for g in same]) for size, same in groupby(groups, key=lambda g: g[0].size)]
    return f"{named}: " + ", ".join(f"{' + '.join(counts)} heads of {size} x {columns}" for size, counts in by_size)


def sides(index: Index) -> Index:
    """Without dimensions that hold no rows."""
    return index.reshape([side for side in index.shape if side > 1] or [1])


def _consecutive(index: Index) -> bool:
    return bool((np.diff(index) == 1).all())


def coarser(use: WeightRows, levels: int) -> WeightRows:
    """With the last dimension joined with those before it, if these are consecutive rows."""
    index = sides(use.index)
    for _ in range(levels):
        joined = index.reshape(*index.shape[:-2], -1)
        if not _consecutive(joined):
            break
        index = joined
    return replace(use, index=index)


def tiled(uses: Iterable[WeightRows], rows: int) -> list[Block]:
    """The blocks of rows along the last dimensions; empty if they are not consecutive, or do not cover all rows."""
    blocks: dict[tuple[int, int], Block] = {}
    for use, parts in _joined(uses):
        if not _consecutive(use.index):
            return []
        size = use.index.shape[-1]
        for first in use.index[..., 0].ravel().tolist():
            if (first, size) not in blocks or not blocks[first, size].role:
                blocks[first, size] = Block(first, size, use.role, parts, use.normed)
    ordered = sorted(blocks, key=lambda block: (block[0], -block[1]))
    finest = [a for a, b in pairwise([*ordered, (rows, 0)]) if sum(a) <= b[0]]
    ends = [0, *(sum(block) for block in finest)]
    whole = [block[0] for block in finest] == ends[:-1] and ends[-1] == rows
    return [blocks[block] for block in finest] if whole else []


def _joined(uses: Iterable[WeightRows]) -> list[tuple[WeightRows, tuple[int, ...]]]:
    """With neighbouring parts of a head, such as the rotated and the other rows of a query, joined; and their sizes."""
    joined: list[tuple[WeightRows, tuple[int, ...]]] = []
    grids = {id(use): (use.index[..., 0] - use.index.min()).tolist() for use in uses}
    for use in sorted(uses, key=lambda use: (str(grids[id(use)]), use.index.min(), -use.index.shape[-1])):
        size = use.index.shape[-1]
        last, parts = joined[-1] if joined else (use, ())
        same = use.role and last.role == use.role and last.index.shape[:-1] == use.index.shape[:-1]
        if same and (last.index[..., -1] + 1 == use.index[..., 0]).all():
            joined[-1] = replace(last, index=np.concatenate([last.index, use.index], -1)), (*parts, size)
        else:
            joined.append((use, (size,)))
    return joined
