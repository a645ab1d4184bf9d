"""How a tensor, or a piece of it, is cut into matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from inexact_muon.views import Stacked, View, Whole


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
