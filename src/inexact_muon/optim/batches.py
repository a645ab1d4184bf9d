"""Batches: parameters with one ball, dtype and device, whose matrices are stacked by shape.

LMO inputs are written directly into the stacks that the oracle works on, so the number of operations grows with the
number of shapes, not of parameters.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor

from inexact_muon.lmo import Ball, Spectral
from inexact_muon.optim.finite import Flags, Number
from inexact_muon.optim.lengths import Length
from inexact_muon.polar.batching import STACKED, limit_on, within, work
from inexact_muon.views import View

Slot = tuple[int, int, int | None]
"""(index in the list of tensors passed to the ball, first matrix in that tensor, number of matrices or None for all)"""


@dataclass(eq=False)
class Member:
    """One parameter with its state and options."""

    p: Tensor
    state: dict[str, Any]
    group: dict[str, Any]
    ball: Ball
    length: Length
    view: View

    @cached_property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of its matrices."""
        return self.view.shapes(self.p.shape)

    @property
    def decay(self) -> float:
        """Decay rate: W is multiplied by 1 - lr decay."""
        return 1.0 if self.group["constrained"] else float(self.group["weight_decay"])

    @property
    def kind(self) -> tuple[Any, ...]:
        """Key of the batch: members of one batch have equal kinds."""
        group = self.group
        switches = (group["nesterov"], group["momentum_init"], group["maximize"])
        dtypes = (self.p.dtype, self.state["momentum_buffer"].dtype)
        return (self.ball, self.length, *dtypes, self.p.device, *switches)

    @property
    def work(self) -> int:
        """Bytes of work space that a step may need."""
        buffer, dtype = self.state["momentum_buffer"], torch.float32
        if isinstance(self.ball, Spectral) and buffer.numel():
            dtype = self.ball.polar.compute_dtype(buffer.new_empty(()).expand(self.shapes[0]))
        return work(buffer, dtype)


