"""Where the matrices of a batch lie on this rank: rows of equal length as stacks, and the matrices they are of.

A number for each row of each whole matrix is a tensor (matrices, rows), padded with zeros where matrices have fewer
rows than others; a number for each matrix is (matrices, 1). Every rank has all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from inexact_muon.dtensors import piece_of, whole_of
from inexact_muon.optim.batches import Member
from inexact_muon.optim.cuts import Cut
from inexact_muon.views.base import COLUMNS

Stacks = list[Tensor]
"""Rows of all pieces of matrices, (rows, columns) for each number of columns that they have on this rank."""


class Arrangement:
    """The layout of some members.

    Attributes:
        whole: (count, rows, columns) of each member's matrices, by shape.
        shapes: (rows, columns) of each stack.
        slots: for each stack the (member, part of its piece) that it consists of.
        where: (member, part of its piece) -> (stack, first row, rows); parts without entries are in none.
        count, most: number of matrices; rows of the longest.
        factors: cached `whole_factor` of each member's matrices; numbers: those of all matrices, on the device.
        direct: the only stack has all matrices in their order, so that nothing is looked up.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        self.members, self.cuts = members, [_cut(m) for m in members]
        self.whole = [[three(shape) for shape in m.whole.shapes] for m in members]
        triples = [triple for rows in self.whole for triple in rows]
        self.count, self.most = sum(n for n, _, _ in triples), max([r for n, r, _ in triples if n], default=1)
        self.slots: list[list[tuple[int, int]]] = []
        self.where: dict[tuple[int, int], tuple[int, int, int]] = {}
        self.shapes: list[tuple[int, int]] = []
        index: list[list[Tensor]] = []
        at: dict[int, int] = {}
        first = 0
        for k, cut in enumerate(self.cuts):
            ids = _row_ids(cut, first, self.most)
            for j, (n, rows, columns) in enumerate(self._parts(k)):
                if n * rows * columns == 0:
                    continue
                place = at.setdefault(columns, len(self.shapes))
                if place == len(self.shapes):
                    self.shapes.append((0, columns))
                    self.slots.append([])
                    index.append([])
                self.where[k, j] = (place, self.shapes[place][0], n * rows)
                self.shapes[place] = (self.shapes[place][0] + n * rows, columns)
                self.slots[place].append((k, j))
                index[place].append(ids[j].flatten())
            first += sum(n for n, _, _ in self.whole[k])
        self.uniform = all(r == self.most for n, r, _ in triples if n)
        whole = all(cut.size == cut.shape for cut in self.cuts)
        self.direct = whole and self.uniform and len(self.shapes) == 1 and self.shapes[0][0] == self.count * self.most
        self.factors: list[list[float]] | None = None
        self.numbers: tuple[list[float], Tensor] | None = None
        self._send(index, triples, members[0].piece.device)

    def _send(self, index: list[list[Tensor]], triples: list[tuple[int, int, int]], device: torch.device) -> None:
        """Copy what is looked up to the device, once."""
        none = torch.empty(0, dtype=torch.int64)
        self.rows = torch.cat([x for indices in index for x in indices] or [none]).to(device)
        self.matrices = self.rows // self.most
        self._repeated = {1: self.rows}
        sizes = [[c, r * c] for n, r, c in triples for _ in range(n)]
        self._sizes = torch.tensor(sizes, dtype=torch.float64).view(-1, 2).clamp_(min=1.0).to(device)
        lengths = [r for n, r, _ in triples for _ in range(n)]
        pads = [torch.arange(i * self.most, i * self.most + r) for i, r in enumerate(lengths)]
        self.padded = torch.cat(pads or [none]).to(device)
        counts = [sum(n for n, _, _ in rows) for rows in self.whole]
        self.owners = torch.tensor([k for k, n in enumerate(counts) for _ in range(n)], dtype=torch.int64).to(device)
        self.single = all(n == 1 for n in counts)

    def rows_of(self, several: int) -> Tensor:
        """The rows of several copies of all matrices, one after another."""
        if several not in self._repeated:
            self._repeated[several] = torch.cat([self.rows + i * self.count * self.most for i in range(several)])
        return self._repeated[several]

    def sizes_in(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """(columns, entries) of each whole matrix, (matrices, 1) each."""
        self._sizes = self._sizes if self._sizes.dtype == dtype else self._sizes.to(dtype)
        return self._sizes[:, :1], self._sizes[:, 1:]

    def _parts(self, k: int) -> list[tuple[int, int, int]]:
        """(count, rows, columns) of the parts of member k's piece."""
        cut = self.cuts[k]
        return [cut.block] if cut.block else [three(shape) for shape in cut.shapes]

    def parts(self, k: int, x: Tensor) -> list[Tensor]:
        """The parts of member k's piece x, each (rows, columns)."""
        source = self.members[k].place.source if self.members[k].place is not None else None
        if source is not None:
            x = whole_of(x, source)
        block = self.cuts[k].block
        if block:
            return [x.reshape(block[0] * block[1], block[2])]
        threes = [(part, three(tuple(part.shape))) for part in self.cuts[k](x)]
        return [part.reshape(n * rows, columns) for part, (n, rows, columns) in threes]

    def gathered(self, xs: Sequence[Tensor], dtype: torch.dtype) -> Stacks:
        """The stacks of tensors that are laid out as the members' pieces."""
        parts = [self.parts(k, x) for k, x in enumerate(xs)]
        return [self._stacked([parts[k][j] for k, j in slots], dtype) for slots in self.slots]

    @staticmethod
    def _stacked(parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """A copy of the parts in this dtype, by one call."""
        out = parts[0].new_empty((sum(len(x) for x in parts), *parts[0].shape[1:]), dtype=dtype)
        return torch.cat(list(parts), out=out)

    def of_member(self, k: int, stacks: Stacks) -> list[Tensor]:
        """The parts of member k in stacks; those without entries are left out."""
        places = [self.where.get((k, j)) for j in range(len(self._parts(k)))]
        return [stacks[at[0]].narrow(0, at[1], at[2]) for at in places if at is not None]

    def joined(self, k: int, stacks: Stacks) -> Tensor:
        """The piece of member k in stacks."""
        cut, parts = self.cuts[k], iter(self.of_member(k, stacks))
        if not prod(cut.size):
            return self.members[k].piece.new_empty(cut.size)
        if cut.block:
            return next(parts).reshape(cut.size)
        return cut.join([next(parts).reshape(s) if prod(s) else stacks[0].new_empty(s) for s in cut.shapes])

    def copy_to(self, xs: Sequence[Tensor], stacks: Stacks) -> None:
        """Copy stacks to tensors that are laid out as the members' pieces, by one call where parts are views."""
        targets: list[Tensor] = []
        sources: list[Tensor] = []
        for k, x in enumerate(xs):
            if not x.numel():
                continue
            parts = [part for part in self.parts(k, x) if part.numel()]
            if all(_shares(part, x) for part in parts):
                targets += parts
                sources += self.of_member(k, stacks)
            else:
                source = self.members[k].place.source if self.members[k].place is not None else None
                new = self.joined(k, stacks)
                x.copy_(new if source is None else piece_of(new, source))
        if targets:
            torch._foreach_copy_(targets, sources)


def _cut(m: Member) -> Cut:
    """How this rank's piece is cut; of a DTensor that only torch can gather, how the whole is."""
    return m.whole if m.place is None or m.place.source is not None else m.here


def three(shape: Sequence[int]) -> tuple[int, int, int]:
    """(count, rows, columns); a vector is a row."""
    if len(shape) < 2:
        return 1, 1, prod(shape)
    return prod(shape[:-2]), shape[-2], shape[-1]


def _shares(part: Tensor, x: Tensor) -> bool:
    return part.untyped_storage()._cdata == x.untyped_storage()._cdata


def _row_ids(cut: Cut, first: int, most: int) -> list[Tensor]:
    """For each part of a piece, (count, rows): most * (number of the matrix) + (row in it).

    The numbers are cut as the tensor is, with one entry along dimensions that are columns of the matrices.
    """
    if len(cut.shape) < 2:
        return [torch.tensor([[first * most]])]
    thin = [axis == COLUMNS for axis in cut.view.axes(len(cut.shape))]
    shape, size, start = (
        tuple(narrow if one else x for x, one in zip(values, thin, strict=True))
        for values, narrow in ((cut.shape, 1), (cut.size, 1), (cut.first, 0))
    )
    numbers: list[Any] = []
    for matrices in cut.view.shapes(shape):
        n, rows, _ = three(matrices)
        ids = torch.arange(first, first + n).unsqueeze(1) * most + torch.arange(rows)
        numbers.append(ids.view(*matrices[:-1], 1).expand(matrices))
        first += n
    piece = cut.view.join(numbers, shape)
    for dim, (low, length) in enumerate(zip(start, size, strict=True)):
        piece = piece.narrow(dim, low, length)
    parts = []
    for part in cut.view.cut_piece(piece, start, shape):
        n, rows, columns = three(tuple(part.shape))
        parts.append(part.reshape(n, rows, columns)[:, :, 0] if columns else part.new_empty(0, rows))
    return [torch.cat(parts)] if cut.block and len(parts) > 1 else parts
