"""Other routes of a batch than `owned`: collectives of DTensors, blocks where they lie, and sums of Gram matrices."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from inexact_muon.dtensors import piece_of, whole_of
from inexact_muon.lmo import Spectral
from inexact_muon.lmo._base import sides
from inexact_muon.optim.algorithm import step_factor, step_lengths
from inexact_muon.optim.assembly import RankRoute, scaled
from inexact_muon.optim.batches import Batch, Member
from inexact_muon.optim.owned import Owned, Run, uniform_factor
from inexact_muon.optim.stacks import Stacks
from inexact_muon.parallel.gram import GramPart, gram_reduced
from inexact_muon.parallel.wire import Wire


@dataclass(eq=False)
class Gathered(RankRoute):
    """Placements or backends that only the collectives of DTensors understand: every rank computes everything."""

    members: list[Member]

    def __post_init__(self) -> None:
        self.solved = Batch(
            self.members, Stacks(self.members[0].ball, [m.whole for m in self.members], self.members[0].buffers[0])
        )

    def allocate(self, like: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """The inputs; nothing is stacked yet."""
        return [torch.empty_like(m.buffers[0]) for m in self.members], []

    def directions(self, batch: Batch, inputs: list[Tensor], stacks: list[Tensor], optimizer: Any) -> Run:
        """Directions of this rank's pieces."""
        assert self.solved.stacks is not None
        wholes, stacks = self.solved.stacks.allocate()
        for m, whole, x in zip(self.members, wholes, inputs, strict=True):
            whole.copy_(whole_of(x, m.place.source))
        zs, lengths = optimizer.solve(self.solved, wholes, stacks)
        pieces = [piece_of(z, m.place.source) for m, z in zip(self.members, self.solved.stacks.split(zs), strict=True)]
        return scaled(batch, pieces, lengths)
        yield  # makes this a generator, as the others are


