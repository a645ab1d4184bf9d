"""Convolution kernels and stacks of matrices in one tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
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
        if self.groups == 1:
            return [self._matrix(x, 0)]
        return _cut_runs(x, first[0], self._size(shape), self._matrix)

    def join_piece(self, parts: Sequence[Tensor], size: Shape, first: Shape, shape: Shape) -> Tensor:
        if self.groups == 1:
            return self._kernel(parts[0], 0, size)
        return _join_runs(parts, size, first[0], self._size(shape), self._kernel)

    def shapes(self, shape: Shape) -> list[tuple[int, ...]]:
        size = self._size(shape)
        fan_out, fan_in = (shape[1], size) if self.transposed else (size, shape[1])
        matrix = (fan_out, fan_in * prod(shape[2:]))
        return [matrix if self.groups == 1 else (self.groups, *matrix)]

    def block(self, shape: Shape) -> tuple[int, int, int] | None:
        return None if self.transposed else (self.groups, self._size(shape), prod(shape[1:]))

    def axes(self, ndim: int) -> tuple[int | None, ...]:
        rows = 1 if self.transposed else 0
        kinds: list[int | None] = [ROWS if dim == rows else COLUMNS for dim in range(ndim)]
        if self.groups > 1:
            kinds[0] = None
        return tuple(kinds)

    def _matrix(self, x: Tensor, batch: int) -> Tensor:
        return (x.transpose(batch, batch + 1) if self.transposed else x).flatten(batch + 1)

    def _kernel(self, z: Tensor, batch: int, size: Shape) -> Tensor:
        if not self.transposed:
            return z.reshape(tuple(size))
        swapped = (*size[:batch], size[batch + 1], size[batch], *size[batch + 2 :])
        return z.reshape(swapped).transpose(batch, batch + 1).contiguous()

    def _size(self, shape: Shape) -> int:
        return _divided(self, shape, self.groups)


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
        return _cut_runs(x, first[0], _divided(self, shape, self.count), self._oriented)

    def join_piece(self, parts: Sequence[Tensor], size: Shape, first: Shape, shape: Shape) -> Tensor:
        return _join_runs(parts, size, first[0], _divided(self, shape, self.count), self._oriented)

    def shapes(self, shape: Shape) -> list[tuple[int, ...]]:
        if len(shape) != 2:
            raise Misfit(f"{self} cuts a matrix, got a parameter of shape {tuple(shape)}: use view='whole' for a stack")
        rows = _divided(self, shape, self.count)
        return [(self.count, shape[1], rows) if self.transposed else (self.count, rows, shape[1])]

    def block(self, shape: Shape) -> tuple[int, int, int] | None:
        return None if self.transposed else (self.count, _divided(self, shape, self.count), shape[1])

    def axes(self, ndim: int) -> tuple[int | None, ...]:
        return (None, ROWS if self.transposed else COLUMNS)

    def _oriented(self, x: Tensor, batch: int, size: Shape = ()) -> Tensor:
        return x.mT.contiguous() if self.transposed else x


def _divided(view: View, shape: Shape, count: int) -> int:
    if shape[0] % count:
        raise Misfit(f"{view} does not divide the {shape[0]} rows of a parameter of shape {tuple(shape)}")
    return shape[0] // count


def _runs(first: int, count: int, size: int) -> list[tuple[int, int]]:
    """Rows `first` to `first + count` as (rows, number of whole blocks of `size` rows; 0 for a partial block)."""
    lead = min(-first % size, count)
    whole = (count - lead) // size
    runs = [(lead, 0), (whole * size, whole), (count - lead - whole * size, 0)]
    return [run for run in runs if run[0]]


def _cut_runs(x: Tensor, first: int, size: int, matrix: Callable[[Tensor, int], Tensor]) -> list[Tensor]:
    runs = _runs(first, x.shape[0], size)
    parts = zip(runs, torch.split(x, [rows for rows, _ in runs]), strict=True)
    return [matrix(unflatten(part, 0, size), 1) if blocks else matrix(part, 0) for (_, blocks), part in parts]


def _join_runs(
    parts: Sequence[Tensor],
    size: Shape,
    first: int,
    block: int,
    kernel: Callable[[Tensor, int, Sequence[int]], Tensor],
) -> Tensor:
    rest = tuple(size[1:])
    return torch.cat(
        [
            kernel(part, 1, (blocks, block, *rest)).flatten(0, 1) if blocks else kernel(part, 0, (rows, *rest))
            for (rows, blocks), part in zip(_runs(first, size[0], block), parts, strict=True)
        ]
    )


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
