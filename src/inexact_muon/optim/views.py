"""How a parameter is seen as matrices: what the ball and the scale rule are applied to.

A view is a frozen value with a text, like balls and lengths.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from inexact_muon.schedules.grammar import read, write


@dataclass(frozen=True)
class View(ABC):
    """A way to cut a tensor into matrices and to put the answers back."""

    name: ClassVar[str]

    @abstractmethod
    def cut(self, x: Tensor) -> list[Tensor]:
        """The matrices of x, of the shapes that `shapes` says."""

    def cut_piece(self, x: Tensor, first: int, shape: Sequence[int]) -> list[Tensor]:
        """The matrices of a tensor of this shape as far as a piece x of it, from row `first` on, has them."""
        return self.cut(x)

    @abstractmethod
    def join(self, matrices: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
        """The tensor of this shape whose matrices they are: join(cut(x), x.shape) is x."""

    @abstractmethod
    def shapes(self, shape: Sequence[int]) -> list[tuple[int, ...]]:
        """Shapes of the matrices of a tensor of this shape; leading dimensions are a batch."""

    def __str__(self) -> str:
        return write(self)


@dataclass(frozen=True)
class Whole(View):
    """The tensor as it is: a matrix, or a stack of them (3-D expert weights); a vector for balls that take one."""

    name: ClassVar[str] = "whole"

    def cut(self, x: Tensor) -> list[Tensor]:
        return [x]

    def join(self, matrices: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
        return matrices[0]

    def shapes(self, shape: Sequence[int]) -> list[tuple[int, ...]]:
        return [tuple(shape)]


@dataclass(frozen=True)
class Flatten(View):
    """out x (in * kernel): convolution kernels."""

    name: ClassVar[str] = "flatten"

    def cut(self, x: Tensor) -> list[Tensor]:
        return [x.flatten(1)]

    def join(self, matrices: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
        return matrices[0].reshape(tuple(shape))

    def shapes(self, shape: Sequence[int]) -> list[tuple[int, ...]]:
        return [(shape[0], int(torch.Size(shape[1:]).numel()))]


@dataclass(frozen=True)
class Split(View):
    """Blocks of rows, each a matrix of its own: fused query, key and value.

    Attributes:
        rows: the number of equal blocks, or the rows of each block.
    """

    name: ClassVar[str] = "split"

    rows: int | tuple[int, ...] = 3

    def cut(self, x: Tensor) -> list[Tensor]:
        return list(torch.split(x, self._sizes(x.shape)))

    def cut_piece(self, x: Tensor, first: int, shape: Sequence[int]) -> list[Tensor]:
        parts, low = [], 0
        for rows in self._sizes(shape):
            start, end = (min(max(edge - first, 0), len(x)) for edge in (low, low + rows))
            parts.append(x[start:end])
            low += rows
        return parts

    def join(self, matrices: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
        return torch.cat(list(matrices))

    def shapes(self, shape: Sequence[int]) -> list[tuple[int, ...]]:
        return [(rows, *shape[1:]) for rows in self._sizes(shape)]

    def _sizes(self, shape: Sequence[int]) -> list[int]:
        sizes = list(self.rows) if isinstance(self.rows, tuple) else [shape[0] // self.rows] * self.rows
        if sum(sizes) != shape[0]:
            raise ValueError(f"{self} does not divide the {shape[0]} rows of a parameter of shape {tuple(shape)}")
        return sizes


VIEWS: dict[str, type[View]] = {view.name: view for view in (Whole, Flatten, Split)}
"""Name -> class, for text only."""


def parse(text: str) -> View:
    """The view that a text names: "whole", "flatten", "split:3", "split(rows=(512, 128, 128))"."""
    view: Any = read(text, VIEWS)
    assert isinstance(view, View)
    return view
