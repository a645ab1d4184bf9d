"""How ranks compute the directions of a batch, and whole matrices on their owners from the pieces of all ranks.

A route gets this rank's pieces of the LMO inputs and returns its pieces of the directions. It yields while messages are
in flight, so that the pieces of the next batch travel while this one's products run, and its directions while the next
one's do. Every rank of the process group makes the same calls in the same order.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf, prod
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from inexact_muon.optim import algorithm, masked
from inexact_muon.optim.algorithm import step_factor
from inexact_muon.optim.batches import Batch, Member
from inexact_muon.optim.masked import shared_factor
from inexact_muon.optim.rows import Packing, Rows, packing_of
from inexact_muon.optim.stacks import Stacks
from inexact_muon.parallel.wire import Wire
from inexact_muon.views.blocks import Cut

Directions = tuple[list[Tensor], list[float]]
"""(direction of each tensor, factor of lr it still needs)"""

Run = Generator[None, None, Directions]

TOP = 14
"""Exponent of the largest entries in float16: the range above 2^-24 is 2^38 wide."""

ZERO_EXPONENT = -2000
"""Exponent of a piece of zeros; float16 has all integers up to 2048."""


@dataclass(eq=False)
class RankRoute:
    """How ranks compute the directions of a batch. All make the same calls in the same order.

    Attributes:
        members: in the order of their owners, equal on all ranks.
        group: the process group of all ranks that hold them.
        solved: what this rank's oracle works on.
    """

    members: list[Member]
    group: Any
    wire: Wire
    solved: Batch | None = field(default=None, init=False)

    def work_on(self, members: list[Member], cuts: Sequence[Cut], route: RankRoute | None = None) -> None:
        """Make the batch that this rank's oracle works on, from members with these matrices."""
        if members:
            self.solved = Batch(members, Stacks(members[0].ball, cuts, members[0].buffers[0]), route)

    @property
    def stacks(self) -> Stacks:
        """The matrices of `solved`."""
        assert self.solved is not None
        assert self.solved.stacks is not None
        return self.solved.stacks

    def allocate(self, like: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """(LMO inputs of `prepared_here`, uninitialised; the stacks that most of them are views of, if any)."""
        return [torch.empty_like(m.buffers[0]) for m in self.members], []

    def prepared_here(self, batch: Batch) -> Batch:
        """The members whose LMO inputs this rank needs before the directions."""
        return batch

    def directions(self, batch: Batch, inputs: list[Tensor], stacks: list[Tensor], optimizer: Any) -> Run:
        """Directions of this rank's pieces, from the inputs of `prepared_here`; yields while messages travel."""
        raise NotImplementedError

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


def uniform_factor(member: Member) -> float | None:
    """The factor of lr for all matrices of a member; None if they differ or depend on values."""
    if member.length.needs_dual:
        return None
    factors = {float(step_factor(member, shape, None)) for shape in member.whole.shapes if 0 not in shape}
    return factors.pop() if len(factors) == 1 else None if factors else 1.0


@dataclass(eq=False)
class Assembly(RankRoute):
    """Pieces go to the owner of a matrix by one message between any two ranks.

    Attributes:
        dtype: of the pieces on the wire. Float16 pieces of wider momenta are scaled by powers of two to the range of
            float16, and the exponents follow them in the same message.
        everywhere: every rank gathers all matrices.
    """

    dtype: torch.dtype
    everywhere: bool = False
    cache: dict[Any, Any] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        place, self.like = self.members[0].place, self.members[0].buffers[0]
        self.ranks, self.row, self.divided = place.ranks, place.row, len(place.pieces) > 1
        self.index = {rank: j for row in place.holders for j, rank in enumerate(row)}
        self.owners = {rank: [k for k, m in enumerate(self.members) if m.owner == rank] for rank in self.ranks}
        self.mine = [*range(len(self.members))] if self.everywhere else self.owners[place.me]
        here = [self.members[k] for k in self.mine]
        self.work_on(here, [m.whole for m in here], None if self.divided else self)
        self.sizes = [m.place.size for m in self.members]
        self.entries = [prod(size) for size in self.sizes]
        self.packings = [packing_of(self.sizes)]
        self.scaled = self.dtype == torch.float16 and torch.finfo(self.like.dtype).bits > 16
        # To each rank of the row go the pieces of its members; `leaving` are all of these, in order.
        self.leaving = [k for k, m in enumerate(self.members) if self.everywhere or m.owner in self.row]
        going = dict.fromkeys(self.row, self.leaving) if self.everywhere else {r: self.owners[r] for r in self.row}
        self.going = [going.get(rank, []) for rank in self.ranks]
        self.sent = [sum(self.entries[k] + self.scaled for k in ks) for ks in self.going]
        arriving = {rank: sum(self._piece_sizes(rank)) + self.scaled * len(here) for rank in self.row}
        self.received = [arriving.get(rank, 0) for rank in self.ranks]
        self.runs = self._runs() if self.divided and sum(place.holders, ()) == self.ranks else []

    def _piece_sizes(self, rank: int) -> list[int]:
        """Entries of a rank's pieces of this rank's members."""
        return [prod(self.members[k].place.piece_shape(self.index[rank])) for k in self.mine]

    def _runs(self) -> list[tuple[Any, ...]]:
        """Members that are alike and consecutive in a stack, so that one copy moves all their pieces.

        As (first, number, shape of a piece, place in a stack, shape of the whole ones there, order of the axes of
        [copy][rank][member][piece] in it). None if the pieces of a member differ in shape, members are no views of
        stacks, or their meshes differ.
        """
        members = [self.members[k] for k in self.mine]
        blocks: Sequence[Any] = self.stacks.blocks if members else [None]
        grids = {m.place.grid and m.place.grid[0] for m in self.members}
        if None in blocks or None in grids or len(grids) > 1:
            return []
        starts: list[int] = []
        for k, (m, block) in enumerate(zip(members, blocks, strict=True)):
            if starts:
                like, (stack, start, count) = members[starts[-1]], blocks[starts[-1]]
                alike = (m.place.grid, m.place.shape, m.view) == (like.place.grid, like.place.shape, like.view)
                if alike and block[:2] == (stack, start + (k - starts[-1]) * count):
                    continue
            starts.append(k)
        runs = []
        for k, end in zip(starts, [*starts[1:], len(members)], strict=True):
            place, (stack, first, count) = members[k].place, blocks[k]
            (sizes, dims), n = place.grid, end - k
            axes, shape = [0, len(sizes) + 1], [1, n]
            for dim, divided in enumerate(dims):
                axes += [*[1 + d for d in divided], len(sizes) + 2 + dim]
                shape += [*[sizes[d] for d in divided], place.size[dim]]
            runs.append((k, n, place.size, (stack, first, n * count), shape, axes))
        return runs

    def _moves(
        self,
        buffer: Tensor,
        ranks: Sequence[int],
        stacks: Sequence[Tensor],
        wholes: Sequence[Tensor],
        factors: Tensor | None = None,
    ) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """(pieces in a buffer [rank][member][piece], where they lie in whole tensors, their factors).

        Args:
            factors: of each rank's piece of each member, (rank, member); numbers for these follow a rank's pieces.
        """
        low, sizes = 0, self.members[0].place.grid[0] if self.runs else ()
        grid = (len(ranks) // len(self.row), *sizes)
        table = buffer.view(*grid, -1) if self.runs else buffer
        for k, n, piece, (stack, first, count), shape, axes in self.runs:
            size, factor = n * prod(piece), None
            if factors is not None:
                factor = factors.narrow(1, k, n).reshape(*grid, n, *[1] * len(piece)).permute(axes)
            pieces = table.narrow(-1, low, size).view(*grid, n, *piece)
            yield pieces.permute(axes), stacks[stack].narrow(0, first, count).reshape(shape), factor
            low += size
        for j, rank in enumerate([] if self.runs else ranks):
            for i, (k, whole) in enumerate(zip(self.mine, wholes, strict=True)):
                place, piece = self.members[k].place, self.index[rank]
                size = place.piece_shape(piece)
                part = buffer.narrow(0, low, prod(size)).view(size)
                yield part, place.take(whole, piece), None if factors is None else factors[j, i]
                low += prod(size)
            low += 0 if factors is None else len(self.mine)

    def allocate(self, like: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        if not self.divided:
            return self.stacks.allocate() if self.solved else ([], [])
        self._inputs = Packing.cut([like.new_empty(sum(self.entries))], self.packings)
        return self._inputs, []

    def gather(self) -> Generator[None, None, tuple[list[Tensor], list[Tensor]]]:
        """(whole tensors that this rank computes with, their stacks), from the pieces that `allocate` gave."""
        flat, all_leave = self._inputs.parts[0], len(self.leaving) == len(self.members)
        pieces = [self._inputs[k] for k in self.leaving] if self.scaled or not all_leave else []
        if not all_leave:  # other replicas send the rest
            flat = torch.cat([x.reshape(-1) for x in pieces]) if pieces else flat.new_empty(0)
        message = self._with_exponents(flat, pieces) if self.scaled else flat.to(self.dtype)
        del flat, pieces, self._inputs
        message = torch.cat([message] * len(self.row)) if self.everywhere else message
        arrived, pending = self.wire.swap(message, self.sent, self.received, self.group)
        del message
        yield
        pending.wait()
        if self.solved is None:
            return [], []
        wholes, stacks = self.stacks.allocate(self.dtype)
        factors = self._same_scale(arrived) if self.scaled else None
        for part, whole, factor in self._moves(arrived, sorted(self.row), stacks, wholes, factors):
            if factor is None:
                whole.copy_(part)
            else:
                torch.mul(part, factor, out=whole)
        return wholes, stacks

    def _with_exponents(self, flat: Tensor, pieces: list[Tensor]) -> Tensor:
        """For each rank its pieces in float16, scaled to largest entries near 2^TOP, then their exponents."""
        full = pieces if all(self.entries) else [x if x.numel() else x.new_zeros(1) for x in pieces]
        largest = torch.stack(torch._foreach_norm(full, inf))
        exponents = torch.frexp(largest).exponent
        shift = torch.where(largest > 0, TOP - exponents, 0)
        half = shift // 2  # 2^shift may overflow for subnormal entries: multiply twice
        rows = Rows.of(self.cache, "pieces", range(len(pieces)), pieces)
        for power in (half, shift - half):
            factors = torch.ldexp(torch.ones_like(largest), power)
            flat = (flat.view(-1, rows.length) * rows.spread(factors)).view(-1)
        codes = torch.where(largest > 0, exponents, ZERO_EXPONENT).to(self.dtype)
        messages = [self.leaving] if self.everywhere else [ks for ks in self.going if ks]
        sizes = [sum(self.entries[k] for k in ks) for ks in messages]
        parts = flat.to(self.dtype).split_with_sizes(sizes)
        ends = codes.split_with_sizes([len(ks) for ks in messages])
        return torch.cat([x for pair in zip(parts, ends, strict=True) for x in pair])

    def _same_scale(self, arrived: Tensor) -> Tensor:
        """(rank, member): powers of two that give the pieces of a matrix the scale of its largest one.

        From the exponents at the end of each rank's message.
        """
        count = len(self.mine)
        if self.runs:
            messages = arrived.view(len(self.row), -1)
            exponents = messages.narrow(1, messages.shape[1] - count, count).float()
        else:
            parts = arrived.split_with_sizes([size for size in self.received if size])
            exponents = torch.stack([x.narrow(0, len(x) - count, count) for x in parts]).float()
        return torch.exp2((exponents - exponents.amax(0)).clamp(min=-40.0)).to(self.dtype)