@dataclass(eq=False)
class Batch:
    """Members of one kind, and the positions of their matrices in the list of tensors passed to the ball.

    Matrices for the spectral ball are stacked by shape; other balls get each tensor separately.

    Attributes:
        unstacked: members are pieces of parameters; their matrices are assembled elsewhere and nothing is stacked.
        flags: finite flags of the members, on an accelerator; None if the host knows that all gradients are finite.
        stacks: (count, rows, columns) of each stack.
        slots: slots of each member's matrices.
        blocks: the slot that each member is a view of, or None if its matrices must be copied.
        step_factors: cached `step_factor` of each matrix of each member, if it depends on shapes only.
    """

    members: list[Member]
    flags: Flags | None = None
    unstacked: bool = False
    stacks: list[tuple[int, int, int]] = field(default_factory=list)
    slots: list[list[Slot]] = field(default_factory=list)
    blocks: list[Slot | None] = field(default_factory=list)
    step_factors: list[list[Number]] | None = None
    _factors: dict[int, tuple[Any, Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ball = self.members[0].ball
        self.blocks = [None] * len(self.members)
        if self.unstacked:
            return
        if not isinstance(self.ball, Spectral):
            index = itertools.count()
            self.slots = [[(next(index), 0, None) for _ in member.shapes] for member in self.members]
            return
        places: dict[object, int] = {}
        for k, member in enumerate(self.members):
            block, slots = member.view.block(member.p.shape), list[Slot]()
            for count, rows, columns in [block] if block else [(prod(s[:-2]), s[-2], s[-1]) for s in member.shapes]:
                shared = member.p.device.type != "cpu" or rows * columns <= STACKED
                place = places.setdefault((rows, columns) if shared else (k, len(slots)), len(self.stacks))
                before = self.stacks[place][0] if place < len(self.stacks) else 0
                self.stacks[place : place + 1] = [(before + count, rows, columns)]
                slots.append((place, before, count))
            self.slots.append(slots)
            self.blocks[k] = slots[0] if block else None

    def allocate(self) -> tuple[list[Tensor], list[Tensor]]:
        """(uninitialised LMO input of each member, the stacks that most of them are views of)"""
        like = self.members[0].state["momentum_buffer"]
        stacks = [like.new_empty(shape) for shape in self.stacks]
        return [
            like.new_empty(member.p.shape)
            if slot is None
            else stacks[slot[0]].narrow(0, slot[1], slot[2] or 0).view(member.p.shape)
            for member, slot in zip(self.members, self.blocks, strict=True)
        ], stacks

    def fill(self, stacks: list[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
        """The list of tensors for the ball: the stacks, with members that are not views copied in; or the matrices."""
        if self.unstacked:
            return list(inputs)
        if not self.stacks:
            return [matrix for member, x in zip(self.members, inputs, strict=True) for matrix in member.view.cut(x)]
        for member, x, slots, block in zip(self.members, inputs, self.slots, self.blocks, strict=True):
            if block is None:
                for slot, matrix in zip(slots, member.view.cut(x), strict=True):
                    in_slot(stacks, slot).copy_(matrix.reshape(-1, *matrix.shape[-2:]))
        return stacks

    def shapes(self, k: int) -> list[tuple[int, ...]]:
        """Shapes of the contents of member k's slots: its matrices, or a stack of them."""
        block = self.blocks[k]
        return self.members[k].shapes if block is None else [(block[2] or 0, *self.stacks[block[0]][1:])]

    def scale(self, zs: list[Tensor], numbers: Sequence[Sequence[Number]]) -> None:
        """Multiply the contents of each slot by its number, casting tensors narrower than W."""
        dtype = self.members[0].p.dtype
        rows: list[list[tuple[Number, int]]] = [[] for _ in zs]
        for slots, some in zip(self.slots, numbers, strict=True):
            for (place, _, count), number in zip(slots, some, strict=True):
                rows[place].append((number, 1 if count is None else count))
        plain: dict[int, float] = {}
        for place, row in enumerate(rows):
            z, values = zs[place], {number for number, _ in row if not isinstance(number, Tensor)}
            narrow = torch.finfo(z.dtype).bits < torch.finfo(dtype).bits
            if self.stacks and (narrow or len(values) != 1):
                factor = self._factor(place, row, dtype)
                zs[place] = z * factor if narrow else z.mul_(factor)
                continue
            zs[place] = z.to(dtype) if narrow else z
            if values:
                plain[place] = values.pop()
            else:
                zs[place].mul_(row[0][0])
        if plain:
            torch._foreach_mul_([zs[place] for place in plain], list(plain.values()))

    def _factor(self, place: int, row: Sequence[tuple[Number, int]], dtype: torch.dtype) -> Tensor:
        """The numbers of a stack as a tensor on its device; host values are transferred once."""
        tensors = [number for number, _ in row if isinstance(number, Tensor)]
        if tensors:
            return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
        values = [number for number, count in row for _ in range(count)]
        if place not in self._factors or self._factors[place][0] != values:
            few = values[:1] if all(value == values[0] for value in values) else values
            made = torch.tensor(few, dtype=torch.promote_types(dtype, torch.float32)).view(-1, 1, 1)
            self._factors[place] = (values, made.to(self.members[0].p.device))
        return self._factors[place][1]

    def per_parameter(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Stacked tensors rearranged to the members' shapes."""
        made = []
        for k, (member, block) in enumerate(zip(self.members, self.blocks, strict=True)):
            if block is not None:
                made.append(tensors[block[0]].narrow(0, block[1], block[2] or 0).reshape(member.p.shape))
            else:
                slots = zip(self.slots[k], self.shapes(k), strict=True)
                made.append(
                    member.view.join([in_slot(tensors, s).reshape(shape) for s, shape in slots], member.p.shape)
                )
        return made


def in_slot(tensors: Sequence[Tensor], slot: Slot) -> Tensor:
    """The contents of a slot."""
    place, first, count = slot
    return tensors[place] if count is None else tensors[place].narrow(0, first, count)


def chunks(members: Iterable[Member], limit: int | None) -> Iterator[list[Batch]]:
    """Batches to be processed together within the memory limit; at least one member at a time.

    Members of one kind are adjacent, in the order of their first appearance.
    """
    devices: dict[torch.device, dict[tuple[Any, ...], list[Member]]] = {}
    for member in members:
        devices.setdefault(member.p.device, {}).setdefault(member.kind, []).append(member)
    for device, kinds in devices.items():
        ordered = [m for some in kinds.values() for m in sorted(some, key=lambda m: tuple(sorted(m.p.shape)))]
        for chunk in within(((member, member.work) for member in ordered), limit_on(device, limit)):
            by_kind: dict[tuple[Any, ...], list[Member]] = {}
            for member in chunk:
                by_kind.setdefault(member.kind, []).append(member)
            yield [Batch(some) for some in by_kind.values()]
