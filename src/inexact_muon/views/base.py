"""Base class of views, the whole tensor, and the transposed one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, ClassVar

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

    @abstractmethod
    def axes(self, ndim: int) -> tuple[int | None, ...]:
        """The matrix axis of each tensor dimension: BATCH, ROWS or COLUMNS; None if it mixes several."""

    def __str__(self) -> str:
        return write(self)


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

    def axes(self, ndim: int) -> tuple[int | None, ...]:
        return ((BATCH,) * (ndim - 2) + (ROWS, COLUMNS))[-ndim:] if ndim else ()


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


def unflatten(x: Tensor, dim: int, size: int) -> Tensor:
    """Split a dimension into blocks of this size."""
    return x.unflatten(dim, (x.shape[dim] // size, size))  # type: ignore[no-untyped-call]


def _swapped(values: Sequence[Any]) -> tuple[Any, ...]:
    """With the last two elements swapped."""
    return (*values[:-2], values[-1], values[-2])
