"""Base class of views; the whole tensor, the transposed one, and parts of a fused weight."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor

from inexact_muon._text import write

BATCH, ROWS, COLUMNS = -3, -2, -1
Shape = Sequence[int]


class Misfit(ValueError):
    """A view that cannot cut a tensor of this shape."""


@dataclass(frozen=True)
class View(ABC):
    """Cuts a tensor into matrices and joins matrices into a tensor."""

    name: ClassVar[str]

    def cut(self, x: Tensor) -> list[Tensor]:
        """The matrices of x, of shapes `shapes(x.shape)`."""
        return self.cut_piece(x, (0,) * x.ndim, x.shape)

    def join(self, matrices: Sequence[Tensor], shape: Shape) -> Tensor:
        """The tensor of this shape with these matrices: join(cut(x), x.shape) is x."""
        return self.join_piece(matrices, shape, (0,) * len(shape), shape)

    @abstractmethod
    def cut_piece(self, x: Tensor, first: Shape, shape: Shape) -> list[Tensor]:
        """The parts of the matrices that lie in piece x of a tensor of this shape."""

    @abstractmethod
    def join_piece(self, parts: Sequence[Tensor], size: Shape, first: Shape, shape: Shape) -> Tensor:
        """The piece of this size with these parts: inverse of cut_piece."""

    @abstractmethod
    def shapes(self, shape: Shape) -> list[tuple[int, ...]]:
        """Shapes of the matrices of a tensor of this shape; leading dimensions are batch dimensions."""

    def block(self, shape: Shape) -> tuple[int, int, int] | None:
        """(count, rows, columns) if the matrices of a contiguous tensor are consecutive in memory."""
        return None

    def axes(self, ndim: int) -> tuple[int | None, ...]:
        """The matrix axis of each tensor dimension: BATCH, ROWS or COLUMNS; None if it mixes several."""
        return ((BATCH,) * (ndim - 2) + (ROWS, COLUMNS))[-ndim:] if ndim else ()

    __str__ = write


@dataclass(frozen=True)
class Whole(View):
    """The tensor itself: a matrix, a stack of matrices (3-D expert weights), or a vector for balls that accept one."""

    name: ClassVar[str] = "whole"

    def cut_piece(self, x: Tensor, first: Shape, shape: Shape) -> list[Tensor]:
        return [x]

    def join_piece(self, parts: Sequence[Tensor], size: Shape, first: Shape, shape: Shape) -> Tensor:
        return parts[0]

    def shapes(self, shape: Shape) -> list[tuple[int, ...]]:
        return [tuple(shape)]

    def block(self, shape: Shape) -> tuple[int, int, int] | None:
        return (prod(shape[:-2]), shape[-2], shape[-1]) if len(shape) >= 2 else None


@dataclass(frozen=True)
class Transposed(View):
    """The view `inner` of the transposed matrix: weights stored as (in, out), such as GPT-2's Conv1D.

    The transposed matrix has the memory layout of an nn.Linear weight: both are updated identically, bit for bit.
    """

    name: ClassVar[str] = "transposed"

    inner: View = field(default_factory=Whole)

    def cut_piece(self, x: Tensor, first: Shape, shape: Shape) -> list[Tensor]:
        return self.inner.cut_piece(x.mT.contiguous(), _swapped(first), _swapped(shape))

    def join_piece(self, parts: Sequence[Tensor], size: Shape, first: Shape, shape: Shape) -> Tensor:
        return self.inner.join_piece(parts, _swapped(size), _swapped(first), _swapped(shape)).mT.contiguous()

    def shapes(self, shape: Shape) -> list[tuple[int, ...]]:
        return self.inner.shapes(_swapped(shape))

    def axes(self, ndim: int) -> tuple[int | None, ...]:
        return _swapped(self.inner.axes(ndim))


@dataclass(frozen=True)
class Split(View):
    """Each block of rows is a matrix: fused query, key and value; gate and up.

    Attributes:
        rows: the number of equal blocks, or the rows of each block; if groups > 1, of each block in a group.
        groups: number of repetitions: 1 for [q; k; v], the number of heads for [q1; k1; v1; q2; k2; v2]. Each matrix
            consists of its blocks in all groups.
    """

    name: ClassVar[str] = "split"

    rows: int | tuple[int, ...] = 3
    groups: int = 1

    def cut_piece(self, x: Tensor, first: Shape, shape: Shape) -> list[Tensor]:
        sizes, start = self._sizes(shape), first[-2]
        if self.groups == 1:
            return [x.narrow(-2, low, high - low) for low, high in self._spans(sizes, start, x.shape[-2])]
        if start % sum(sizes) == 0 and x.shape[-2] % sum(sizes) == 0:
            return [block.flatten(-3, -2) for block in torch.split(unflatten(x, -2, sum(sizes)), sizes, -2)]
        return [x.index_select(-2, rows.to(x.device)) for rows in self._rows(sizes, start, x.shape[-2])]

    def join_piece(self, parts: Sequence[Tensor], size: Shape, first: Shape, shape: Shape) -> Tensor:
        sizes, start = self._sizes(shape), first[-2]
        if self.groups == 1:
            return torch.cat(list(parts), -2)
        if start % sum(sizes) == 0 and size[-2] % sum(sizes) == 0:
            blocks = [unflatten(part, -2, rows) for part, rows in zip(parts, sizes, strict=True)]
            return torch.cat(blocks, -2).flatten(-3, -2)
        joined = parts[0].new_empty(tuple(size))
        for rows, part in zip(self._rows(sizes, start, size[-2]), parts, strict=True):
            joined.index_copy_(-2, rows.to(joined.device), part)
        return joined

    def shapes(self, shape: Shape) -> list[tuple[int, ...]]:
        return [(*shape[:-2], rows * self.groups, shape[-1]) for rows in self._sizes(shape)]

    def block(self, shape: Shape) -> tuple[int, int, int] | None:
        sizes = self._sizes(shape)
        return (
            (len(sizes), sizes[0], shape[-1]) if len(shape) == 2 and self.groups == 1 and len(set(sizes)) == 1 else None
        )

    def _sizes(self, shape: Shape) -> list[int]:
        """Rows of each block in a group."""
        total = shape[-2]
        sizes = list(self.rows) if isinstance(self.rows, tuple) else [total // (self.rows * self.groups)] * self.rows
        if sum(sizes) * self.groups != total or min(sizes) < 1:
            raise Misfit(f"{self} does not divide the {total} rows of a parameter of shape {tuple(shape)}")
        return sizes

    @staticmethod
    def _spans(sizes: Sequence[int], start: int, count: int) -> list[tuple[int, int]]:
        """(begin, end) of each block of one group within a piece of `count` rows that begins at row `start`."""
        edges = (0, *accumulate(sizes))
        return list(pairwise(min(max(edge - start, 0), count) for edge in edges))

    @staticmethod
    def _rows(sizes: Sequence[int], start: int, count: int) -> list[Tensor]:
        """Row indices of each matrix within a piece; computed on the CPU to avoid a synchronisation."""
        place = torch.arange(start, start + count) % sum(sizes)
        edges = (0, *accumulate(sizes))
        return [((place >= low) & (place < high)).nonzero().flatten() for low, high in pairwise(edges)]


def unflatten(x: Tensor, dim: int, size: int) -> Tensor:
    """Split a dimension into blocks of this size."""
    return x.unflatten(dim, (x.shape[dim] // size, size))  # type: ignore[no-untyped-call]


def _swapped(values: Sequence[Any]) -> tuple[Any, ...]:
    """With the last two elements swapped."""
    return (*values[:-2], values[-1], values[-2])
