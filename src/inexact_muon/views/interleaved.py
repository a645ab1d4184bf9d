"""Heads of several sizes that alternate in one weight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import ClassVar

import torch
from torch import Tensor

from inexact_muon.views.base import COLUMNS, Misfit, Shape, View, unflatten


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
        parts: list[Tensor] = []
        for low, high, stacked in self._runs(first[0], x.shape[0]):
            run = x.narrow(0, low, high - low)
            parts += torch.split(unflatten(run, 0, sum(self.rows)), list(self.rows), 1) if stacked else [run]
        return parts

    def join_piece(self, parts: Sequence[Tensor], size: Shape, first: Shape, shape: Shape) -> Tensor:
        rest, joined = list(parts), []
        for _, _, stacked in self._runs(first[0], size[0]):
            blocks = [rest.pop(0) for _ in (self.rows if stacked else (0,))]
            joined.append(torch.cat(blocks, 1).flatten(0, 1) if stacked else blocks[0])
        return torch.cat(joined) if joined else parts[0].new_empty(tuple(size))

    def shapes(self, shape: Shape) -> list[tuple[int, ...]]:
        if len(shape) != 2 or sum(self.rows) * self.groups != shape[0] or min(self.rows) < 1:
            raise Misfit(f"{self} does not divide the rows of a parameter of shape {tuple(shape)}")
        return [(self.groups, rows, shape[1]) for rows in self.rows]

    def axes(self, ndim: int) -> tuple[int | None, ...]:
        return (None, COLUMNS)

    def _runs(self, first: int, count: int) -> Iterator[tuple[int, int, bool]]:
        """(begin, end, whether it is whole groups) of blocks, or parts of them, in rows of a piece."""
        size = sum(self.rows)
        whole_from, whole_to = -(-first // size) * size, (first + count) // size * size
        if whole_from >= whole_to:
            whole_from = whole_to = first + count
        yield from self._partial(first, first, whole_from)
        if whole_from < whole_to:
            yield whole_from - first, whole_to - first, True
        yield from self._partial(first, whole_to, first + count)

    def _partial(self, first: int, low: int, high: int) -> Iterator[tuple[int, int, bool]]:
        """Blocks, or parts of them, between two rows of the whole weight."""
        edges = [start + edge for start in range(0, high, sum(self.rows)) for edge in accumulate(self.rows)]
        cuts = [low, *(edge for edge in edges if low < edge < high), high] if low < high else []
        yield from ((a - first, b - first, False) for a, b in pairwise(cuts))
