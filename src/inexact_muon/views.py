"""How a parameter is seen as matrices: what the ball and the scale rule are applied to.

A view is a frozen value with a text, like balls and lengths. It cuts a whole tensor, or a rank's piece of one: `first`
is then the index of the piece's first entry in every dimension of the whole tensor, and `shape` the whole shape.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor

from inexact_muon._text import read, write

BATCH, ROWS, COLUMNS = -3, -2, -1
Shape = Sequence[int]


@dataclass(frozen=True)
class View(ABC):
    """A way to cut a tensor into matrices and to put the answers back."""

    name: ClassVar[str]

    def cut(self, x: Tensor) -> list[Tensor]:
        """The matrices of x, of the shapes that `shapes` says."""
        return self.cut_piece(x, (0,) * x.ndim, x.shape)

    def join(self, matrices: Sequence[Tensor], shape: Shape) -> Tensor:
        """The tensor of this shape whose matrices they are: join(cut(x), x.shape) is x."""
        return self.join_piece(matrices, shape, (0,) * len(shape), shape)

    @abstractmethod
    def cut_piece(self, x: Tensor, first: Shape, shape: Shape) -> list[Tensor]:
        """What the piece x has of the matrices of a tensor of this shape."""

    @abstractmethod
    def join_piece(self, parts: Sequence[Tensor], size: Shape, first: Shape, shape: Shape) -> Tensor:
        """The piece of this size whose parts they are: inverse to cut_piece."""

    @abstractmethod
    def shapes(self, shape: Shape) -> list[tuple[int, ...]]:
        """Shapes of the matrices of a tensor of this shape; leading dimensions are a batch."""

    def block(self, shape: Shape) -> tuple[int, int, int] | None:
        """(count, rows, columns) if the matrices of a contiguous tensor lie one after the other in its memory."""
        return None

    @abstractmethod
    def axes(self, ndim: int) -> tuple[int | None, ...]:
        """Where each dimension of a tensor lies in its matrices: BATCH, ROWS or COLUMNS; None for several at once."""

    def __str__(self) -> str:
        return write(self)


@dataclass(frozen=True)
class Whole(View):
    """The tensor as it is: a matrix, or a stack of them (3-D expert weights); a vector for balls that take one."""

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
class Flatten(View):
    """out x (in * kernel): convolution kernels; one such matrix for each group of channels.

    Attributes:
        groups: of the convolution.
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
        if self.groups == 1:
            out, into = (shape[1], shape[0]) if self.transposed else (shape[0], shape[1])
            return [(out, into * prod(shape[2:]))]
        size = self._size(shape)
        out, into = (shape[1], size) if self.transposed else (size, shape[1])
        return [(self.groups, out, into * prod(shape[2:]))]

    def block(self, shape: Shape) -> tuple[int, int, int] | None:
        return None if self.transposed else (self.groups, self._size(shape), prod(shape[1:]))

    def axes(self, ndim: int) -> tuple[int | None, ...]:
        rows = 1 if self.transposed else 0
        found: list[int | None] = [ROWS if dim == rows else COLUMNS for dim in range(ndim)]
        if self.groups > 1:
            found[0] = None
        return tuple(found)

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
    """A stack of `count` matrices of equal size under each other in one matrix: experts in blocks of rows.

    Attributes:
        transposed: each block is (in, out).
    """

    name: ClassVar[str] = "stacked"

    count: int = 1
    transposed: bool = field(default=False, kw_only=True)

    def cut_piece(self, x: Tensor, first: Shape, shape: Shape) -> list[Tensor]:
        return _cut_runs(x, first[0], _divided(self, shape, self.count), self._turned)

    def join_piece(self, parts: Sequence[Tensor], size: Shape, first: Shape, shape: Shape) -> Tensor:
        return _join_runs(parts, size, first[0], _divided(self, shape, self.count), self._turned)

    def shapes(self, shape: Shape) -> list[tuple[int, ...]]:
        rows = _divided(self, shape, self.count)
        return [(self.count, shape[1], rows) if self.transposed else (self.count, rows, shape[1])]

    def block(self, shape: Shape) -> tuple[int, int, int] | None:
        return None if self.transposed else (self.count, _divided(self, shape, self.count), shape[1])

    def axes(self, ndim: int) -> tuple[int | None, ...]:
        return (None, ROWS if self.transposed else COLUMNS)

    def _turned(self, x: Tensor, batch: int, size: Shape = ()) -> Tensor:
        return x.mT.contiguous() if self.transposed else x


