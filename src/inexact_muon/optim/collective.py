"""Other routes of a batch than `owned`: collectives of DTensors, and blocks where they lie; what is measured."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from inexact_muon.dtensors import piece_of, whole_of
from inexact_muon.optim.algorithm import step_lengths
from inexact_muon.optim.assembly import Assembly, RankRoute, Run, scaled
from inexact_muon.optim.batches import Batch


@dataclass(eq=False)
class Gathered(RankRoute):
    """Placements or backends that only the collectives of DTensors understand: every rank computes everything."""

    def __post_init__(self) -> None:
        self.work_on(self.members, [m.whole for m in self.members])

    def directions(self, batch: Batch, inputs: list[Tensor], stacks: list[Tensor], optimizer: Any) -> Run:
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
        ms = self.stacks.fill(stacks, inputs)
        zs = optimizer.directions(self.members[0].ball, ms)
        yield from measured(self, inputs, self.stacks.split(zs), optimizer)
        assert self.solved is not None
        lengths = [length * self.factor for length in step_lengths(self.solved, ms, zs, False)]
        return scaled(batch, self.stacks.split(zs), lengths)


def on_owners(
    route: RankRoute, keys: Collection[int], *several: Sequence[Tensor]
) -> Generator[None, None, list[tuple[Any, ...]]]:
    """(member, its tensor in each of several lists, whole) of the members with these ids that this rank owns."""
    indices = [k for k, m in enumerate(route.members) if id(m.p) in keys]
    if not indices:
        return []
    wholes = []
    for values in several:
        way = Assembly([route.members[k] for k in indices], route.group, route.wire, values[0].dtype)
        for k, piece in zip(indices, way.allocate(values[0])[0], strict=True):
            piece.copy_(values[k])
        wholes.append((yield from way.gather())[0])
    return list(zip([way.members[k] for k in way.mine], *wholes, strict=True))


def measured(
    route: RankRoute, ms: Sequence[Tensor], zs: Sequence[Tensor], optimizer: Any, estimable: bool = False
) -> Generator[None, None, None]:
    """Gather m and z on the owners, if they are measured or observed, since no rank has them whole."""
    for m, whole, z in (yield from on_owners(route, optimizer.observed, ms, zs)):
        optimizer.observe(id(m.p), m.ball, m.view, whole, z, estimable)