@dataclass(eq=False)
class OwnBlocks(RankRoute):
    """Each rank works on the blocks of its own piece; nothing is sent unless the result is measured.

    Attributes:
        factor: multiplies the step length.
    """

    members: list[Member]
    group: Any
    wire: Wire
    factor: float = 1.0

    def __post_init__(self) -> None:
        like = self.members[0].buffers[0]
        self.solved = Batch(self.members, Stacks(self.members[0].ball, [m.here for m in self.members], like))

    def allocate(self, like: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """The inputs, and the stacks that most of them are views of."""
        assert self.solved.stacks is not None
        return self.solved.stacks.allocate()

    def directions(self, batch: Batch, inputs: list[Tensor], stacks: list[Tensor], optimizer: Any) -> Run:
        """Directions of this rank's pieces."""
        assert self.solved.stacks is not None
        ms = self.solved.stacks.fill(stacks, inputs)
        zs = optimizer.directions(self.members[0].ball, ms)
        yield from measured(self, inputs, self.solved.stacks.split(zs), optimizer)
        lengths = step_lengths(self.solved, ms, zs, False)
        return scaled(batch, self.solved.stacks.split(zs), [length * self.factor for length in lengths])


@dataclass(eq=False)
class Summed(RankRoute):
    """Gram-reduced: no rank has a whole matrix; see `parallel.gram`."""

    members: list[Member]
    group: Any
    wire: Wire

    def allocate(self, like: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """The inputs; nothing is stacked."""
        return [torch.empty_like(m.buffers[0]) for m in self.members], []

    def directions(self, batch: Batch, inputs: list[Tensor], stacks: list[Tensor], optimizer: Any) -> Run:
        """Directions of this rank's pieces."""
        parts = [
            GramPart(m.place, m.whole.shapes, m.here(x), m.ball, m.owner)
            for m, x in zip(self.members, inputs, strict=True)
        ]
        answers = yield from gram_reduced(parts, self.group, self.wire)
        raw = [m.here.join(zs) for m, (zs, _) in zip(self.members, answers, strict=True)]
        yield from measured(self, inputs, raw, optimizer)
        directions, lengths = [], []
        for m, z, (zs, duals) in zip(self.members, raw, answers, strict=True):
            factors = [
                step_factor(m, shape, dual if m.length.needs_dual else None)
                for shape, dual in zip(m.whole.shapes, duals, strict=True)
            ]
            uniform = uniform_factor(m)
            blocks = [block * factor for block, factor in zip(zs, factors, strict=True)]
            directions.append(z if uniform is not None else m.here.join(blocks))
            lengths.append(1.0 if uniform is None else uniform)
        return scaled(batch, directions, lengths)


def summed_chunks(members: Sequence[Member], limit: int) -> list[list[Member]]:
    """Chunks whose Gram matrices fit the memory limit, at least one matrix at a time; owners take turns."""
    turns: dict[int, int] = {}
    ordered = []
    for m in members:
        turns[m.owner] = turns.get(m.owner, -1) + 1
        ordered.append((turns[m.owner], m.owner, m))
    chunks: list[list[Member]] = []
    for _, _, m in sorted(ordered, key=lambda entry: entry[:2]):
        if chunks and gram_space([*chunks[-1], m]) <= limit:
            chunks[-1].append(m)
        else:
            chunks.append([m])
    return [sorted(chunk, key=lambda m: m.owner) for chunk in chunks]  # as `Owned` sends them to be measured


def gram_space(members: Sequence[Member]) -> int:
    """Bytes that the busiest rank needs while chunks like this one follow each other.

    Of each matrix there is an n x n term of this rank, its message, and the multiplier, in three chunks; where they
    are added, one of each rank as it arrives, one for each as it leaves, in two chunks, and the oracle's work. Pieces
    are in float64, scaled.
    """
    place, state = members[0].place, members[0].buffers[0].element_size()
    squares = [sum(prod(s[:-2]) * min(sides(s)) ** 2 for s in m.whole.shapes) for m in members]
    own: dict[int, int] = {}
    for m, square in zip(members, squares, strict=True):
        own[m.owner] = own.get(m.owner, 0) + square
    pieces = max(sum(prod(m.place.piece_shape(j)) for m in members) for j in range(len(place.pieces)))
    added = max(own.values()) * len(place.row)
    return 3 * pieces * (2 * 8 + state) + 8 * (4 * sum(squares) + 3 * added + 4 * max(squares))


def measured(
    route: OwnBlocks | Summed, ms: Sequence[Tensor], zs: Sequence[Tensor], optimizer: Any
) -> Generator[None, None, None]:
    """Gather m and z on the owners, if they are measured or observed, since no rank has them whole."""
    indices = [k for k, m in enumerate(route.members) if id(m.p) in optimizer.observed]
    if not indices:
        return
    members, several = [route.members[k] for k in indices], [[values[k] for k in indices] for values in (ms, zs)]
    wholes = yield from on_owners(members, route.group, route.wire, several)
    for m, whole, z in wholes:
        optimizer.observe(id(m.p), m.ball, m.view, whole, z, isinstance(route, Summed))


def on_owners(
    members: Sequence[Member], group: Any, wire: Wire, several: Sequence[Sequence[Tensor]]
) -> Generator[None, None, list[tuple[Any, ...]]]:
    """(member, its tensor in each of several lists, whole) of the members that this rank owns."""
    wholes = []
    for values in several:
        way = Owned(list(members), group, wire, values[0].dtype)
        for piece, x in zip(way.allocate(values[0])[0], values, strict=True):
            piece.copy_(x)
        wholes.append((yield from way.gather())[0])
    return list(zip([m for m in members if m.owner == m.place.me], *wholes, strict=True))


def reducible(m: Member) -> bool:
    """Whether exactly the long side of every matrix is divided and the oracle can work from X X^T."""
    place, ball, shapes = m.place, m.ball, m.whole.shapes
    if len(place.pieces) == 1 or not isinstance(ball, Spectral):
        return False
    if not all(ball.polar.at(*sides(shape), m.p.device).from_gram for shape in shapes):
        return False
    (side, *more) = {m.view.axes(len(place.shape))[dim] for dim in place.cut} or {None}
    if more or side not in (-2, -1):
        return False
    return all(shape[side] == max(shape[-2:]) for shape in shapes)
