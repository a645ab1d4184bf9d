"""Other routes of a batch than `owned`: collectives of DTensors, blocks where they lie, and sums of Gram matrices."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import Tensor

from inexact_muon.dtensors import piece_of, whole_of
from inexact_muon.lmo import Spectral
from inexact_muon.lmo._base import sides
from inexact_muon.optim.algorithm import step_factor, step_lengths
from inexact_muon.optim.assembly import on_owners
from inexact_muon.optim.batches import Batch, Member
from inexact_muon.optim.routes import RankRoute, Run, scaled, uniform_factor
from inexact_muon.parallel.gram import GramPart, gram_reduced


@dataclass(eq=False)
class Gathered(RankRoute):
    """Placements or backends that only the collectives of DTensors understand: every rank computes everything."""

    def __post_init__(self) -> None:
        self.work_on(self.members, [m.whole for m in self.members])

    def directions(self, batch: Batch, inputs: list[Tensor], stacks: list[Tensor], optimizer: Any) -> Run:
        """Directions of this rank's pieces."""
        wholes, stacks = self.stacks.allocate()
        for m, whole, x in zip(self.members, wholes, inputs, strict=True):
            whole.copy_(whole_of(x, m.place.source))
        zs, lengths = optimizer.solve(self.solved, wholes, stacks)
        pieces = [piece_of(z, m.place.source) for m, z in zip(self.members, self.stacks.split(zs), strict=True)]
        return scaled(batch, pieces, lengths)
        yield  # makes this a generator, as the others are


@dataclass(eq=False)
class OwnBlocks(RankRoute):
    """Each rank works on the blocks of its own piece; nothing is sent unless the result is measured.

    Attributes:
        factor: multiplies the step length.
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        self.work_on(self.members, [m.here for m in self.members])

    def allocate(self, like: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        return self.stacks.allocate()

    def directions(self, batch: Batch, inputs: list[Tensor], stacks: list[Tensor], optimizer: Any) -> Run:
        """Directions of this rank's pieces."""
        ms = self.stacks.fill(stacks, inputs)
        zs = optimizer.directions(self.members[0].ball, ms)
        yield from measured(self, inputs, self.stacks.split(zs), optimizer)
        assert self.solved is not None
        lengths = [length * self.factor for length in step_lengths(self.solved, ms, zs, False)]
        return scaled(batch, self.stacks.split(zs), lengths)


class Summed(RankRoute):
    """Gram-reduced: no rank has a whole matrix; see `parallel.gram`."""

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
    route: RankRoute, ms: Sequence[Tensor], zs: Sequence[Tensor], optimizer: Any
) -> Generator[None, None, None]:
    """Gather m and z on the owners, if they are measured or observed, since no rank has them whole."""
    for m, whole, z in (yield from on_owners(route, optimizer.observed, ms, zs)):
        optimizer.observe(id(m.p), m.ball, m.view, whole, z, isinstance(route, Summed))


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
