"""Batches: parameters, or this rank's pieces of them, that are updated by the same operations.

LMO inputs of whole parameters are written directly into the stacks that the oracle works on, so the number of
operations grows with the number of shapes, not of parameters.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor

from inexact_muon.lmo import Ball, Spectral
from inexact_muon.lmo._base import sides
from inexact_muon.optim.decay import is_cautious
from inexact_muon.optim.finite import Flags, Number
from inexact_muon.optim.group import Group
from inexact_muon.optim.lengths import Length
from inexact_muon.optim.rows import Rows
from inexact_muon.polar.batching import STACKED, work
from inexact_muon.views import View
from inexact_muon.views.blocks import Cut

Slot = tuple[int, int, int | None]
"""(index in the list of tensors passed to the ball, first matrix in that tensor, number of matrices or None for all)"""

STAGED = ("before", "after", "decay", "fixed_norm")
"""Group options of stages around the oracle."""

COMPOSING = (
    *("algorithm", "ball", "length", "view", "nesterov", "momentum_init", "maximize", "radius", "scale"),
    *STAGED,
)
"""Group options that determine how batches are composed or what they cache."""


@dataclass(eq=False)
class Member:
    """One parameter in a step, as this rank holds it.

    Attributes:
        piece: the parameter itself, or this rank's piece, sharing memory.
        buffers: momentum, or AdamW's two moments; pieces like `piece`.
        gradient: of the piece, in this step.
        place: which rank holds which piece (`parallel.place.Place`); None without other ranks.
        owner: the rank that computes the direction.
        numbers: members with the same one have groups with equal lr, momentum, ... (`stepplan.NUMBERS`).
        before, after: stages around the oracle (`optim.stages`).
        stage_state: their states, pieces like `piece` or numbers for each row or matrix.
    """

    p: Tensor
    group: Group
    state: dict[str, Any]
    piece: Tensor
    buffers: tuple[Tensor, ...]
    ball: Ball
    length: Length
    view: View
    gradient: Tensor | None = None
    place: Any = None
    owner: int = 0
    numbers: int = 0
    before: tuple[Any, ...] = ()
    after: tuple[Any, ...] = ()
    stage_state: dict[str, Tensor] = field(default_factory=dict)

    @cached_property
    def staged(self) -> bool:
        """Whether stages decide the step beside Algorithm 1: the oracle's answers then come back as they are."""
        return bool(self.before or self.after or self.group["fixed_norm"] or is_cautious(self.group))

    @cached_property
    def whole(self) -> Cut:
        """How the whole parameter is cut into matrices."""
        shape = tuple(self.p.shape)
        return Cut(self.view, shape, (0,) * len(shape), shape)

    @cached_property
    def here(self) -> Cut:
        """How the piece is."""
        return self.whole if self.place is None else Cut(self.view, self.place.size, self.place.first, self.place.shape)

    @cached_property
    def compute_dtype(self) -> torch.dtype:
        """The dtype in which the oracle multiplies; that of the momentum for balls that do not."""
        buffer = self.buffers[0]
        if not isinstance(self.ball, Spectral) or not self.p.numel():
            return buffer.dtype
        return self.ball.polar.compute_dtype(buffer.new_empty(()).expand(self.whole.shapes[0]))

    @property
    def kind(self) -> tuple[Any, ...]:
        """Key of the batch: members of one batch have equal kinds."""
        group = self.group
        switches = (group["nesterov"], group["momentum_init"], group["maximize"])
        stages = (self.before, self.after, group["fixed_norm"], group["decay"], self.numbers if self.staged else 0)
        return (self.ball, self.length, self.piece.dtype, self.buffers[0].dtype, self.piece.device, *switches, *stages)

    @property
    def work(self) -> int:
        """Bytes of work space that a step may need where the matrices are whole."""
        oracle = work(self.buffers[0], self.compute_dtype if isinstance(self.ball, Spectral) else torch.float32)
        return oracle + self.stage_work(self.piece.numel())

    def stage_work(self, entries: int) -> int:
        """Bytes of work space that its stages may need for this many entries: answers, weights, a state and results."""
        return 6 * entries * max(4, self.piece.element_size()) if self.staged else 0


