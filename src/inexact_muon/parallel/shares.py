"""The parameters of a step as work for several ranks: assignment of owners, gathering and scattering of pieces."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TypeVar

import torch
from torch import Tensor

from inexact_muon.lmo import Ball
from inexact_muon.lmo._base import inner
from inexact_muon.parallel.place import Place
from inexact_muon.parallel.wire import Pending, Wire
from inexact_muon.views import View

Key = TypeVar("Key")
Oracle = Callable[[Sequence[Ball], Sequence[Sequence[Tensor]]], list[list[Tensor]]]
"""Directions z of all matrices, from the ball of each parameter and its matrices."""


@dataclass
class Share:
    """One parameter in one step, as this rank holds it.

    Attributes:
        m: this rank's piece of the LMO input.
        place: placement of the pieces.
        view: how the whole parameter is cut into matrices.
        turn: index of the step.
        dual: whether <m, z> of each matrix is needed.
        measured: whether whole m and z are needed on one rank.
        owner: the rank that orthogonalises it.
        key: id of the parameter in the optimizer.
    """

    m: Tensor
    place: Place
    ball: Ball
    view: View
    turn: int = 0
    dual: bool = False
    measured: bool = False
    owner: int = 0
    key: int = 0

    @property
    def mine(self) -> bool:
        """Whether this rank is the owner."""
        return self.owner == self.place.me

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the whole matrices."""
        return self.view.shapes(self.place.shape)

    def blocks(self, x: Tensor) -> list[Tensor]:
        """The blocks of each matrix that a piece contains; the matrices of a whole tensor."""
        return self.view.cut_piece(x, self._first(x.shape), self.place.shape)

    def joined(self, blocks: Sequence[Tensor], size: Sequence[int]) -> Tensor:
        """The piece, or whole tensor, of this size with these blocks."""
        return self.view.join_piece(blocks, size, self._first(size), self.place.shape)

    def _first(self, size: Sequence[int]) -> tuple[int, ...]:
        return (0,) * len(size) if tuple(size) == self.place.shape else self.place.first


@dataclass
class Direction:
    """The result of a strategy for one share.

    Attributes:
        z: this rank's piece of the direction, or the whole direction if `place.source` is set (torch then cuts it).
        shapes: shapes of the matrices passed to the ball: blocks, if each rank works on its own.
        duals: <m, z> of each, (..., 1, 1) in float32 or wider, if requested.
        factor: multiplies the step length.
        observed: whole (m, z), on the rank that measures them.
        estimable: whether z is a function of m's singular values, which estimates of inexactness assume.
    """

    z: Tensor
    shapes: list[tuple[int, ...]]
    duals: list[Tensor] = field(default_factory=list)
    factor: float = 1.0
    observed: tuple[Tensor, Tensor] | None = None
    estimable: bool = True


Run = Generator[None, None, list[Direction]]
"""A generator that works on shares and yields while messages are in flight."""


def solve(shares: Sequence[Share], wholes: Sequence[Tensor], oracle: Oracle) -> list[Direction]:
    """Directions of whole parameters, with one call per distinct ball."""
    cut = [share.view.cut(whole) for share, whole in zip(shares, wholes, strict=True)]
    found = []
    for share, whole, ms, answers in zip(
        shares, wholes, cut, oracle([share.ball for share in shares], cut), strict=True
    ):
        zs = [z.to(whole.dtype) for z in answers]  # an oracle may return its compute dtype
        z = share.view.join(zs, whole.shape)
        duals = [inner(m, one) for m, one in zip(ms, zs, strict=True)] if share.dual else []
        found.append(Direction(z, share.shapes, duals, observed=(whole, z) if share.measured else None))
    return found


