"""The oracle's answers to a batch as its stages see them: this rank's pieces, and sums over all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from math import sqrt
from typing import Any, TypeVar

import torch
from torch import Tensor

from inexact_muon.optim.finite import Flags, Number
from inexact_muon.optim.stages.layout import Arrangement, Sides, Stacks, Writes
from inexact_muon.optim.stages.places import Side

Reduce = Callable[[Tensor], Tensor]
"""Adds a tensor up over the ranks that hold the batch, each piece once."""

State = TypeVar("State", Tensor, Stacks)
"""A number for each row, (matrices, rows); or entries, as the stacks of answers."""


class Pieces:
    """Answers, and the new states of their stages; nothing is written before `writes`.

    Attributes:
        columns, sizes: columns and entries of each whole matrix, (matrices, 1).
        tiny: a number that keeps 0/0 away.
        on: 1 where a matrix is updated, else 0, (matrices, 1); on the host, which leaves out the others, the number 1.
    """

    def __init__(self, layout: Arrangement, zs: Sequence[Tensor], flags: Flags | None, reduce: Reduce) -> None:
        self.layout, self._flags, self._reduce = layout, flags, reduce
        self.columns, self.sizes, self.dtype = layout.columns, layout.sizes, layout.dtype
        self.tiny = sqrt(torch.finfo(self.dtype).tiny)
        self._answers = layout.gathered(zs)
        self._factor: tuple[Tensor, Side] | None = None
        self._old: dict[str, Tensor | Stacks] = {}
        self._new: dict[str, Tensor | Stacks] = {}
        self._sides: dict[str, Sides] = {}

    # What stages use.

    @property
    def stacks(self) -> Stacks:
        """This rank's pieces of the answers, in float32 or wider; a stage may set others."""
        self._answers = [x.to(self.dtype) for x in self.answers]
        return self._answers

    @stacks.setter
    def stacks(self, stacks: Stacks) -> None:
        self._answers, self._factor = stacks, None

    def squares(self) -> Tensor:
        """||z||_F^2 of each whole matrix, (matrices, 1)."""
        return self.sums()[0]

    def row_squares(self, side: Side = "rows") -> Tensor:
        """sum_j z_ij^2 of each row of each whole matrix: (matrices, rows), zero where a matrix has fewer rows.

        Args:
            side: "longer" takes columns for the rows where a matrix has more of them.
        """
        rows = self.layout.rows(side)
        norms, low = rows.own.room(self.columns), 0
        lines = norms if rows.lines.width == 1 else rows.lines.room(self.columns)
        for x in rows.views(self.answers):
            size = x.numel() // x.shape[1]
            out = lines[0].narrow(0, low, size).view(x.shape[0], *x.shape[2:])
            torch.linalg.vector_norm(x, dim=1, dtype=self.dtype, out=out)
            low += size
        if lines is not norms:
            torch.linalg.vector_norm(rows.lines(lines)[0], dim=1, out=norms[0].narrow(0, 0, rows.own.values))
        return self._reduce(rows.own(norms.square_()).view(rows.count, rows.most))

    def lengths(self, side: Side = "rows") -> Tensor:
        """Entries of the rows of each whole matrix, (matrices, 1)."""
        return self.layout.rows(side).lengths

    def multiply(self, factors: Tensor, side: Side = "rows") -> None:
        """Multiply by a number for each row, or for each matrix: at once, or where the weights are updated."""
        if self._factor is not None:
            self._answers = self.answers
        self._factor = factors, side

    def old_entries(self, key: str) -> Stacks:
        """The state of this name, as the stacks are."""
        self._old[key] = old = [x.to(self.dtype) for x in self.layout.gathered(self._states(key))]
        return old

    def old_rows(self, key: str, side: Side = "rows") -> Tensor:
        """The state of this name, a number for each row: (matrices, rows)."""
        self._sides[key] = rows = self.layout.rows(side)
        states = self._states(key)
        zero = [] if rows.states.source is None else [self.columns.new_zeros(1, dtype=states[0].dtype)]
        old = rows.states(torch.cat([*states, *zero]).to(self.dtype).unsqueeze(0)).view(rows.count, rows.most)
        self._old[key] = old
        return old

    def moved(self, key: str, difference: State, weight: float) -> State:
        """The new value of what `old_rows` or `old_entries` gave: old - weight difference where a matrix is updated."""
        old = self._old[key]
        if isinstance(difference, Tensor):
            new: Tensor | Stacks = self._less(old, difference, self.on, weight)  # type: ignore[arg-type]
        else:
            views = self.layout.by_matrix
            ons: list[Any] = self.spread(self.on) if isinstance(self.on, Tensor) else [1.0] * len(difference)
            rows = zip(views(old), views(difference), ons, difference, strict=True)  # type: ignore[arg-type]
            new = [self._less(x, y, on, weight).view_as(like) for x, y, on, like in rows]
        self._new[key] = new
        return new  # type: ignore[return-value]

    # What the step uses.

    @property
    def answers(self) -> Stacks:
        """The answers in the dtype that they came in, or in that of a factor."""
        if self._factor is not None:
            self._answers, self._factor = self._times(*self._factor), None
        return self._answers

    @cached_property
    def on(self) -> Number:
        if self._flags is None:
            return 1.0
        owners, on = self.layout.owners, self._flags.on.to(self.dtype)
        return (on if owners is None else on.index_select(0, owners)).unsqueeze(1)

    def sums(self, ws: Stacks | None = None) -> Tensor:
        """||z||_F^2 of each whole matrix; with ws also ||w||_F^2 and <w, z>. (numbers, matrices, 1), by one message."""
        layout, low = self.layout, 0
        numbers = layout.matrices.room(self.columns, 1 if ws is None else 3)
        views = [layout.by_matrix(xs) for xs in (self.answers, *([] if ws is None else [ws]))]
        for xs in zip(*views, strict=True):
            outs = numbers.narrow(1, low, len(xs[0]))
            for x, out in zip(xs, outs, strict=False):
                torch.linalg.vector_norm(x, dim=-1, dtype=self.dtype, out=out)
            if ws is not None:
                torch.sum(xs[0] * xs[1], -1, out=outs[2])
            low += len(xs[0])
        numbers.narrow(0, 0, len(views)).square_()
        sums = layout.matrices(numbers)
        return self._reduce(sums if layout.matrices.width == 1 else sums.sum(-1, True))

    def spread(self, numbers: Tensor) -> Stacks:
        """Numbers for matrices, (..., matrices, 1), as factors of the segments."""
        counts = [count for count, _ in self.layout.segments]
        return list(torch.split(self.layout.matrices.spread(numbers, -2), counts, -2)) if counts else []

    def times(self, number: Number) -> Stacks:
        """The answers times a number for all matrices, or for each."""
        self._answers = self.answers
        return self._times(self._numbers(number))

    def subtract_(self, xs: Stacks, number: Number, ys: Stacks | None = None) -> None:
        """x <- x - number y where a matrix is updated, with a number for all matrices, or for each; y: the answers."""
        value, factor = -1.0, self.on
        side: Side = "rows"
        if ys is None and self._factor is not None:
            scale, side = self._factor
            factor = scale * factor if isinstance(factor, Tensor) else scale
        if isinstance(number, Tensor):
            factor = factor * number
        else:
            value = -number
        views, factors = self._along(self._numbers(factor), side)
        for x, y, along in zip(views(xs), views(self._answers if ys is None else ys), factors, strict=True):
            x.addcmul_(y, along, value=value)

    def writes(self) -> Iterator[Writes]:
        """The new states."""
        for key, new in self._new.items():
            states = self._states(key)
            if isinstance(new, Tensor):
                numbers = self._sides[key].states.spread(new.reshape(-1))
                yield states, list(torch.split(numbers, [x.numel() for x in states]))
            else:
                yield self.layout.writes(states, new)

    def _states(self, key: str) -> list[Tensor]:
        return [m.stage_state[key] for m in self.layout.members]

    def _numbers(self, number: Number) -> Tensor:
        """A number for all matrices as one for each; a tensor of them as it is."""
        if isinstance(number, Tensor) and number.ndim == 2:
            return number
        return torch.as_tensor(number, dtype=self.dtype, device=self.columns.device).expand(len(self.columns), 1)

    def _along(self, factors: Tensor, side: Side = "rows") -> tuple[Callable[[Stacks], Stacks], Stacks]:
        """(how stacks are viewed, a factor of each view) for numbers of matrices or of their rows."""
        if factors.shape[1] == 1:
            return self.layout.by_matrix, self.spread(factors)
        rows = self.layout.rows(side)
        return rows.views, rows.spread(factors, rows.views(self._answers))

    def _times(self, factors: Tensor, side: Side = "rows") -> Stacks:
        (views, along), xs = self._along(factors, side), self._answers
        out = [torch.empty_like(x, dtype=self.dtype) for x in xs]
        for x, factor, target in zip(views(xs), along, views(out), strict=True):
            torch.mul(x, factor, out=target)
        return out

    def _less(self, x: Tensor, y: Tensor, on: Number, weight: float) -> Tensor:
        if isinstance(on, Tensor):
            return torch.addcmul(x, y, on, value=-weight)
        return torch.sub(x, y, alpha=weight)
