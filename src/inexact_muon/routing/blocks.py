"""Blocks of consecutive rows of a weight, each a part or a head, from the rows that tensors hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import TypeVar

import numpy as np

from inexact_muon.routing.reading.rows import Index, WeightRows
from inexact_muon.views import Interleaved, Split, Stacked, View

T = TypeVar("T")


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
    sizes, groups = _repeated([block.size for block in blocks])
    if len(sizes) == 1:
        return Stacked(groups)
    return Interleaved(tuple(sizes), groups) if groups > 1 else Split(tuple(sizes))


def cut_of(uses: Iterable[WeightRows], rows: int) -> Split | None:
    """The parts into which a layer's rows are cut; None if that is not known.

    The parts are query, key and value if the code names them so, else what functions take: each row is in one part.
    """
    uses = [use for use in uses if use.index.size < rows]
    named = all(use.role for use in uses)
    owners: list[str] = [""] * rows
    for use in uses:
        part = use.role if named else str(use.index.min())
        for row in use.index.ravel().tolist():
            if owners[row] not in ("", part):
                return None
            owners[row] = part
    parts, groups = _repeated([(part, len(list(same))) for part, same in groupby(owners)])
    sizes = tuple(size for _, size in parts)
    if not all(owners) or len(parts) == 1 or len({part for part, _ in parts}) < len(parts):
        return None
    return Split(len(sizes) if len(set(sizes)) == 1 else sizes, groups)


def _repeated(values: list[T]) -> tuple[list[T], int]:
    """The shortest list that these repeat, and how often."""
    period = next(n for n in range(1, len(values) + 1) if values == values[:n] * (len(values) // n))
    return values[:period], len(values) // period


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