def assign(work: Sequence[tuple[Place, float]]) -> list[int]:
    """The owner of each: the holder with the least work so far, most expensive first; ties to the lower rank.

    Each set of ranks is balanced separately: other ranks may not know of its work.
    """
    owners = [0] * len(work)
    queues: dict[tuple[int, ...], list[tuple[float, int]]] = {}
    for i in sorted(range(len(work)), key=lambda i: -work[i][1]):
        place, cost = work[i]
        queue = queues.setdefault(place.ranks, [(0.0, rank) for rank in place.ranks])
        load, owners[i] = queue[0]
        heapq.heapreplace(queue, (load + cost, owners[i]))
    return owners


def interleaved(runs: Iterable[tuple[Key, Run]]) -> Iterator[tuple[Key, list[Direction]]]:
    """Results of runs, overlapping the computation of one with the messages of its neighbours.

    The next run sends its pieces before this one computes, and this one's results are sent while the next one computes.
    """
    started: list[tuple[Key, Run]] = []
    for entry in runs:
        started.append(entry)
        yield from _advance(started)
    while started:
        yield from _advance(started)


def _advance(started: list[tuple[Key, Run]]) -> Iterator[tuple[Key, list[Direction]]]:
    """Advance every run to its next messages, newest first; yields and removes those that finish."""
    for key, run in started[::-1]:
        try:
            next(run)
        except StopIteration as end:
            started[:] = [entry for entry in started if entry[1] is not run]
            yield key, end.value


def gather(
    shares: Sequence[Share], pieces: Sequence[Tensor], wire: Wire, everywhere: bool = False
) -> tuple[list[Tensor | None], Pending]:
    """Start sending pieces to the owners, or to every rank of the same replica if `everywhere`.

    Owners take the pieces of their replica. Returns the whole tensors, filled once the messages have arrived; None if
    this rank does not receive one.
    """
    wholes: list[Tensor | None] = []
    sends, receives, copies = [], [], []
    for share, x in zip(shares, pieces, strict=True):
        place = share.place
        row = place.holders[place.copy if everywhere else place.copy_of(share.owner)]
        targets = row if everywhere else (share.owner,)
        if place.me in row:
            sends += [(rank, x) for rank in targets if rank != place.me]
        if place.me not in targets or len(row) == 1:
            wholes.append(x if place.me in targets else None)
            continue
        whole = x.new_empty(place.shape)
        parts = [x if rank == place.me else x.new_empty(place.piece_shape(j)) for j, rank in enumerate(row)]
        receives += [(rank, part) for rank, part in zip(row, parts, strict=True) if rank != place.me]
        copies += [(place.take(whole, j), part) for j, part in enumerate(parts)]
        wholes.append(whole)
    return wholes, wire.exchange(sends, receives, copies)


def scatter_from_owners(
    shares: Sequence[Share], found: Sequence[Direction | None], wire: Wire
) -> tuple[list[Direction], Pending]:
    """Start sending each holder its piece of the directions; filled once the messages have arrived."""
    made, sends, receives = [], [], []
    for share, direction in zip(shares, found, strict=True):
        place = share.place
        if direction is None:
            piece, duals = share.m.new_empty(place.piece_shape(place.piece)), _empty_duals(share)
            receives += [(share.owner, x) for x in (piece, *duals)]
            made.append(Direction(piece, share.shapes, duals))
            continue
        z, others = direction.z, [(r, j) for row in place.holders for j, r in enumerate(row) if r != place.me]
        sends += [(r, x) for r, j in others for x in (place.take(z, j), *direction.duals)]
        made.append(replace(direction, z=place.take(z, place.piece)))
    return made, wire.exchange(sends, receives)


def _empty_duals(share: Share) -> list[Tensor]:
    """Receive buffers for <m, z> of each matrix."""
    wide = torch.promote_types(share.m.dtype, torch.float32)
    sizes = [(*shape[:-2], 1, 1) if len(shape) > 1 else (1,) for shape in share.shapes]
    return [share.m.new_empty(size, dtype=wide) for size in sizes if prod(size)] if share.dual else []
