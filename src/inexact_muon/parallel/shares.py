"""Parameters of one step as work for several ranks: who owns each, and how pieces reach the owner and come back."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
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
Ask = Callable[[Sequence[Ball], Sequence[Sequence[Tensor]]], list[list[Tensor]]]
"""The oracle: z of each matrix, from the ball of each parameter and its matrices."""


@dataclass
class Share:
    """One parameter in one step, as this rank holds it.

    Attributes:
        m: this rank's piece of what the ball sees.
        place: who holds the pieces.
        view: how the whole parameter is cut into matrices.
        turn: number of the step.
        dual: whether <m, z> of each matrix is wanted.
        measured: whether m and z are wanted whole, on one rank.
        owner: the rank that orthogonalises it.
        key: what the optimizer knows it by.
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
        return self.owner == self.place.me or not self.place.shared

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of the whole matrices."""
        return self.view.shapes(self.place.shape)

    def blocks(self, x: Tensor) -> list[Tensor]:
        """What a piece has of each matrix; or the matrices of a whole."""
        return self.view.cut_piece(x, self._first(x.shape), self.place.shape)

    def joined(self, blocks: Sequence[Tensor], size: Sequence[int]) -> Tensor:
        """The piece, or whole, of this size that has these blocks."""
        return self.view.join_piece(blocks, size, self._first(size), self.place.shape)

    def _first(self, size: Sequence[int]) -> tuple[int, ...]:
        return (0,) * len(size) if tuple(size) == self.place.shape else self.place.first


@dataclass
class Direction:
    """What a strategy found for a share.

    Attributes:
        z: this rank's piece, to be subtracted lr length times; the whole where only torch can cut it.
        shapes: of the matrices that the ball saw: blocks, where each rank asks about its own.
        duals: <m, z> of each, (..., 1, 1) in float32 or better, if they were wanted.
        factor: multiplies the length.
        seen: (m, z), whole, on the rank that is to measure them.
        estimable: whether z is a function of m's singular values, as estimates of inexactness assume.
    """

    z: Tensor
    shapes: list[tuple[int, ...]]
    duals: list[Tensor] = field(default_factory=list)
    factor: float = 1.0
    seen: tuple[Tensor, Tensor] | None = None
    estimable: bool = True


Run = Generator[None, None, list[Direction]]
"""Work on some shares that yields whenever messages are under way."""


def solve(shares: Sequence[Share], wholes: Sequence[Tensor], ask: Ask) -> list[Direction]:
    """The answers to whole parameters: one call of each ball for all of its matrices."""
    cut = [share.view.cut(whole) for share, whole in zip(shares, wholes, strict=True)]
    found = []
    for share, whole, ms, answers in zip(shares, wholes, cut, ask([share.ball for share in shares], cut), strict=True):
        zs = [z.to(whole.dtype) for z in answers]  # an oracle may answer in the dtype that it computes in
        z = share.view.join(zs, whole.shape)
        duals = [inner(m, one) for m, one in zip(ms, zs, strict=True)] if share.dual else []
        found.append(Direction(z, share.shapes, duals, seen=(whole, z) if share.measured else None))
    return found


def assign(work: Sequence[tuple[Place, float]]) -> list[int]:
    """The owner of each: the holder with the least work so far, the most expensive first; ties to the lower rank.

    What one set of ranks holds is balanced by itself: another rank may not know of the rest.
    """
    owners = [0] * len(work)
    queues: dict[tuple[int, ...], list[tuple[float, int]]] = {}
    for i in sorted(range(len(work)), key=lambda i: -work[i][1]):
        place, cost = work[i]
        if not place.shared:
            continue
        queue = queues.setdefault(place.ranks, [(0.0, rank) for rank in place.ranks])
        load, owners[i] = queue[0]
        heapq.heapreplace(queue, (load + cost, owners[i]))
    return owners


def interleaved(runs: Iterable[tuple[Key, Run]]) -> Iterator[tuple[Key, list[Direction]]]:
    """Runs of which one computes while the messages of its neighbours are under way.

    The next run sends its pieces before this one computes, and this one's answers travel while the next one computes.
    """
    started: list[tuple[Key, Run]] = []
    for entry in runs:
        started.append(entry)
        yield from _advance(started)
    while started:
        yield from _advance(started)


def _advance(started: list[tuple[Key, Run]]) -> Iterator[tuple[Key, list[Direction]]]:
    """Every run goes on to its next messages, the youngest first; those that end leave."""
    for key, run in started[::-1]:
        try:
            next(run)
        except StopIteration as end:
            started[:] = [entry for entry in started if entry[1] is not run]
            yield key, end.value


def collect(shares: Sequence[Share], pieces: Sequence[Tensor], wire: Wire) -> tuple[list[Tensor | None], Pending]:
    """Starts sending pieces to owners; the wholes that this rank owns are filled when the messages are through.

    The pieces come from the owner's own copy.
    """
    wholes: list[Tensor | None] = []
    sends, receives, landed = [], [], []
    for share, x in zip(shares, pieces, strict=True):
        place = share.place
        row = place.holders[place.copy_of(share.owner)] if place.shared else (place.me,)
        if not share.mine:
            wholes.append(None)
            sends += [(share.owner, x)] if place.me in row else []
            continue
        whole = x if len(row) == 1 else x.new_empty(place.shape)
        wholes.append(whole)
        if len(row) > 1:
            parts = [x if rank == place.me else x.new_empty(place.piece_shape(j)) for j, rank in enumerate(row)]
            landed += [(place.take(whole, j), part) for j, part in enumerate(parts)]
            receives += [(rank, part) for rank, part in zip(row, parts, strict=True) if rank != place.me]
    return wholes, _Landing(wire.exchange(sends, receives), landed)


def give_back(
    shares: Sequence[Share], found: Sequence[Direction | None], wire: Wire
) -> tuple[list[Direction], Pending]:
    """Starts sending each holder its piece of what the owners found; filled when the messages are through."""
    made, sends, receives = [], [], []
    for share, direction in zip(shares, found, strict=True):
        place = share.place
        if direction is None:
            piece, duals = share.m.new_empty(place.piece_shape(place.piece)), _room(share)
            receives += [(share.owner, x) for x in (piece, *duals)]
            made.append(Direction(piece, share.shapes, duals))
            continue
        z, others = direction.z, [(r, j) for row in place.holders for j, r in enumerate(row) if r != place.me]
        if place.shared:
            sends += [(r, x) for r, j in others for x in (place.take(z, j), *direction.duals)]
        made.append(Direction(place.take(z, place.piece), direction.shapes, direction.duals, seen=direction.seen))
    return made, wire.exchange(sends, receives)


def _room(share: Share) -> list[Tensor]:
    """For <m, z> of each matrix."""
    wide = torch.promote_types(share.m.dtype, torch.float32)
    sizes = [(*shape[:-2], 1, 1) if len(shape) > 1 else (1,) for shape in share.shapes]
    return [share.m.new_empty(size, dtype=wide) for size in sizes if prod(size)] if share.dual else []


class _Landing(Pending):
    """Pieces that are copied to their place in a whole when they are there."""

    def __init__(self, pending: Pending, landed: Sequence[tuple[Tensor, Tensor]]) -> None:
        self._pending, self._landed = pending, landed

    def wait(self) -> None:
        self._pending.wait()
        for target, part in self._landed:
            target.copy_(part)
        self._landed = ()
