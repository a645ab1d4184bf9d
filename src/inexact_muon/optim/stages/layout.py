"""Where the matrices of a batch lie on this rank: rows as the lines of stacks, and the matrices they are of.

Rows of different lengths are one stack where a length divides all of them: a row is then several lines of the stack,
and what stages do takes the same launches for one shape as for many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import gcd, prod, sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor

from inexact_muon.dtensors import piece_of, whole_of
from inexact_muon.optim.batches import Member
from inexact_muon.optim.finite import Number
from inexact_muon.optim.rows import Packed, Rows
from inexact_muon.optim.stages.places import Index, Places, Side, columns_of, numbered, on_device, three
from inexact_muon.views.blocks import Cut

Stacks = list[Tensor]
"""Lines of all pieces of matrices: rows of each length that they have on this rank, or equal parts of all rows."""

Writes = tuple[list[Tensor], list[Tensor]]
"""Targets, and what is copied to each of them."""

MOST_LINES = 64
"""Lines of a row up to which rows of different lengths are one stack: a sum for each row has room for that many."""


@dataclass
class PiecePart:
    """Matrices of a member's piece that are one part of it, (count, rows, columns), and where they lie.

    Attributes:
        wide: the whole matrices have more columns than rows.
        matrices, numbers: the matrix that each row is of, and which of its rows it is.
        stack, first, lines: its lines in the stacks.
    """

    member: int
    index: int
    count: int
    rows: int
    columns: int
    wide: bool
    matrices: Index
    numbers: Index
    stack: int = 0
    first: int = 0
    lines: int = 0


class Arrangement:
    """The layout of some members.

    Attributes:
        whole: (count, rows, columns) of each member's matrices, by shape; count: of all matrices.
        shapes: (lines, entries of a line) of each stack.
        parts: in the order of their lines: in each stack wide ones last, and those with equal sides together; parts
            without entries are left out.
        segments: shapes of `by_matrix`: a row for each matrix if all have equally many lines, in order; else the lines.
        matrices: the segments of each matrix.
        columns, sizes: columns and entries of each whole matrix, (matrices, 1).
        tiny: a number that keeps 0/0 away; its square is not zero.
        blocks: (rows, columns) of pieces whose rows are consecutive in memory, else None.
        factors: cached factors of lr: one number, or one for each matrix.
        spheres: cached numbers of fixed norms.
    """

    def __init__(self, members: Sequence[Member], dtype: torch.dtype) -> None:
        self.members, self.cuts = members, [_cut(m) for m in members]
        self.threes = [[cut.block] if cut.block else [three(shape) for shape in cut.shapes] for cut in self.cuts]
        self.whole = [[three(shape) for shape in m.whole.shapes] for m in members]
        self.sides = [(r, c) for triples in self.whole for n, r, c in triples for _ in range(n)]
        self.count = len(self.sides)
        self.device = members[0].piece.device
        self.shapes: list[tuple[int, int]] = []
        self.parts = self._listed()
        self._stack()
        blocks = [cut.block if _source(m) is None else None for m, cut in zip(members, self.cuts, strict=True)]
        self.blocks = [None if block is None else (block[0] * block[1], block[2]) for block in blocks]
        lines = [np.repeat(part.matrices, part.lines // len(part.matrices)) for part in self.parts]
        matrices = np.concatenate([*lines, np.empty(0, dtype=np.int64)])
        self.segments, order = self.shapes, np.arange(self.count)
        if len(self.shapes) == 1 and np.array_equal(matrices, order.repeat(len(matrices) // self.count)):
            self.segments, matrices = [(self.count, prod(self.shapes[0]) // self.count)], order
        self.matrices = Places.of(matrices, self.count, self.device)
        counts = [sum(n for n, _, _ in triples) for triples in self.whole]
        self.owners = on_device(np.arange(len(counts)).repeat(counts), len(counts), self.device)
        sizes = torch.tensor([[c, r * c] for r, c in self.sides], dtype=torch.float64).view(-1, 2).clamp_(min=1.0)
        self.columns, self.sizes = torch.split(sizes.to(dtype).to(self.device), 1, 1)
        self.tiny = torch.full((1,), sqrt(torch.finfo(dtype).tiny), dtype=dtype, device=self.device)
        self.dtype = dtype
        self._rows: dict[Side, Sides] = {}
        self.packed = self._is_packed()
        self.factors: Number | None = None
        self.spheres: tuple[Tensor, Tensor] | None = None

    def _listed(self) -> list[PiecePart]:
        """The parts of all members."""
        parts, first = [], 0
        for k, cut in enumerate(self.cuts):
            for j, (triple, ids) in enumerate(zip(self.threes[k], numbered(cut, first), strict=True)):
                if prod(triple):
                    matrices, numbers = (x.flatten() for x in ids)
                    r, c = self.sides[int(matrices[0])]
                    parts.append(PiecePart(k, j, *triple, r < c, matrices, numbers))
            first += sum(n for n, _, _ in self.whole[k])
        return parts

    def _stack(self) -> None:
        """Order the parts and say where their lines are."""
        length = self._common_length()
        self.parts.sort(key=lambda part: (length or part.columns, part.wide, part.columns, part.rows))
        for part in self.parts:
            line = length or part.columns
            if not self.shapes or self.shapes[-1][1] != line:
                self.shapes.append((0, line))
            part.stack, part.first = len(self.shapes) - 1, self.shapes[-1][0]
            part.lines = part.count * part.rows * part.columns // line
            self.shapes[-1] = (part.first + part.lines, line)

    def _common_length(self) -> int:
        """Entries of a line that all rows here are cut into; 0 if that takes copies, or many lines for a row."""
        columns = [part.columns for part in self.parts]
        length = gcd(*columns)
        if not columns or length < Rows.SHORTEST or max(columns) > MOST_LINES * length:
            return 0
        return length if min(columns) == max(columns) or all(map(_consecutive, self.cuts)) else 0

    def _is_packed(self) -> bool:
        """Whether the lines of the stack are the entries of the members' pieces, one after another."""
        order = [(part.member, part.index) for part in self.parts]
        plain = order == sorted(order) and all(_source(m) is None for m in self.members)
        return len(self.shapes) == 1 and plain and all(map(_consecutive, self.cuts))

    def by_matrix(self, stacks: Stacks) -> Stacks:
        """The stacks by their segments."""
        return [x.view(shape) for x, shape in zip(stacks, self.segments, strict=True)]

    def rows(self, side: Side) -> Sides:
        """Rows, or columns where these are the longer side and asked for."""
        if side not in self._rows:
            self._rows[side] = Sides(self, side == "longer")
        return self._rows[side]

    def cut(self, xs: Sequence[Tensor]) -> list[list[Tensor]]:
        """The parts of the pieces of each member, (rows, columns)."""
        return [
            [x.reshape(block)] if block else self._parts(k, x)
            for k, (x, block) in enumerate(zip(xs, self.blocks, strict=True))
        ]

    def _parts(self, k: int, x: Tensor) -> list[Tensor]:
        cut, source = self.cuts[k], _source(self.members[k])
        x = x if source is None else whole_of(x, source)
        parts = [x.reshape(cut.block)] if cut.block else cut(x)
        return [part.reshape(n * r, c) for part, (n, r, c) in zip(parts, self.threes[k], strict=True)]

    def gathered(self, xs: Sequence[Tensor]) -> Stacks:
        """The stacks of tensors that are laid out as the members' pieces: copies, unless they are the stack."""
        if self.packed and isinstance(xs, Packed):
            parts = [x.reshape(-1) for x in xs.parts]
            return [(parts[0] if len(parts) == 1 else torch.cat(parts)).view(-1, self.shapes[0][1])]
        cut = self.cut(xs)
        stacks: list[Stacks] = [[] for _ in self.shapes]
        for (stack, columns), run in groupby(self.parts, lambda part: (part.stack, part.columns)):
            rows, line = [cut[part.member][part.index] for part in run], self.shapes[stack][1]
            if line < columns and not all([x.is_contiguous() for x in rows]):  # noqa: C419
                rows = [torch.cat(rows)]  # or each that is transposed would be copied
            stacks[stack] += [x.reshape(-1, line) for x in rows]
        return [torch.cat(lines) for lines in stacks]

    def by_member(self, stacks: Stacks) -> list[list[Tensor]]:
        """The parts of each member in stacks; those without entries are left out."""
        counts = [[part.lines for part in run] for _, run in groupby(self.parts, lambda part: part.stack)]
        lines = [x for stack, sizes in zip(stacks, counts, strict=True) for x in torch.split(stack, sizes)]
        members: list[dict[int, Tensor]] = [{} for _ in self.members]
        for part, x in zip(self.parts, lines, strict=True):
            members[part.member][part.index] = x if x.shape[1] == part.columns else x.view(-1, part.columns)
        return [[x for _, x in sorted(parts.items())] if len(parts) > 1 else [*parts.values()] for parts in members]

    def joined(self, k: int, parts: Sequence[Tensor]) -> Tensor:
        """The piece of member k, from its parts."""
        cut, full = self.cuts[k], iter(parts)
        if not prod(cut.size):
            return self.members[k].piece.new_empty(cut.size)
        if cut.block:
            return next(full).reshape(cut.size)
        return cut.join([next(full).reshape(s) if prod(s) else parts[0].new_empty(s) for s in cut.shapes])

    def writes(self, xs: Sequence[Tensor], stacks: Stacks) -> Writes:
        """What must be copied to tensors that are laid out as the members' pieces."""
        targets: list[Tensor] = []
        sources: list[Tensor] = []
        for k, (x, own, new) in enumerate(zip(xs, self.cut(xs), self.by_member(stacks), strict=True)):
            if x.is_contiguous() if self.blocks[k] else all(_shares(part, x) for part in own):
                targets += [part for part in own if part.numel()]
                sources += new
            else:
                whole, source = self.joined(k, new), _source(self.members[k])
                targets.append(x)
                sources.append(whole if source is None else piece_of(whole, source))
        return targets, sources


