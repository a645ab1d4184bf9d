"""Other routes of a batch than `owned`: collectives of DTensors, blocks where they lie, and sums of Gram matrices."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from inexact_muon.dtensors import piece_of, whole_of
from inexact_muon.lmo import Spectral
from inexact_muon.lmo._base import sides
from inexact_muon.optim.algorithm import step_factor, step_lengths
from inexact_muon.optim.assembly import RankRoute
from inexact_muon.optim.batches import Batch, Member, Stacks
from inexact_muon.optim.masked import shared_factor
from inexact_muon.optim.owned import Found, Owned, Run, uniform_factor
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
        found = [piece_of(z, m.place.source) for m, z in zip(self.members, self.solved.stacks.split(zs), strict=True)]
        return scaled(batch, found, lengths)
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
        found, lengths = [], []
        for m, z, (zs, duals) in zip(self.members, raw, answers, strict=True):
            factors = [
                step_factor(m, shape, dual if m.length.needs_dual else None)
                for shape, dual in zip(m.whole.shapes, duals, strict=True)
            ]
            uniform = uniform_factor(m)
            blocks = [block * factor for block, factor in zip(zs, factors, strict=True)]
            found.append(z if uniform is not None else m.here.join(blocks))
            lengths.append(1.0 if uniform is None else uniform)
        return scaled(batch, found, lengths)


def measured(
    route: OwnBlocks | Summed, ms: Sequence[Tensor], zs: Sequence[Tensor], optimizer: Any
) -> Generator[None, None, None]:
    """Gather m and z on the owners, if they are measured or observed, since no rank has them whole."""
    some = [k for k, m in enumerate(route.members) if id(m.p) in optimizer.wanted]
    if not some:
        return
    members = [route.members[k] for k in some]
    wholes = []
    for values in (ms, zs):
        way = Owned(members, route.group, route.wire, values[0].dtype)
        pieces, _ = way.allocate(values[0])
        for k, piece in zip(some, pieces, strict=True):
            piece.copy_(values[k])
        wholes.append((yield from way.gather())[0])
    for m, whole, z in zip([m for m in members if m.owner == m.place.me], *wholes, strict=True):
        optimizer.observe(id(m.p), m.ball, m.view, whole, z, isinstance(route, Summed))


def scaled(batch: Batch, zs: list[Tensor], lengths: list[float]) -> Found:
    """On an accelerator, z times length / -decay in the dtype of W, and -decay as the factor that is left."""
    if batch.flags is None:
        return zs, lengths
    shared = [shared_factor(m.group) for m in batch.members]
    rows = zip(batch.members, zs, lengths, shared, strict=True)
    return [z.to(m.piece.dtype) * (length / factor) for m, z, length, factor in rows], shared


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
