"""Placement of a parameter: its pieces, and the replicas of the pieces.

A plain tensor is one piece. A DTensor is divided along the mesh dimensions that shard it and replicated along the
others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import product
from math import prod
from typing import Any

import torch.distributed as dist
from torch import Tensor

from inexact_muon.dtensors import local
from inexact_muon.parallel.wire import has_all_to_all

Span = tuple[int, int]


@dataclass(frozen=True)
class Place:
    """Which rank holds which piece of a parameter.

    Attributes:
        shape: shape of the whole parameter.
        holders: holders[c][j] is the rank that holds piece j of replica c.
        pieces: pieces[j] are the spans (first, end) of piece j in each dimension; a piece may be empty.
        copy, piece: the replica and piece of this rank.
        groups: process groups over which a reduction reaches every holder.
        source: the DTensor, if only torch's collectives can gather it: its placements are not supported, or the backend
            has no all-to-all.
        grid: if all pieces have the same shape, (sizes of the dividing dimensions of the mesh, for each dimension of
            the parameter those that divide it, from the outside to the inside); piece j has the j-th coordinate.
    """

    shape: tuple[int, ...]
    holders: tuple[tuple[int, ...], ...]
    pieces: tuple[tuple[Span, ...], ...]
    copy: int = 0
    piece: int = 0
    groups: tuple[Any, ...] = field(default=(), compare=False)
    source: Any = field(default=None, compare=False)
    grid: tuple[tuple[int, ...], tuple[tuple[int, ...], ...]] | None = None

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """All holders, in order."""
        return tuple(sorted(rank for row in self.holders for rank in row))

    @property
    def me(self) -> int:
        """This rank."""
        return self.holders[self.copy][self.piece]

    @property
    def shared(self) -> bool:
        """Whether other ranks hold parts of it."""
        return len(self.ranks) > 1

    @cached_property
    def cut(self) -> tuple[int, ...]:
        """The dimensions along which it is divided."""
        whole = tuple((0, size) for size in self.shape)
        return tuple(d for d in range(len(self.shape)) if any(piece[d] != whole[d] for piece in self.pieces))

    @cached_property
    def size(self) -> tuple[int, ...]:
        """Shape of this rank's piece."""
        return self.piece_shape(self.piece)

    @property
    def row(self) -> tuple[int, ...]:
        """The ranks that hold the pieces of this rank's replica."""
        return self.holders[self.copy]

    @property
    def first(self) -> tuple[int, ...]:
        """Index of this rank's first entry in each dimension."""
        return tuple(first for first, _ in self.pieces[self.piece])

    def copy_of(self, rank: int) -> int:
        """The replica that a rank belongs to."""
        return next(c for c, row in enumerate(self.holders) if rank in row)

    def take(self, whole: Tensor, piece: int) -> Tensor:
        """A piece of a whole tensor, as a view."""
        for dim, (first, end) in enumerate(self.pieces[piece]):
            whole = whole.narrow(dim, first, end - first)
        return whole

    def piece_shape(self, piece: int) -> tuple[int, ...]:
        """The shape of a piece."""
        return tuple(end - first for first, end in self.pieces[piece])


def place_of(x: Tensor, group: Any = None) -> Place:
    """Placement of x: a DTensor on its mesh; a plain tensor on this rank, or replicated over a process group.

    Work on replicas is not divided if the backend has no all-to-all.
    """
    if hasattr(x, "device_mesh"):
        return _on_mesh(x)
    whole = (tuple((0, size) for size in x.shape),)
    if group is None or not has_all_to_all(group):
        return Place(tuple(x.shape), ((0,),), whole)
    ranks = dist.get_process_group_ranks(group)
    return Place(tuple(x.shape), tuple((rank,) for rank in ranks), whole, dist.get_rank(group), 0, (group,))


def _on_mesh(x: Any) -> Place:
    mesh, placements, shape = x.device_mesh, tuple(x.placements), tuple(x.shape)
    table, me = mesh.mesh, dist.get_rank()  # each look at mesh.mesh makes a tensor
    sizes, ranks = tuple(table.shape), tuple(table.flatten().tolist())
    groups = tuple(mesh.get_group(d) for d in range(len(sizes)))
    if all(p.is_replicate() or p.is_shard() or hasattr(p, "split_factor") for p in placements):
        holders, pieces, grid = _layout(shape, placements, sizes, ranks)
        copy = next(c for c, row in enumerate(holders) if me in row)
        place = Place(shape, holders, pieces, copy, holders[copy].index(me), groups, grid=grid)
        if place.size == tuple(local(x).shape) and all(map(has_all_to_all, groups)):
            return place
    whole = (tuple((0, size) for size in shape),)
    return Place(shape, tuple((rank,) for rank in ranks), whole, ranks.index(me), 0, groups, x)


@lru_cache(maxsize=256)  # layers repeat, and each look goes through all ranks
def _layout(shape: tuple[int, ...], placements: tuple[Any, ...], sizes: tuple[int, ...], ranks: tuple[int, ...]) -> Any:
    """(`Place.holders`, `Place.pieces`, `Place.grid`) on a mesh of these sizes."""
    copied = [d for d, p in enumerate(placements) if p.is_replicate()]
    divided = [d for d in range(len(placements)) if d not in copied]
    dividing = [_dividing(dim, len(shape), placements) for dim in range(len(shape))]
    holders: dict[tuple[int, ...], list[int]] = {}
    pieces = []
    for rank, coordinate in zip(ranks, product(*map(range, sizes)), strict=True):
        copy = tuple(coordinate[d] for d in copied)
        holders.setdefault(copy, []).append(rank)
        if not any(copy):  # the pieces of the first replica are those of all
            spans = [_span(size, dims, sizes, coordinate) for size, dims in zip(shape, dividing, strict=True)]
            pieces.append(tuple(spans))
    even = all(size % prod(sizes[d] for d in dims) == 0 for size, dims in zip(shape, dividing, strict=True))
    order = tuple(tuple(divided.index(d) for d in dims) for dims in dividing)
    grid = (tuple(sizes[d] for d in divided), order) if even else None
    return tuple(map(tuple, holders.values())), tuple(pieces), grid


def _span(size: int, dividing: Sequence[int], sizes: Sequence[int], coordinate: Sequence[int]) -> Span:
    """What the rank at a mesh coordinate holds of a dimension of this size."""
    first, end = 0, size
    for d in dividing:
        chunk = -(-(end - first) // sizes[d])
        first, end = min(first + coordinate[d] * chunk, end), min(first + (coordinate[d] + 1) * chunk, end)
    return first, end


def _dividing(dim: int, ndim: int, placements: Sequence[Any]) -> list[int]:
    """The mesh dimensions that divide a dimension of a parameter, from the outside to the inside.

    They do so from left to right, except that strided ones (FSDP2 over tensor parallelism) follow after all others,
    from right to left.
    """
    dividing = [d for d, p in enumerate(placements) if not p.is_replicate() and p.dim % ndim == dim]
    strided = [d for d in dividing if hasattr(placements[d], "split_factor")]
    return [d for d in dividing if d not in strided] + strided[::-1]