class Sides:
    """The rows of an `Arrangement`, or columns where these are the longer side.

    A number for each of them is a tensor (matrices, rows), on every rank, padded with zeros where matrices have fewer
    rows than others.

    Attributes:
        count, most: number of matrices; rows of the longest.
        lines: the lines of each row of this rank, where rows are lines.
        own: the rows of this rank among those of all; states: the numbers of a state among them.
        lengths: entries of the rows of each matrix, (matrices, 1).
        regions: (stack, first line, lines, None or sides of each matrix) of `views`.
    """

    def __init__(self, layout: Arrangement, longer: bool) -> None:
        device, none = layout.device, np.empty(0, dtype=np.int64)
        pairs = [(c, r) if longer and r < c else (r, c) for r, c in layout.sides]
        self.count, self.most = len(pairs), max([r for r, _ in pairs], default=1)
        self.regions = list[tuple[int, int, int, tuple[int, int] | None]]()
        own, lines, spans = [none], [none], [none]
        parts = sorted(layout.parts, key=lambda part: longer and part.wide)

        def region(part: PiecePart) -> tuple[int, tuple[int, int] | None]:
            return part.stack, (part.rows, part.columns) if longer and part.wide else None

        for (stack, sides), run in groupby(parts, region):
            alike = list(run)
            self.regions.append((stack, alike[0].first, sum(part.lines for part in alike), sides))
            for part in alike:
                if sides is None:
                    matrix, row, several = part.matrices, part.numbers, part.lines // len(part.numbers)
                else:
                    several, matrices = 1, part.matrices.reshape(part.count, part.rows)[:, 0]
                    matrix, row = columns_of(layout.cuts[part.member], part.index, matrices)
                own.append((matrix * self.most + row).flatten())
                lines.append(own[-1].repeat(several))
                spans.append(np.full_like(own[-1], several))
        span, every = np.concatenate(spans), self.count * self.most
        self.lines = Places.of(np.arange(len(span)).repeat(span), len(span), device)
        self.own = Places.of(np.concatenate(own), every, device)
        self._lines = on_device(np.concatenate(lines), every, device)
        pads = [np.arange(i * self.most, i * self.most + r) for i, (r, _) in enumerate(pairs)]
        self.states = Places.of(np.concatenate([*pads, none]), every, device)
        lengths = torch.tensor([c for _, c in pairs], dtype=torch.float64).clamp_(min=1.0).unsqueeze(1)
        self.lengths = lengths.to(layout.dtype).to(device)

    def views(self, stacks: Sequence[Tensor]) -> list[Tensor]:
        """Stacks as (lines, length) or (matrices, rows, columns): entries along dimension 1 are those of a row."""
        regions = [(stacks[stack].narrow(0, first, lines), sides) for stack, first, lines, sides in self.regions]
        return [x if sides is None else x.view(-1, *sides) for x, sides in regions]

    def spread(self, numbers: Tensor, views: Sequence[Tensor]) -> list[Tensor]:
        """Numbers for rows as factors of the views."""
        flat = numbers.reshape(-1)
        flat = flat if self._lines is None else flat.index_select(0, self._lines)
        parts = torch.split(flat, [x.numel() // x.shape[1] for x in views]) if views else ()
        return [part.view(x.shape[0], 1, *x.shape[2:]) for part, x in zip(parts, views, strict=True)]


def _source(m: Member) -> Any:
    """The DTensor that a piece is of, if only torch can gather it."""
    return None if m.place is None else m.place.source


def _cut(m: Member) -> Cut:
    """How this rank's piece is cut; of a DTensor that only torch can gather, how the whole is."""
    return m.here if _source(m) is None else m.whole


def _consecutive(cut: Cut) -> bool:
    """Whether every matrix of a piece is consecutive in memory."""
    return bool(cut.block) or all(x.is_contiguous() for x in cut(torch.empty(cut.size, device="meta")))


def _shares(part: Tensor, x: Tensor) -> bool:
    return part.untyped_storage()._cdata == x.untyped_storage()._cdata