@dataclass(frozen=True)
class Split(View):
    """Blocks of rows, each a matrix of its own: fused query, key and value; gate and up.

    Attributes:
        rows: the number of equal blocks, or the rows of each block; if groups > 1, of each block in a group.
        groups: how often the blocks are repeated: 1 for [q; k; v], the number of heads for [q1; k1; v1; q2; k2; v2].
            Each matrix has the rows of its block in all groups.
    """

    name: ClassVar[str] = "split"

    rows: int | tuple[int, ...] = 3
    groups: int = 1

    def cut_piece(self, x: Tensor, first: Shape, shape: Shape) -> list[Tensor]:
        sizes, start = self._sizes(shape), first[-2]
        if self.groups == 1:
            return [x.narrow(-2, low, high - low) for low, high in self._spans(sizes, start, x.shape[-2])]
        if start % sum(sizes) == 0 and x.shape[-2] % sum(sizes) == 0:
            return [block.flatten(-3, -2) for block in torch.split(_unflatten(x, -2, sum(sizes)), sizes, -2)]
        return [x.index_select(-2, rows.to(x.device)) for rows in self._rows(sizes, start, x.shape[-2])]

    def join_piece(self, parts: Sequence[Tensor], size: Shape, first: Shape, shape: Shape) -> Tensor:
        sizes, start = self._sizes(shape), first[-2]
        if self.groups == 1:
            return torch.cat(list(parts), -2)
        if start % sum(sizes) == 0 and size[-2] % sum(sizes) == 0:
            blocks = [_unflatten(part, -2, rows) for part, rows in zip(parts, sizes, strict=True)]
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

    def axes(self, ndim: int) -> tuple[int | None, ...]:
        return (*(BATCH,) * (ndim - 2), ROWS, COLUMNS)

    def _sizes(self, shape: Shape) -> list[int]:
        """The rows of each block in a group."""
        total = shape[-2]
        sizes = list(self.rows) if isinstance(self.rows, tuple) else [total // (self.rows * self.groups)] * self.rows
        if sum(sizes) * self.groups != total or min(sizes) < 1:
            raise ValueError(f"{self} does not divide the {total} rows of a parameter of shape {tuple(shape)}")
        return sizes

    @staticmethod
    def _spans(sizes: Sequence[int], start: int, count: int) -> list[tuple[int, int]]:
        """Where the blocks of one group begin and end in a piece of `count` rows from `start` on."""
        spans, low = [], 0
        for rows in sizes:
            edges = [min(max(edge - start, 0), count) for edge in (low, low + rows)]
            spans.append((edges[0], edges[1]))
            low += rows
        return spans

    @staticmethod
    def _rows(sizes: Sequence[int], start: int, count: int) -> list[Tensor]:
        """Which rows of a piece belong to each matrix. On the CPU: nothing waits for an accelerator."""
        place = torch.arange(start, start + count) % sum(sizes)
        found, low = [], 0
        for rows in sizes:
            found.append(((place >= low) & (place < low + rows)).nonzero().flatten())
            low += rows
        return found


@dataclass(frozen=True)
class Transposed(View):
    """The view `inner` of the transposed matrix: weights stored as (in, out), such as GPT-2's Conv1D.

    The transposed matrix is laid out in memory as the weight of an nn.Linear is: both take the same steps bit for bit.
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


VIEWS: dict[str, type[View]] = {view.name: view for view in (Whole, Flatten, Stacked, Split, Transposed)}
"""Name -> class, for text only."""


def parse(text: str) -> View:
    """The view that a text names: "whole", "flatten", "split:3", "transposed(inner=split(rows=(512, 128, 128)))"."""
    view: Any = read(text, VIEWS)
    assert isinstance(view, View)
    return view


def _swapped(values: Sequence[Any]) -> tuple[Any, ...]:
    """With the last two exchanged."""
    return (*values[:-2], values[-1], values[-2])


def _unflatten(x: Tensor, dim: int, size: int) -> Tensor:
    """A dimension as blocks of this size."""
    return x.unflatten(dim, (x.shape[dim] // size, size))  # type: ignore[no-untyped-call]


def _divided(view: View, shape: Shape, count: int) -> int:
    if shape[0] % count:
        raise ValueError(f"{view} does not divide the {shape[0]} rows of a parameter of shape {tuple(shape)}")
    return shape[0] // count


def _runs(first: int, count: int, size: int) -> list[tuple[int, int]]:
    """Rows `first` to `first + count` as (rows, whole blocks of `size` rows in them; 0 for a part of a block)."""
    lead = min(-first % size, count)
    whole = (count - lead) // size
    runs = [(lead, 0), (whole * size, whole), (count - lead - whole * size, 0)]
    return [run for run in runs if run[0]]


def _cut_runs(x: Tensor, first: int, size: int, matrix: Callable[[Tensor, int], Tensor]) -> list[Tensor]:
    parts, low = [], 0
    for rows, blocks in _runs(first, x.shape[0], size):
        run = x.narrow(0, low, rows)
        parts.append(matrix(_unflatten(run, 0, size), 1) if blocks else matrix(run, 0))
        low += rows
    return parts


def _join_runs(
    parts: Sequence[Tensor],
    size: Shape,
    first: int,
    block: int,
    kernel: Callable[[Tensor, int, Sequence[int]], Tensor],
) -> Tensor:
    rest, joined = tuple(size[1:]), []
    for (rows, blocks), part in zip(_runs(first, size[0], block), parts, strict=True):
        joined.append(
            kernel(part, 1, (blocks, block, *rest)).flatten(0, 1) if blocks else kernel(part, 0, (rows, *rest))
        )
    return torch.cat(joined)