class Stacks:
    """Where the matrices of several tensors lie in the list of tensors passed to the ball.

    Matrices for the spectral ball are stacked by shape; other balls get each matrix separately.

    Attributes:
        shapes: (count, rows, columns) of each stack.
        slots: slots of each tensor's matrices.
        blocks: the slot that each tensor is a view of, or None if its matrices must be copied.
    """

    def __init__(self, ball: Ball, cuts: Sequence[Cut], like: Tensor) -> None:
        self.ball, self.cuts, self.like = ball, cuts, like
        self.shapes: list[tuple[int, int, int]] = []
        self.slots: list[list[Slot]] = []
        self.blocks: list[Slot | None] = [None] * len(cuts)
        self._factors: dict[int, tuple[Any, Tensor]] = {}
        if not isinstance(ball, Spectral):
            index = itertools.count()
            self.slots = [[(next(index), 0, None) for _ in cut.shapes] for cut in cuts]
            return
        places: dict[object, int] = {}
        for k, cut in enumerate(cuts):
            slots = list[Slot]()
            for count, rows, columns in [cut.block] if cut.block else [(prod(s[:-2]), *s[-2:]) for s in cut.shapes]:
                shared = like.device.type != "cpu" or rows * columns <= STACKED
                place = places.setdefault((rows, columns) if shared else (k, len(slots)), len(self.shapes))
                before = self.shapes[place][0] if place < len(self.shapes) else 0
                self.shapes[place : place + 1] = [(before + count, rows, columns)]
                slots.append((place, before, count))
            self.slots.append(slots)
            self.blocks[k] = slots[0] if cut.block else None

    def allocate(self, dtype: torch.dtype | None = None) -> tuple[list[Tensor], list[Tensor]]:
        """(uninitialised tensors of the sizes of the cuts, the stacks that most of them are views of)"""
        like = self.like
        stacks = [like.new_empty(shape, dtype=dtype) for shape in self.shapes]
        return [
            like.new_empty(cut.size, dtype=dtype)
            if slot is None
            else stacks[slot[0]].narrow(0, slot[1], slot[2] or 0).view(cut.size)
            for cut, slot in zip(self.cuts, self.blocks, strict=True)
        ], stacks

    def fill(self, stacks: list[Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
        """The list for the ball: the stacks, with tensors that are not views of them copied in; or the matrices."""
        if not self.shapes:
            return [matrix for cut, x in zip(self.cuts, tensors, strict=True) for matrix in cut(x)]
        if None in self.blocks:
            for cut, x, slots, block in zip(self.cuts, tensors, self.slots, self.blocks, strict=True):
                if block is None:
                    for slot, matrix in zip(slots, cut(x), strict=True):
                        in_slot(stacks, slot).copy_(matrix.reshape(prod(matrix.shape[:-2]), *matrix.shape[-2:]))
        return stacks

    def contents(self, k: int) -> list[tuple[int, ...]]:
        """Shapes of the contents of tensor k's slots: its matrices, or a stack of them."""
        block = self.blocks[k]
        return self.cuts[k].shapes if block is None else [(block[2] or 0, *self.shapes[block[0]][1:])]

    def scale(self, zs: list[Tensor], numbers: Sequence[Sequence[Number]], dtype: torch.dtype) -> None:
        """Multiply the contents of each slot by its number, casting tensors narrower than `dtype`."""
        rows: list[list[tuple[Number, int]]] = [[] for _ in zs]
        for slots, factors in zip(self.slots, numbers, strict=True):
            for (place, _, count), number in zip(slots, factors, strict=True):
                rows[place].append((number, 1 if count is None else count))
        plain: dict[int, float] = {}
        for place, row in enumerate(rows):
            z, values = zs[place], {number for number, _ in row if not isinstance(number, Tensor)}
            narrow = torch.finfo(z.dtype).bits < torch.finfo(dtype).bits
            if self.shapes and (narrow or len(values) != 1):
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
            factor = torch.tensor(few, dtype=torch.promote_types(dtype, torch.float32)).view(-1, 1, 1)
            self._factors[place] = (values, factor.to(self.like.device))
        return self._factors[place][1]

    def split(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Stacked tensors rearranged to the sizes of the cuts."""
        pieces = []
        for k, (cut, block) in enumerate(zip(self.cuts, self.blocks, strict=True)):
            if block is not None:
                pieces.append(tensors[block[0]].narrow(0, block[1], block[2] or 0).reshape(cut.size))
            else:
                slots = zip(self.slots[k], self.contents(k), strict=True)
                pieces.append(cut.join([in_slot(tensors, s).reshape(shape) for s, shape in slots]))
        return pieces


@dataclass(eq=False)
class Part:
    """Members of a batch whose groups have equal numbers, so that one number serves all of them.

    Attributes:
        index: their indices in the batch.
        group: a group with their numbers.
        rows: cached `Rows` of their small tensors.
    """

    members: list[Member]
    index: list[int]
    whole: bool
    rows: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.group = self.members[0].group
        self.sizes = [m.piece.numel() for m in self.members]
        self.pieces = [m.piece for m in self.members]
        self.buffers = [m.buffers[0] for m in self.members]
        self.steps = [m.state["step"] for m in self.members]


@dataclass(eq=False)
class Batch:
    """Members of one kind.

    Attributes:
        flags: finite flags of the members, on an accelerator; None if the host knows that all gradients are finite.
        stacks: their matrices, if they are whole on this rank or it works on its own blocks.
        route: how ranks compute the directions (`optim.owned`, `optim.collective`); None for this rank alone.
        step_factors: cached `step_factor` of each matrix of each member, if it depends on shapes only.
        layout: cached layout of the members for their stages (`stages.layout.Arrangement`).
        rows: cached `Rows` of their inputs.
    """

    members: list[Member]
    stacks: Stacks | None = None
    route: Any = None
    flags: Flags | None = None
    step_factors: list[list[Number]] | None = None
    layout: Any = None
    rows: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def parts(self) -> list[Part]:
        """The members by their numbers."""
        alike: dict[int, list[int]] = {}
        for k, member in enumerate(self.members):
            alike.setdefault(member.numbers, []).append(k)
        return [Part([self.members[k] for k in index], index, len(alike) == 1) for index in alike.values()]

    @cached_property
    def ball(self) -> Ball:
        """That of the members; with the oracle itself if `auto` has chosen one for all their shapes."""
        first = self.members[0]
        return settled(first.ball, [shape for m in self.members for shape in m.whole.shapes], first.buffers[0])

    def __post_init__(self) -> None:
        # Entries from which a tensor gets operations of its own; more where every rank updates all parameters.
        self.large = Rows.LARGE if self.route is None else Rows.MANY
        self.staged = bool(self.members) and self.members[0].staged  # all or none are


def settled(ball: Ball, shapes: Iterable[Sequence[int]], like: Tensor) -> Ball:
    """The ball with the oracle that `auto` has chosen for all of these shapes; itself if there are several."""
    if not isinstance(ball, Spectral):
        return ball
    polar = ball.polar.only([sides(shape) for shape in shapes if 0 not in shape], like)
    return ball if polar is ball.polar else replace(ball, polar=polar)


def in_slot(tensors: Sequence[Tensor], slot: Slot) -> Tensor:
    """The contents of a slot."""
    place, first, count = slot
    return tensors[place] if count is None else tensors[place].narrow(0, first, count)
