"""Places of lines and rows of this rank among those of whole matrices: computed once, on the host, with numpy.

Under a mode such as that of fake tensors, indices would have no values to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from inexact_muon.views.base import COLUMNS, ROWS
from inexact_muon.views.blocks import Cut

Index = NDArray[np.int64]

Side = Literal["rows", "longer"]
"""Rows, or of each matrix its longer side: columns where there are more of them than rows."""

STRIDE = 2**32
"""More than the sides of any matrix."""


@dataclass
class Places:
    """Where values go so that those of one owner are the row of a matrix (owners, width), with zeros after them.

    Attributes:
        owner: of each value; None if they are those of 0, 1, 2, ...
        source: the value at each place, or what follows the last one: zero; None if the values are in place.
    """

    owners: int
    width: int
    values: int
    owner: Tensor | None
    source: Tensor | None
    rooms: dict[int, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, owner: Index, owners: int, device: torch.device) -> Places:
        """The places of values by the owner of each."""
        counts = np.bincount(owner, minlength=owners)
        width, values = int(max(1, counts.max(initial=1))), np.arange(len(owner))
        order = owner.argsort(kind="stable")
        place = np.empty_like(owner)
        place[order] = values - (counts.cumsum() - counts)[owner[order]] + owner[order] * width
        source = np.full(owners * width, len(owner))
        source[place] = values
        in_place = np.array_equal(place, np.arange(owners * width))
        return cls(
            *(owners, width, len(owner), on_device(owner, owners, device)),
            None if in_place else torch.from_numpy(source).to(device),
        )

    def room(self, like: Tensor, several: int = 1) -> Tensor:
        """Room for `several` numbers of each value, (several, values), with a zero after them if some place needs one.

        It is used again in the next step, so that the zeros need no launch, unless the values stay in it.
        """
        if self.source is None:
            return like.new_empty((several, self.values))
        if several not in self.rooms:
            self.rooms[several] = like.new_zeros((several, self.values + 1))
        return self.rooms[several]

    def __call__(self, values: Tensor) -> Tensor:
        """(several, owners, width), from what was written into `room`."""
        values = values if self.source is None else values.index_select(1, self.source)
        return values.view(-1, self.owners, self.width)

    def spread(self, numbers: Tensor, dim: int = 0) -> Tensor:
        """The number of each value's owner."""
        return numbers if self.owner is None else numbers.index_select(dim, self.owner)


def on_device(index: Index, size: int, device: torch.device) -> Tensor | None:
    """An index copied there; None if it is 0, 1, ..., size - 1."""
    return None if np.array_equal(index, np.arange(size)) else torch.from_numpy(index).to(device)


def three(shape: Sequence[int]) -> tuple[int, int, int]:
    """(count, rows, columns); a vector is a row."""
    if len(shape) < 2:
        return 1, 1, prod(shape)
    return prod(shape[:-2]), shape[-2], shape[-1]


@_disable_current_modes()
def numbered(cut: Cut, first: int, along: int = ROWS) -> list[tuple[Index, Index]]:
    """For each part of a piece, (number of the matrix, number of the row or column in it), (count, rows or columns).

    The numbers are cut as the tensor is, with one entry along dimensions of the other side.

    Args:
        first: number of the first matrix.
        along: ROWS or COLUMNS.
    """
    if len(cut.shape) < 2:
        return [(np.array([[first]]), np.array([[0]]))]
    other = COLUMNS if along == ROWS else ROWS
    thin = [axis == other for axis in cut.view.axes(len(cut.shape))]
    shape, size, start = (
        tuple(narrow if one else x for x, one in zip(values, thin, strict=True))
        for values, narrow in ((cut.shape, 1), (cut.size, 1), (cut.first, 0))
    )
    whole: list[Any] = []
    for matrices in cut.view.shapes(shape):
        n, rows, columns = three(matrices)
        ids = torch.arange(first, first + n).unsqueeze(1) * STRIDE + torch.arange(rows if along == ROWS else columns)
        whole.append(ids.unsqueeze(other).expand(n, rows, columns).reshape(matrices))
        first += n
    piece = cut.view.join(whole, shape)
    for dim, (low, length) in enumerate(zip(start, size, strict=True)):
        piece = piece.narrow(dim, low, length)
    parts = []
    for part in cut.view.cut_piece(piece, start, shape):
        n, rows, columns = three(tuple(part.shape))
        part = part.reshape(n, rows, columns)
        parts.append(part.narrow(other, 0, min(1, part.shape[other])).flatten(1))
    parts = [torch.cat(parts)] if cut.block and len(parts) > 1 else parts
    return [np.divmod(part.numpy(), STRIDE) for part in parts]


def columns_of(cut: Cut, part: int, matrices: Index) -> tuple[Index, Index]:
    """(number of the matrix, number of the column in it) of a part with these matrices, (count, columns) each."""
    dims = [dim for dim, axis in enumerate(cut.view.axes(len(cut.shape))) if axis == COLUMNS]
    sizes = [cut.shape[dim] for dim in dims]
    if any(shape[-1] != prod(sizes) for shape in cut.view.shapes(cut.shape)):  # a dimension has other things, too
        return numbered(cut, int(matrices[0] - numbered(cut, 0)[part][0][0, 0]), COLUMNS)[part]
    here = tuple(slice(cut.first[dim], cut.first[dim] + cut.size[dim]) for dim in dims)
    numbers = np.arange(prod(sizes)).reshape(sizes)[here].reshape(1, -1)
    return np.repeat(matrices[:, None], numbers.size, 1), np.repeat(numbers, len(matrices), 0)
