"""Where the matrices of several tensors lie in the stacks that the oracle works on.

LMO inputs of whole parameters are written directly into them, so the number of operations grows with the number of
shapes, not of parameters.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor

from inexact_muon.lmo import Ball, Spectral
from inexact_muon.optim import finite
from inexact_muon.optim.finite import Number
from inexact_muon.optim.rows import Packing, packing_of
from inexact_muon.polar.batching import STACKED
from inexact_muon.views.blocks import Cut

Slot = tuple[int, int, int | None]
"""(index in the list of tensors passed to the ball, first matrix in that tensor, number of matrices or None for all)"""


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

    @cached_property
    def packings(self) -> list[Packing] | None:
        """The packing of the tensors in each stack, if they lie there one after another and are joined."""
        if finite.is_host_readable(self.like):
            return None  # there each has its own operations
        sizes: list[list[Any]] = [[] for _ in self.shapes]
        last = (0, -1)
        for cut, block in zip(self.cuts, self.blocks, strict=True):
            if block is None or block[:2] <= last:
                return None
            last = block[:2]
            sizes[block[0]].append(cut.size)
        return [packing_of(shapes) for shapes in sizes]

    def allocate(self, dtype: torch.dtype | None = None) -> tuple[list[Tensor], list[Tensor]]:
        """(uninitialised tensors of the sizes of the cuts, the stacks that most of them are views of)"""
        like = self.like
        stacks = [like.new_empty(shape, dtype=dtype) for shape in self.shapes]
        if self.packings is not None:
            return Packing.cut(stacks, self.packings), stacks
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
        if self.packings is not None and all(x.is_contiguous() for x in tensors):
            return Packing.cut(tensors, self.packings)
        pieces = []
        for k, (cut, block) in enumerate(zip(self.cuts, self.blocks, strict=True)):
            if block is not None:
                pieces.append(tensors[block[0]].narrow(0, block[1], block[2] or 0).reshape(cut.size))
            else:
                slots = zip(self.slots[k], self.contents(k), strict=True)
                pieces.append(cut.join([in_slot(tensors, s).reshape(shape) for s, shape in slots]))
        return pieces


def in_slot(tensors: Sequence[Tensor], slot: Slot) -> Tensor:
    """The contents of a slot."""
    place, first, count = slot
    return tensors[place] if count is None else tensors[place].narrow(0, first, count)
