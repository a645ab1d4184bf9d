"""How ranks compute the directions of a batch: what all routes share.

A route gets this rank's pieces of the LMO inputs and returns its pieces of the directions. It yields while messages are
in flight, so that the pieces of the next batch travel while this one's products run, and its directions while the next
one's do. Every rank of the process group makes the same calls in the same order.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from inexact_muon.optim import algorithm, masked
from inexact_muon.optim.algorithm import step_factor
from inexact_muon.optim.batches import Batch, Member
from inexact_muon.optim.masked import shared_factor
from inexact_muon.optim.stacks import Stacks
from inexact_muon.parallel.wire import Wire
from inexact_muon.views.blocks import Cut

Directions = tuple[list[Tensor], list[float]]
"""(direction of each tensor, factor of lr it still needs)"""

Run = Generator[None, None, Directions]


@dataclass(eq=False)
class RankRoute:
    """How ranks compute the directions of a batch. All make the same calls in the same order.

    Attributes:
        members: in the order of their owners, equal on all ranks.
        group: the process group of all ranks that hold them.
        solved: what this rank's oracle works on.
    """

    members: list[Member]
    group: Any
    wire: Wire
    solved: Batch | None = field(default=None, init=False)

    def work_on(self, members: list[Member], cuts: Sequence[Cut], route: RankRoute | None = None) -> None:
        """Make the batch that this rank's oracle works on, from members with these matrices."""
        if members:
            self.solved = Batch(members, Stacks(members[0].ball, cuts, members[0].buffers[0]), route)

    @property
    def stacks(self) -> Stacks:
        """The matrices of `solved`."""
        assert self.solved is not None
        assert self.solved.stacks is not None
        return self.solved.stacks

    def allocate(self, like: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """(LMO inputs of `prepared_here`, uninitialised; the stacks that most of them are views of, if any)."""
        return [torch.empty_like(m.buffers[0]) for m in self.members], []

    def prepared_here(self, batch: Batch) -> Batch:
        """The members whose LMO inputs this rank needs before the directions."""
        return batch

    def directions(self, batch: Batch, inputs: list[Tensor], stacks: list[Tensor], optimizer: Any) -> Run:
        """Directions of this rank's pieces, from the inputs of `prepared_here`; yields while messages travel."""
        raise NotImplementedError

    def update_buffers_(self, batch: Batch, inputs: Sequence[Tensor]) -> None:
        """The buffers of all members, from the inputs of `prepared_here`."""
        equations(batch).update_buffers_(batch, inputs)


def equations(batch: Batch) -> ModuleType:
    """The equations of Algorithm 1 for this batch: on an accelerator those with flags."""
    return algorithm if batch.flags is None else masked


def scaled(batch: Batch, zs: list[Tensor], lengths: list[float]) -> Directions:
    """On an accelerator, z times length / -decay in the dtype of W, and -decay as the factor that is left.

    Stages get z as it is.
    """
    if batch.flags is None or batch.staged:
        return zs, lengths
    shared = [shared_factor(m.group) for m in batch.members]
    rows = zip(batch.members, zs, lengths, shared, strict=True)
    return [z.to(m.piece.dtype) * (length / factor) for m, z, length, factor in rows], shared


def uniform_factor(member: Member) -> float | None:
    """The factor of lr for all matrices of a member; None if they differ or depend on values."""
    if member.length.needs_dual:
        return None
    factors = {float(step_factor(member, shape, None)) for shape in member.whole.shapes if 0 not in shape}
    return factors.pop() if len(factors) == 1 else None if factors else 1.0
