"""Directions that are computed once, by the rank that owns a matrix: pieces go there and come back.

A route for a batch gets this rank's pieces of the LMO inputs and returns its pieces of the directions. It yields while
messages are in flight, so that the pieces of the next batch travel while this one's products run, and its directions
while the next one's do. Every rank of the process group makes the same calls in the same order.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from math import gcd, inf, prod
from typing import Any

import torch
from torch import Tensor

from inexact_muon.optim.algorithm import step_factor
from inexact_muon.optim.assembly import Assembly, Directions, equations, scaled
from inexact_muon.optim.batches import Batch, Member, Stacks
from inexact_muon.optim.masked import shared_factor
from inexact_muon.optim.rows import Rows, unflattened
from inexact_muon.optim.stages.step import advance_
from inexact_muon.parallel.wire import Pending, Wire
from inexact_muon.polar.batching import within

Run = Generator[None, None, Directions]

PADDING = 1.1
"""Most bytes of an all-gather, over those of the directions."""

SCRATCH = 2**27
"""Entries of momenta that are updated at once where another rank computes the direction."""

TOP = 14
"""Exponent of the largest entries in float16: the range above 2^-24 is 2^38 wide."""

ZERO_EXPONENT = -2000
"""Exponent of a piece of zeros; float16 has all integers up to 2048."""


@dataclass(eq=False)
class Owned(Assembly):
    """Each direction is computed once, by the owner: pieces go to it, and pieces of the direction come back.

    With `everywhere` every rank gathers and computes all of them, and nothing comes back.

    Attributes:
        members: in the order of their owners, equal on all ranks.
        group: the process group of all ranks that hold them.
        dtype: of the pieces on the wire. Float16 pieces of wider momenta are scaled by powers of two to the range of
            float16, and the exponents follow them in the same message.
    """

    members: list[Member]
    group: Any
    wire: Wire
    dtype: torch.dtype
    everywhere: bool = False
    scales: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        place, like = self.members[0].place, self.members[0].buffers[0]
        self.ranks, self.me, self.divided = place.ranks, place.me, len(place.pieces) > 1
        self.mine = [k for k, m in enumerate(self.members) if self.everywhere or m.owner == self.me]
        here = [self.members[k] for k in self.mine]
        self.solved = Batch(here, Stacks(here[0].ball, [m.whole for m in here], like)) if here else None
        self.outgoing, self.incoming = self._routes()
        self.scaled = self.dtype == torch.float16 and torch.finfo(like.dtype).bits > 16
        self.sent, self.received = (
            [sum(size + self.scaled for size, _ in pieces) for pieces in way] for way in (self.outgoing, self.incoming)
        )
        self.sizes = [m.place.size for m in self.members]
        self.entries = [prod(size) for size in self.sizes]
        sends = [self.everywhere or m.place.copy_of(m.owner) == place.copy for m in self.members]
        self.order = sorted(range(len(sends)), key=lambda k: not sends[k])
        self.leaving = self.order[: sum(sends)]
        self.counts = [
            sum(n for n, m in zip(self.entries, self.members, strict=True) if m.owner == r) for r in self.ranks
        ]
        at = {r: j for row in place.holders for j, r in enumerate(row)}
        own = [m for m in self.members if m.owner == self.me]
        self.back_counts = [sum(prod(m.place.piece_shape(at[r])) for m in own) for r in self.ranks]
        # An all-gather needs parts of equal size: where it would send much more than there is, each rank sends its own.
        self.padded = max(self.counts) * len(self.ranks) <= PADDING * sum(self.counts)
        self.lengths = [uniform_factor(m) for m in self.members]
        narrow = torch.finfo(self.members[0].compute_dtype).bits < torch.finfo(self.dtype).bits
        oracle = self.members[0].compute_dtype if narrow else self.dtype
        wide = torch.promote_types(like.dtype, torch.float32)
        self.back = wide if None in self.lengths else oracle
        if self.solved is not None and not self.divided:
            self.solved = replace(self.solved, route=self)
        self.others = [] if self.divided or self.everywhere else self._others()
        self.regular = self._is_regular()
        self.runs = self._ends() if self.regular and self.solved else []

    def _routes(self) -> tuple[list[list[tuple[int, int]]], list[list[tuple[int, int]]]]:
        """For each rank the (entries, member) that it gets from this one, and those that this one gets from it."""
        outgoing: list[list[tuple[int, int]]] = [[] for _ in self.ranks]
        incoming: list[list[tuple[int, int]]] = [[] for _ in self.ranks]
        at = {rank: i for i, rank in enumerate(self.ranks)}
        for k, m in enumerate(self.members):
            place = m.place
            targets = place.row if self.everywhere else (m.owner,)
            if self.divided and place.me in place.holders[place.copy_of(targets[0])]:
                for rank in targets:
                    outgoing[at[rank]].append((prod(place.size), k))
                if place.me in targets:
                    for j, rank in enumerate(place.row):
                        incoming[at[rank]].append((prod(place.piece_shape(j)), k))
        return outgoing, incoming

    def _others(self) -> list[tuple[Tensor, Batch]]:
        """(indices, members that other ranks own), in batches of at most SCRATCH entries or one."""
        rows = [(k, m) for k, m in enumerate(self.members) if m.owner != self.me]
        chunks = within((((k, m), m.p.numel()) for k, m in rows), SCRATCH)
        device = self.members[0].piece.device
        return [(torch.tensor([k for k, _ in c]).to(device), Batch([m for _, m in c], route=self)) for c in chunks]

    def prepared_here(self, batch: Batch) -> Batch:
        """Of parameters that are whole on every rank, those that this one owns."""
        if self.divided or self.everywhere:
            return batch
        if self.solved is None:
            return Batch([], flags=batch.flags)
        if batch.flags is not None:
            self.solved.flags = batch.flags.narrow(self.mine[0], len(self.mine))
        return self.solved

    def update_buffers_(self, batch: Batch, inputs: Sequence[Tensor]) -> None:
        """Of those that others own, a few at a time: their inputs are not needed for anything else."""
        own = self.prepared_here(batch)
        equations(own).update_buffers_(own, inputs)
        for index, other in self.others:
            if batch.flags is not None:
                other.flags = replace(batch.flags, vector=batch.flags.vector.index_select(0, index))
            scratch = [torch.empty_like(m.buffers[0]) for m in other.members]
            equations(other).lmo_inputs(other, scratch)
            equations(other).update_buffers_(other, scratch)
            if other.members[0].before:
                advance_(other)

    def allocate(self, like: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """(LMO inputs of `prepared_here`, uninitialised; stacks of whole ones). Pieces to send lie in their order."""
        if not self.divided:
            return self.solved.stacks.allocate() if self.solved else ([], [])  # type: ignore[union-attr]
        flat = like.new_empty(sum(self.entries))
        pieces = self._cut(flat, self.order)
        self._pieces = pieces[: len(self.leaving)]
        self._flat = flat.narrow(0, 0, sum(self.entries[k] for k in self.leaving))
        inputs = dict(zip(self.order, pieces, strict=True))
        return [inputs[k] for k in range(len(self.entries))], []

    def _cut(self, flat: Tensor, order: Sequence[int]) -> list[Tensor]:
        """The pieces of members that lie one after another in this order, as views."""
        if all(self.entries):  # by one call; it does not keep the shapes of empty ones
            return list(unflattened(flat, [self.members[k].piece for k in order]))
        parts = torch.split(flat, [self.entries[k] for k in order])
        return [x.view(self.sizes[k]) for k, x in zip(order, parts, strict=True)]

    def directions(self, batch: Batch, inputs: list[Tensor], stacks: list[Tensor], optimizer: Any) -> Run:
        """Directions of this rank's pieces."""
        wholes, exact = inputs, None
        if self.divided:
            wholes, stacks = yield from self.gather()
            if self.dtype != self.members[0].buffers[0].dtype and optimizer.observed:
                exact = yield from self._exact(inputs, optimizer)
        zs, lengths = optimizer.solve(self.solved, wholes, stacks, exact=exact) if self.solved else ([], [])
        del wholes, stacks
        if self.everywhere:
            assert self.solved is not None
            pieces = [m.place.take(z, m.place.piece) for m, z in zip(batch.members, self._split(zs), strict=True)]
            return scaled(batch, pieces, lengths)
        flat, pending = self._return(zs)
        del zs
        yield
        pending.wait()
        return self._scaled(batch, flat, [length or 1.0 for length in self.lengths])

    def gather(self) -> Generator[None, None, tuple[list[Tensor], list[Tensor]]]:
        """(whole tensors that this rank computes with, their stacks), from the pieces that `allocate` gave."""
        message = self._with_exponents() if self.scaled else self._flat.to(self.dtype)
        self._flat, self._pieces = torch.empty(0), []
        message = torch.cat([message] * len(self.members[0].place.row)) if self.everywhere else message
        arrived, pending = self.wire.swap(message, self.sent, self.received, self.group)
        del message
        yield
        pending.wait()
        if self.solved is None:
            return [], []
        wholes, stacks = self.solved.stacks.allocate(self.dtype)  # type: ignore[union-attr]
        self._assemble(arrived, wholes, stacks)
        return wholes, stacks

    def _exact(self, inputs: Sequence[Tensor], optimizer: Any) -> Generator[None, None, dict[int, Tensor]]:
        """id -> LMO input of the parameters to be measured, as it is: what the wire rounds is part of the error."""
        indices = [k for k, m in enumerate(self.members) if id(m.p) in optimizer.observed]
        if not indices:
            return {}
        members = [self.members[k] for k in indices]
        way = Owned(members, self.group, self.wire, inputs[0].dtype, self.everywhere)
        for k, piece in zip(indices, way.allocate(inputs[0])[0], strict=True):
            piece.copy_(inputs[k])
        wholes, _ = yield from way.gather()
        return {id(members[k].p): whole for k, whole in zip(way.mine, wholes, strict=True)}

    def _with_exponents(self) -> Tensor:
        """For each rank its pieces in float16, scaled to largest entries near 2^TOP, then their exponents."""
        pieces = self._pieces if all(self.entries) else [x if x.numel() else x.new_zeros(1) for x in self._pieces]
        largest = torch.stack(torch._foreach_norm(pieces, inf))
        exponents = torch.frexp(largest).exponent
        shift = torch.where(largest > 0, TOP - exponents, 0)
        half = shift // 2  # 2^shift may overflow for subnormal entries: multiply twice
        flat = self._flat
        for power in (half, shift - half):
            factors = torch.ldexp(torch.ones_like(largest), power)
            rows = Rows.of(self.scales, "pieces", range(len(self._pieces)), self._pieces)
            flat = (flat.view(-1, rows.length) * rows.spread(factors)).view(-1)
        codes = torch.where(largest > 0, exponents, ZERO_EXPONENT).to(self.dtype)
        numbers = [len(pieces) for pieces in self.outgoing if pieces] if not self.everywhere else [len(codes)]
        sizes = [sum(n for n, _ in pieces) for pieces in self.outgoing if pieces][: len(numbers)]
        parts = zip(torch.split(flat.to(self.dtype), sizes), torch.split(codes, numbers), strict=True)
        return torch.cat([x for pair in parts for x in pair])

    def _split(self, zs: list[Tensor]) -> list[Tensor]:
        return self.solved.stacks.split(zs) if self.solved else []  # type: ignore[union-attr]

    def _return(self, zs: list[Tensor]) -> tuple[Tensor, Pending]:
        """Send every holder its pieces of the directions; to all if they are whole everywhere."""
        like = self.members[0].buffers[0]
        if not self.divided:
            own = self.counts[self.ranks.index(self.me)]
            flat = like.new_empty(max(self.counts) if self.padded else own, dtype=self.back)
            self._copy_flat(self._split(zs), flat)
            if self.padded:
                return self.wire.gather(flat, self.group)
            ranks = len(self.ranks)
            return self.wire.swap(torch.cat([flat] * ranks), [own] * ranks, self.counts, self.group)
        flat = like.new_empty(sum(self.back_counts), dtype=self.back)
        if self.regular and self.solved is not None:
            for pieces, whole, axes in self._runs(flat, zs):
                pieces.permute(axes).copy_(whole)
        elif self.solved is not None:
            at = {r: j for row in self.members[0].place.holders for j, r in enumerate(row)}
            pairs = list(zip(self.solved.members, self._split(zs), strict=True))
            self._copy_flat([m.place.take(z, at[r]) for r in self.ranks for m, z in pairs], flat)
        return self.wire.swap(flat, self.back_counts, self.counts, self.group)

    def _copy_flat(self, tensors: Sequence[Tensor], flat: Tensor) -> None:
        low = 0
        for x in tensors:
            flat.narrow(0, low, x.numel()).view(x.shape).copy_(x)
            low += x.numel()

    def _arrived(self, flat: Tensor) -> list[Tensor]:
        """The pieces of all members, in their order: by owner."""
        if self.divided or not self.padded:
            return self._cut(flat, range(len(self.members)))
        pieces, low, segment = [], 0, flat.numel() // len(self.ranks)
        for k, m in enumerate(self.members):
            if k == 0 or self.members[k - 1].owner != m.owner:
                low = self.ranks.index(m.owner) * segment
            pieces.append(flat.narrow(0, low, self.entries[k]).view(self.sizes[k]))
            low += self.entries[k]
        return pieces

    def _scaled(self, batch: Batch, flat: Tensor, lengths: list[float]) -> Directions:
        """The pieces of `flat`; on an accelerator times length / -decay in the dtype of W, by one operation."""
        if batch.flags is None or batch.staged:
            return self._arrived(flat), lengths
        shared = [shared_factor(m.group) for m in batch.members]
        numbers = [length / factor for length, factor in zip(lengths, shared, strict=True)]
        dtype = torch.promote_types(batch.members[0].piece.dtype, torch.float32)
        if self.scales.get("numbers") != numbers:
            self.scales |= {"numbers": numbers, "tensor": torch.tensor(numbers, dtype=dtype).to(flat.device)}
        factors = self.scales["tensor"]
        length = gcd(max(self.counts) if self.padded and not self.divided else 0, *self.entries)
        if length < Rows.SHORTEST:
            return [z * factor for z, factor in zip(self._arrived(flat), factors.unbind(), strict=True)], shared
        if "index" not in self.scales:
            index = torch.zeros(flat.numel() // length, dtype=torch.int64)
            for k, z in enumerate(self._arrived(flat)):
                start = z.storage_offset() // length
                index[start : start + z.numel() // length] = k
            self.scales["index"] = index.to(flat.device)
        spread = factors.index_select(0, self.scales["index"]).unsqueeze(1)
        return self._arrived((flat.view(-1, length) * spread).view(-1)), shared


def uniform_factor(member: Member) -> float | None:
    """The factor of lr for all matrices of a member; None if they differ or depend on values."""
    if member.length.needs_dual:
        return None
    factors = {float(step_factor(member, shape, None)) for shape in member.whole.shapes if 0 not in shape}
    return factors.pop() if len(factors) == 1 else None if factors else 1.0
