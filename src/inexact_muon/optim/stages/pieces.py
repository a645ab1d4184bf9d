"""The oracle's answers to a batch as its stages see them: this rank's pieces, and sums over all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from math import sqrt

import torch
from torch import Tensor

from inexact_muon.optim.finite import Flags, Number
from inexact_muon.optim.stages.layout import Arrangement, Sides, Stacks
from inexact_muon.optim.stages.places import Side

Reduce = Callable[[Tensor], Tensor]
"""Adds a tensor up over the ranks that hold the batch, each piece once."""


class Pieces:
    """Answers, and the old and new states of their stages; nothing is written until `commit`.

    A stage reads the old value of a state before it gives the new one.

    Attributes:
        stacks: this rank's pieces of the answers, in float32 or wider; a stage may replace them.
        columns, sizes: columns and entries of each whole matrix, (matrices, 1).
        tiny: a number that keeps 0/0 away.
    """

    def __init__(self, layout: Arrangement, zs: Sequence[Tensor], flags: Flags | None, reduce: Reduce) -> None:
        self.layout, self.flags, self._reduce = layout, flags, reduce
        member = layout.members[0]
        wide = torch.promote_types(member.piece.dtype, torch.float32)
        self.dtype = torch.promote_types(wide, zs[0].dtype) if zs else wide
        self.tiny = sqrt(torch.finfo(self.dtype).tiny)
        self.columns, self.sizes = layout.sizes_in(self.dtype)
        self.stacks = layout.gathered(zs, self.dtype)
        self._old_entries: dict[str, Stacks] = {}
        self._new_entries: dict[str, Stacks] = {}
        self._old: dict[str, tuple[Tensor, Sides | None]] = {}
        self._new: dict[str, Tensor] = {}

    # What stages use.

    def squares(self) -> Tensor:
        """||z||_F^2 of each whole matrix."""
        return self.sums(self.norms(self.stacks).square_())[0]

    def row_squares(self, side: Side = "rows") -> Tensor:
        """sum_j z_ij^2 of each row of each whole matrix: (matrices, rows), zero where a matrix has fewer rows.

        Args:
            side: "longer" takes columns for the rows where a matrix has more of them.
        """
        rows = self.layout.rows(side)
        norms = [torch.linalg.vector_norm(x, dim=1).view(-1) for x in rows.views(self.stacks)]
        if rows.lines.width > 1:  # then one stack has all of these rows
            norms[0] = torch.linalg.vector_norm(rows.lines(norms[0]), dim=1)
        return self._reduce(rows.placed(self.flat(norms).square_()))

    def lengths(self, side: Side = "rows") -> Tensor:
        """Entries of the rows of each whole matrix, (matrices, 1)."""
        return self.layout.rows(side).lengths_in(self.dtype)

    def norms(self, stacks: Stacks) -> Tensor:
        """Norms of this rank's segments, for `sums`."""
        return self.flat([torch.linalg.vector_norm(x, dim=-1) for x in self.layout.by_matrix(stacks)])

    def flat(self, numbers: Sequence[Tensor]) -> Tensor:
        """Numbers for the lines or segments of each stack as one vector."""
        return numbers[0] if len(numbers) == 1 else torch.cat([*numbers, self.columns.new_empty(0)])

    def sums(self, values: Tensor, several: int = 1) -> Tensor:
        """Sums over whole matrices of `several` numbers for each segment of this rank, (several, matrices, 1).

        By one message.
        """
        sums = self.layout.places(values, several)
        return self._reduce(sums if sums.shape[1] == 1 else sums.sum(1, True)).view(several, -1, 1)

    def multiply(self, factors: Tensor, side: Side = "rows") -> None:
        """Multiply by a number for each row, or for each matrix."""
        if factors.shape[1] == 1:
            views, spread = self.layout.by_matrix(self.stacks), self.spread(factors)
        else:
            rows = self.layout.rows(side)
            views = rows.views(self.stacks)
            spread = rows.spread(factors, views)
        for x, factor in zip(views, spread, strict=True):
            x.mul_(factor)

    def spread(self, numbers: Tensor) -> Stacks:
        """Numbers for matrices as factors of the segments."""
        index, counts = self.layout.matrices, [count for count, _ in self.layout.segments]
        flat = numbers if index is None else numbers.index_select(0, index)
        return list(torch.split(flat, counts)) if counts else []

    def times(self, number: Number) -> Stacks:
        """The answers times a number for all matrices, or for each."""
        pairs = zip(self.layout.by_matrix(self.stacks), self.factors(number), self.stacks, strict=True)
        return [(view * factor).view_as(x) for view, factor, x in pairs]

    def old_entries(self, key: str) -> Stacks:
        """The state of this name, as the stacks are."""
        self._old_entries[key] = old = self.layout.gathered(self._states(key), self.dtype)
        return old

    def new_entries(self, key: str, stacks: Stacks) -> None:
        """Its new value."""
        self._new_entries[key] = stacks

    def old_rows(self, key: str, side: Side = "rows") -> Tensor:
        """The state of this name, a number for each row: (matrices, rows)."""
        rows = self.layout.rows(side)
        old = rows.padded(torch.cat(self._states(key)).to(self.dtype))
        self._old[key] = old, rows
        return old

    def old_matrices(self, key: str) -> Tensor:
        """The state of this name, a number for each matrix: (matrices, 1)."""
        old = torch.cat(self._states(key)).to(self.dtype).view(-1, 1)
        self._old[key] = old, None
        return old

    def new_numbers(self, key: str, numbers: Tensor) -> None:
        """The new value of what `old_rows` or `old_matrices` gave."""
        self._new[key] = numbers

    # What the step uses.

    @cached_property
    def finite(self) -> Tensor | None:
        """On an accelerator, whether each matrix is updated: (matrices, 1)."""
        return None if self.flags is None else self._of_matrices(self.flags.vector)

    @cached_property
    def on(self) -> Number:
        """1 where a matrix is updated, else 0; on the host, which leaves out the others, the number 1."""
        return 1.0 if self.flags is None else self._of_matrices(self.flags.on).to(self.dtype)

    def _of_matrices(self, flags: Tensor) -> Tensor:
        return (flags if self.layout.single else flags.index_select(0, self.layout.owners)).unsqueeze(1)

    def factors(self, value: Number) -> Sequence[Tensor]:
        """A number for all matrices, or for each, as factors of the segments."""
        if isinstance(value, Tensor) and value.ndim == 2:
            return self.spread(value)
        return [torch.as_tensor(value, dtype=self.dtype, device=self.columns.device)] * len(self.stacks)

    def subtract_(self, xs: Stacks, ys: Stacks, number: Number) -> None:
        """x <- x - number y where a matrix is updated, with a number for all matrices, or for each."""
        on, value = (self.on * number, -1.0) if isinstance(number, Tensor) else (self.on, -number)
        factors = self.factors(on)
        for x, y, factor in zip(self.layout.by_matrix(xs), self.layout.by_matrix(ys), factors, strict=True):
            x.addcmul_(y, factor, value=value)

    def commit(self) -> None:
        """Write the new states."""
        by_matrix = self.layout.by_matrix
        for key, stacks in self._new_entries.items():
            if self.finite is not None:
                rows = zip(self.spread(self.finite), by_matrix(stacks), by_matrix(self._old_entries[key]), strict=True)
                stacks = [torch.where(*row).view_as(x) for row, x in zip(rows, stacks, strict=True)]
            self.layout.copy_to(self._states(key), stacks)
        for key, numbers in self._new.items():
            old, sides = self._old[key]
            new = numbers if self.finite is None else torch.where(self.finite, numbers, old)
            flat = new.reshape(-1) if sides is None else sides.unpadded(new)
            states = self._states(key)
            torch._foreach_copy_(states, list(torch.split(flat, [x.numel() for x in states])))

    def _states(self, key: str) -> list[Tensor]:
        return [m.stage_state[key] for m in self.layout.members]
