"""Convolution kernels, stacks of matrices and blocks of rows in one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from math import prod
from typing import ClassVar

import torch
from torch import Tensor

from inexact_muon.views.base import COLUMNS, ROWS, Misfit, Shape, View, Whole, unflatten


@dataclass(frozen=True)
class Flatten(View):
    """Convolution kernels as out x (in * kernel), one matrix per group of channels.

    Attributes:
        groups: groups of the convolution.
        transposed: the kernel is (in, out / groups, ...) as in transposed convolutions, not (out, in / groups, ...).
    """

    name: ClassVar[str] = "flatten"

    groups: int = field(default=1, kw_only=True)
    transposed: bool = field(default=False, kw_only=True)

    def cut_piece(self, x: Tensor, first: Shape, shape: Shape) -> list[Tensor]:
        kernels = [x] if self.groups == 1 else _cut(x, first[0], [_divided(self, shape, self.groups)])
        rows = -x.ndim
        return [(z.transpose(rows, rows + 1) if self.transposed else z).flatten(rows + 1) for z in kernels]

    def join_piece(self, parts: Sequence[Tensor], size: Shape, first: Shape, shape: Shape) -> Tensor:
        kernels = [self._kernel(part, *size[1:]) for part in parts]
        return (
            kernels[0] if self.groups == 1 else _join(kernels, first[0], size[0], [_divided(self, shape, self.groups)])
        )

    def shapes(self, shape: Shape) -> list[tuple[int, ...]]:
        size = _divided(self, shape, self.groups)
        fan_out, fan_in = (shape[1], size) if self.transposed else (size, shape[1])
        matrix = (fan_out, fan_in * prod(shape[2:]))
        return [matrix if self.groups == 1 else (self.groups, *matrix)]

    def block(self, shape: Shape) -> tuple[int, int, int] | None:
        return None if self.transposed else (self.groups, _divided(self, shape, self.groups), prod(shape[1:]))

    def axes(self, ndim: int) -> tuple[int | None, ...]:
        kinds: list[int | None] = [COLUMNS] * ndim
        kinds[int(self.transposed)] = ROWS
        if self.groups > 1:
            kinds[0] = None
        return tuple(kinds)

    def _kernel(self, z: Tensor, channels: int, *window: int) -> Tensor:
        """(rows, channels, *window) from a matrix, perhaps one of several."""
        if not self.transposed:
            return z.reshape(*z.shape[:-1], channels, *window)
        rows = z.ndim - 2
        return z.reshape(*z.shape[:-1], -1, *window).transpose(rows, rows + 1).contiguous()


@dataclass(frozen=True)
class Stacked(View):
    """`count` matrices of equal size stored as consecutive blocks of rows: experts.

    Attributes:
        transposed: each block is (in, out).
    """

    name: ClassVar[str] = "stacked"

    count: int = 1
    transposed: bool = field(default=False, kw_only=True)

    def cut_piece(self, x: Tensor, first: Shape, shape: Shape) -> list[Tensor]:
        return [self._oriented(block) for block in _cut(x, first[0], [_divided(self, shape, self.count)])]

    def join_piece(self, parts: Sequence[Tensor], size: Shape, first: Shape, shape: Shape) -> Tensor:
        blocks = [self._oriented(part) for part in parts]
        return _join(blocks, first[0], size[0], [_divided(self, shape, self.count)])

    def shapes(self, shape: Shape) -> list[tuple[int, ...]]:
        if len(shape) != 2:
            raise Misfit(f"{self} cuts a matrix, got a parameter of shape {tuple(shape)}: use view='whole' for a stack")
        rows = _divided(self, shape, self.count)
        return [(self.count, shape[1], rows) if self.transposed else (self.count, rows, shape[1])]

    def block(self, shape: Shape) -> tuple[int, int, int] | None:
        return None if self.transposed else (self.count, _divided(self, shape, self.count), shape[1])

    def axes(self, ndim: int) -> tuple[int | None, ...]:
        return (None, ROWS if self.transposed else COLUMNS)

    def _oriented(self, x: Tensor) -> Tensor:
        return x.mT.contiguous() if self.transposed else x


@dataclass(frozen=True)
class Interleaved(View):
    """Each block of rows in each group is a matrix: [k1; v1; k2; v2] with keys and values of different sizes.

    Blocks at the same place of their groups form a stack.

    Attributes:
        rows: rows of each block in a group.
        groups: number of groups, such as heads.
    """

    name: ClassVar[str] = "interleaved"

    rows: tuple[int, ...] = (1,)
    groups: int = 1

    def cut_piece(self, x: Tensor, first: Shape, shape: Shape) -> list[Tensor]:
        return _cut(x, first[0], self.rows)

    def join_piece(self, parts: Sequence[Tensor], size: Shape, first: Shape, shape: Shape) -> Tensor:
        return _join(parts, first[0], size[0], self.rows) if size[0] else parts[0].new_empty(tuple(size))

    def shapes(self, shape: Shape) -> list[tuple[int, ...]]:
        if len(shape) != 2 or sum(self.rows) * self.groups != shape[0] or min(self.rows) < 1:
            raise Misfit(f"{self} does not divide the rows of a parameter of shape {tuple(shape)}")
        return [(self.groups, rows, shape[1]) for rows in self.rows]

    def axes(self, ndim: int) -> tuple[int | None, ...]:
        return (None, COLUMNS)


def _divided(view: View, shape: Shape, count: int) -> int:
    if shape[0] % count:
        raise Misfit(f"{view} does not divide the {shape[0]} rows of a parameter of shape {tuple(shape)}")
    return shape[0] // count


def _runs(first: int, count: int, sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Rows `first` to `first + count` as (rows, number of whole groups; 0 for one block of a group or a part of it)."""
    group, end = sum(sizes), first + count
    low, high = -(-first // group) * group, end // group * group
    if low >= high:
        low = high = end
    edges = [start + edge for start in range(0, end, group) for edge in accumulate(sizes)]
    cuts = sorted({first, low, high, end, *(edge for edge in edges if first < edge < low or high < edge < end)})
    return [(b - a, (b - a) // group if (a, b) == (low, high) else 0) for a, b in pairwise(cuts)]


def _cut(x: Tensor, first: int, sizes: Sequence[int]) -> list[Tensor]:
    """The blocks in rows of a piece: a stack of each block of the whole groups, the others and parts of them alone."""
    parts: list[Tensor] = []
    runs = _runs(first, x.shape[0], sizes)
    for (_, groups), run in zip(runs, torch.split(x, [rows for rows, _ in runs]), strict=True):
        parts += unflatten(run, 0, sum(sizes)).split_with_sizes(list(sizes), 1) if groups else [run]
    return parts


def _join(parts: Sequence[Tensor], first: int, count: int, sizes: Sequence[int]) -> Tensor:
    """Inverse of `_cut`."""
    rest, joined = iter(parts), []
    for _, groups in _runs(first, count, sizes):
        blocks = [next(rest) for _ in (sizes if groups else (1,))]
        stack = blocks[0] if len(blocks) == 1 else torch.cat(blocks, 1)
        joined.append(stack.flatten(0, 1) if groups else stack)
    return torch.cat(joined)


@dataclass(frozen=True)
class Cut:
    """How a tensor of this size, whole or a piece that begins at `first` of one of `shape`, is cut into matrices."""

    view: View
    size: tuple[int, ...]
    first: tuple[int, ...]
    shape: tuple[int, ...]

    @cached_property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the matrices."""
        if self.size == self.shape:
            return self.view.shapes(self.shape)
        return [tuple(x.shape) for x in self(torch.empty(self.size, device="meta"))]

    @cached_property
    def block(self) -> tuple[int, int, int] | None:
        """(count, rows, columns) if the matrices are consecutive in memory."""
        if self.size == self.shape or self.view == Whole():
            return self.view.block(self.size)
        stacked = isinstance(self.view, Stacked) and not self.view.transposed and len(self.shapes) == 1
        return self.shapes[0] if stacked and len(self.shapes[0]) == 3 else None

    def __call__(self, x: Tensor) -> list[Tensor]:
        """The matrices."""
        return self.view.cut_piece(x, self.first, self.shape)

    def join(self, matrices: Sequence[Tensor]) -> Tensor:
        """The tensor with these matrices."""
        return self.view.join_piece(matrices, self.size, self.first, self.shape)
