"""The oracle's answers to a batch as its stages see them: this rank's pieces, and sums over all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt

import torch
from torch import Tensor

from inexact_muon.optim.finite import Flags, Number
from inexact_muon.optim.stages.layout import Arrangement, Stacks

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
        self._entries: dict[str, Stacks] = {}
        self._rows: dict[str, Tensor] = {}
        self._matrices: dict[str, Tensor] = {}
        self._old: dict[str, Tensor] = {}
        self._finite: Tensor | None = None
        self._on: Tensor | None = None

    # What stages use.

    def squares(self) -> Tensor:
        """||z||_F^2 of each whole matrix."""
        return self.sums(self.norms(self.stacks).square_())[0]

    def row_squares(self) -> Tensor:
        """sum_j z_ij^2 of each row of each whole matrix."""
        return self._reduce(self._placed(self.norms(self.stacks).square_()))

    def norms(self, stacks: Stacks) -> Tensor:
        """Norms of this rank's rows, for `sums`."""
        return self.flat([torch.linalg.vector_norm(x, dim=-1) for x in stacks])

    def flat(self, numbers: Sequence[Tensor]) -> Tensor:
        """Numbers for the rows of each stack as one vector."""
        return numbers[0] if len(numbers) == 1 else torch.cat([*numbers, self.columns.new_empty(0)])

    def sums(self, values: Tensor, several: int = 1) -> list[Tensor]:
        """Sums over whole matrices of `several` numbers for each row of this rank, by one message."""
        total = self._reduce(self._placed(values, several).sum(1, True))
        return list(total.view(several, -1, 1).unbind())

    def multiply(self, factors: Tensor) -> None:
        """Multiply by a number for each row, or for each matrix."""
        spread = self.spread(factors)
        self.stacks = [x.mul_(factor) for x, factor in zip(self.stacks, spread, strict=True)]

    def spread(self, numbers: Tensor) -> Stacks:
        """Numbers for rows or matrices as factors of the stacks."""
        layout = self.layout
        if layout.direct:
            flat = numbers.expand(layout.count, layout.most).reshape(-1, 1)
        else:
            index = layout.rows if numbers.shape[1] == layout.most else layout.matrices
            flat = numbers.reshape(-1, 1).index_select(0, index)
        return list(torch.split(flat, [rows for rows, _ in layout.shapes])) if layout.shapes else []

    def old_entries(self, key: str) -> Stacks:
        """The state of this name, as the stacks are."""
        return self.layout.gathered(self._states(key), self.dtype)

    def new_entries(self, key: str, stacks: Stacks) -> None:
        """Its new value."""
        self._entries[key] = stacks

    def old_rows(self, key: str) -> Tensor:
        """The state of this name, a number for each row: (matrices, rows)."""
        layout = self.layout
        flat = torch.cat(self._states(key)).to(self.dtype)
        if not layout.uniform:
            flat = flat.new_zeros(layout.count * layout.most).index_copy_(0, layout.padded, flat)
        self._old[key] = flat.view(layout.count, layout.most)
        return self._old[key]

    def new_rows(self, key: str, numbers: Tensor) -> None:
        """Its new value."""
        self._rows[key] = numbers

    def old_matrices(self, key: str) -> Tensor:
        """The state of this name, a number for each matrix: (matrices, 1)."""
        self._old[key] = torch.cat(self._states(key)).to(self.dtype).view(-1, 1)
        return self._old[key]

    def new_matrices(self, key: str, numbers: Tensor) -> None:
        """Its new value."""
        self._matrices[key] = numbers

    # What the step uses.

    @property
    def finite(self) -> Tensor | None:
        """On an accelerator, whether each matrix is updated: (matrices, 1)."""
        if self._finite is None and self.flags is not None:
            vector = self.flags.vector
            self._finite = (vector if self.layout.single else vector.index_select(0, self.layout.owners)).unsqueeze(1)
        return self._finite

    def numbers(self, value: Number, idle: float) -> Sequence[Tensor]:
        """A number for all matrices, or for each, as factors of the stacks; `idle` where a matrix is not updated."""
        whole = isinstance(value, Tensor) and value.ndim == 2
        if self.finite is None:
            one = torch.as_tensor(value, dtype=self.dtype, device=self.columns.device)
            return self.spread(one) if whole else [one] * len(self.stacks)
        if whole:
            return self.spread(torch.where(self.finite, value, idle))
        if self._on is None:
            self._on = self.finite.to(self.dtype)
        on = self._on  # nothing is copied from the host: lr may be a tensor that a graph captured
        return self.spread(on * value if idle == 0.0 else on * (value - idle) + idle)

    def masked(self, new: Stacks, old: Stacks) -> Stacks:
        """The new values where a matrix is updated, else the old ones."""
        if self.finite is None:
            return new
        rows = zip(self.spread(self.finite), new, old, strict=True)
        return [torch.where(flag, x, y) for flag, x, y in rows]

    def commit(self) -> None:
        """Write the new states."""
        for key, stacks in self._entries.items():
            self.layout.copy_to(self._states(key), self.masked(stacks, self.old_entries(key)))
        for key, numbers in self._rows.items():
            if self.finite is not None:
                numbers = torch.where(self.finite, numbers, self._old[key])
            flat = numbers.reshape(-1)
            self._write(key, flat if self.layout.uniform else flat.index_select(0, self.layout.padded))
        for key, numbers in self._matrices.items():
            if self.finite is not None:
                numbers = torch.where(self.finite, numbers, self._old[key])
            self._write(key, numbers.reshape(-1))

    def _write(self, key: str, flat: Tensor) -> None:
        states = self._states(key)
        torch._foreach_copy_(states, list(torch.split(flat, [x.numel() for x in states])))

    def _states(self, key: str) -> list[Tensor]:
        return [m.stage_state[key] for m in self.layout.members]

    def _placed(self, values: Tensor, several: int = 1) -> Tensor:
        """Numbers of this rank's rows among those of all, zero elsewhere: (several * matrices, rows)."""
        layout, index = self.layout, self.layout.rows_of(several)
        if not layout.direct:
            values = values.new_zeros(several * layout.count * layout.most).index_copy_(0, index, values)
        return values.view(several * layout.count, layout.most)
