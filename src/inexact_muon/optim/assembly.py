"""Routes of a batch on several ranks, and how pieces that arrived become whole matrices."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from types import ModuleType

import torch
from torch import Tensor

from inexact_muon.optim import algorithm, masked
from inexact_muon.optim.batches import Batch, Member
from inexact_muon.optim.masked import shared_factor

Directions = tuple[list[Tensor], list[float]]
"""(direction of each tensor, factor of lr it still needs)"""


class RankRoute:
    """How ranks compute the directions of a batch. All ranks make the same calls in the same order."""

    def prepared_here(self, batch: Batch) -> Batch:
        """The members whose LMO inputs this rank needs before the directions."""
        return batch

    def update_buffers_(self, batch: Batch, inputs: Sequence[Tensor]) -> None:
        """The buffers of all members, from the inputs of `prepared_here`."""
        equations(batch).update_buffers_(batch, inputs)


def equations(batch: Batch) -> ModuleType:
    """The equations of Algorithm 1 for this batch: on an accelerator those with flags."""
    return algorithm if batch.flags is None else masked


def scaled(batch: Batch, zs: list[Tensor], lengths: list[float]) -> Directions:
    """On an accelerator, z times length / -decay in the dtype of W, and -decay as the factor that is left.

    Stages get z as it is.
    """
    if batch.flags is None or batch.staged:
        return zs, lengths
    shared = [shared_factor(m.group) for m in batch.members]
    rows = zip(batch.members, zs, lengths, shared, strict=True)
    return [z.to(m.piece.dtype) * (length / factor) for m, z, length, factor in rows], shared


class Assembly(RankRoute):
    """Whole matrices from the pieces of a message, and their order in it; attributes are those of `Owned`."""

    members: list[Member]
    solved: Batch | None
    ranks: tuple[int, ...]
    mine: list[int]
    incoming: list[list[tuple[int, int]]]
    received: list[int]
    runs: list[tuple[int, int]]
    dtype: torch.dtype
    divided: bool
    everywhere: bool
    regular: bool
    scaled: bool

    def _is_regular(self) -> bool:
        """Whether all pieces of each member are equal, so that those of many members are moved by one copy."""
        place = self.members[0].place
        return (
            self.divided
            and len(place.holders) == 1
            and place.row == self.ranks
            and all(m.place.grid is not None and m.here.size != () for m in self.members)
            and (self.solved is None or (None not in self.solved.stacks.blocks and bool(self.solved.stacks.shapes)))  # type: ignore[union-attr]
        )

    def _ends(self) -> list[tuple[int, int]]:
        """(first, end) of members that are alike and consecutive in a stack."""
        assert self.solved is not None
        members, slots, ends = self.solved.members, self.solved.stacks.blocks, []  # type: ignore[union-attr]
        k = 0
        while k < len(members):
            (stack, first, count), end = slots[k], k + 1  # type: ignore[misc]
            while end < len(members) and _alike(members[k], members[end]):
                if slots[end][:2] != (stack, first + (end - k) * (count or 0)):  # type: ignore[index]
                    break
                end += 1
            ends.append((k, end))
            k = end
        return ends

    def _runs(self, buffer: Tensor, stacks: Sequence[Tensor]) -> list[tuple[Tensor, Tensor, list[int]]]:
        """(part of a buffer [rank][member][piece], part of the stacks, order of the buffer's axes there), by runs."""
        assert self.solved is not None
        parts, members, slots = [], self.solved.members, self.solved.stacks.blocks  # type: ignore[union-attr]
        low = 0
        for k, end in self.runs:
            place, (stack, first, count) = members[k].place, slots[k]  # type: ignore[misc]
            (sizes, dims), n, piece = place.grid, end - k, place.size
            size = prod(piece)
            pieces = buffer.view(*sizes, -1).narrow(-1, low, n * size).view(*sizes, n, *piece)
            axes = [len(sizes)]
            shape = [n]
            for dim, divided in enumerate(dims):
                axes += [*divided, len(sizes) + 1 + dim]
                shape += [*[sizes[d] for d in divided], piece[dim]]
            whole = stacks[stack].narrow(0, first, n * (count or 0)).reshape(shape)
            parts.append((pieces, whole, axes))
            low += n * size
        return parts

    def _assemble(self, arrived: Tensor, wholes: Sequence[Tensor], stacks: Sequence[Tensor]) -> None:
        """Copy the pieces that arrived into the whole tensors, scaled alike."""
        assert self.solved is not None
        if self.regular:
            sizes = self.solved.members[0].place.grid[0]
            factors = self._alike(arrived.view(*sizes, -1)) if self.scaled else None
            for (k, end), (pieces, whole, axes) in zip(self.runs, self._runs(arrived, stacks), strict=True):
                if factors is None:
                    whole.copy_(pieces.permute(axes))
                else:
                    factor = factors[..., k:end].reshape(*sizes, end - k, *[1] * (pieces.ndim - len(sizes) - 1))
                    torch.mul(pieces.permute(axes), factor.permute(axes), out=whole)
            return
        by_rank = zip(self.ranks, torch.split(arrived, self.received), self.incoming, strict=True)
        messages = {rank: (x, [size for size, _ in pieces]) for rank, x, pieces in by_rank if pieces}
        ends = [x.narrow(0, sum(sizes), len(x) - sum(sizes)) for x, sizes in messages.values()]
        rows = dict(zip(messages, self._alike(torch.stack(ends)) if self.scaled else ends, strict=True))
        parts = {rank: torch.split(x.narrow(0, 0, sum(sizes)), sizes) for rank, (x, sizes) in messages.items()}
        for i, (k, whole) in enumerate(zip(self.mine, wholes, strict=True)):
            place = self.members[k].place
            for j, rank in enumerate(place.row):
                piece, target = parts[rank][i].view(place.piece_shape(j)), place.take(whole, j)
                if self.scaled:
                    torch.mul(piece, rows[rank][i], out=target)
                else:
                    target.copy_(piece)

    def _alike(self, messages: Tensor) -> Tensor:
        """Powers of two that give the pieces of a matrix the scale of its largest one, from exponents at the end."""
        exponents = messages.narrow(-1, messages.shape[-1] - len(self.mine), len(self.mine)).float()
        largest = exponents.flatten(0, -2).amax(0)
        return torch.exp2((exponents - largest).clamp(min=-40.0)).to(self.dtype)


def _alike(a: Member, b: Member) -> bool:
    return a.place.grid == b.place.grid and a.place.shape == b.place.shape and a.view == b.view
