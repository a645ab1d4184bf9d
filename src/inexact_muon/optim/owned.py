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
from inexact_muon.optim.batches import Batch, Member
from inexact_muon.optim.masked import shared_factor
from inexact_muon.optim.rows import Packed, Packing, Rows, packing_of
from inexact_muon.optim.stacks import Stacks
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
        self.leaving = [k for k, leaves in enumerate(sends) if leaves]
        self.counts = [
            sum(n for n, m in zip(self.entries, self.members, strict=True) if m.owner == r) for r in self.ranks
        ]
        at = {r: j for row in place.holders for j, r in enumerate(row)}
        own = [m for m in self.members if m.owner == self.me]
        self.back_counts = [sum(prod(m.place.piece_shape(at[r])) for m in own) for r in self.ranks]
        # An all-gather needs parts of equal size: where it would send much more than there is, each rank sends its own.
        self.padded = max(self.counts) * len(self.ranks) <= PADDING * sum(self.counts)
        self.segments = self.padded and not self.divided
        self.row = gcd(max(self.counts) if self.segments else 0, *self.entries)
        owners = [[k for k, m in enumerate(self.members) if m.owner == r] for r in self.ranks if self.segments]
        self.packings = [packing_of([self.sizes[k] for k in ks]) for ks in owners] or [packing_of(self.sizes)]
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

    def _others(self) -> list[tuple[Tensor, Batch, int, Packing]]:
        """(indices, members that others own, their entries, packing), in batches of at most SCRATCH entries or one."""
        rows = [(k, m) for k, m in enumerate(self.members) if m.owner != self.me]
        batches = []
        for chunk in within((((k, m), m.p.numel()) for k, m in rows), SCRATCH):
            index = torch.tensor([k for k, _ in chunk]).to(self.members[0].piece.device)
            packing = packing_of([self.sizes[k] for k, _ in chunk])
            members = [m for _, m in chunk]
            batches.append((index, Batch(members, route=self), sum(m.p.numel() for m in members), packing))
        return batches

    def prepared_here(self, batch: Batch) -> Batch:
        """Of parameters that are whole on every rank, those that this one owns."""
        if self.divided or self.everywhere:
            return batch
        if self.solved is None:
            return Batch([], flags=batch.flags)
        if batch.flags is not None:
            self.solved.flags = replace(batch.flags, vector=batch.flags.vector.narrow(0, self.mine[0], len(self.mine)))
        return self.solved

    def update_buffers_(self, batch: Batch, inputs: Sequence[Tensor]) -> None:
        """Of those that others own, a few at a time: their inputs are not needed for anything else."""
        own = self.prepared_here(batch)
        equations(own).update_buffers_(own, inputs)
        for index, other, entries, packing in self.others:
            if batch.flags is not None:
                other.flags = replace(batch.flags, vector=batch.flags.vector.index_select(0, index))
            flat = other.members[0].buffers[0].new_empty(entries)
            scratch = Packing.cut([flat], [packing])
            equations(other).lmo_inputs(other, scratch)
            equations(other).update_buffers_(other, scratch)

    def allocate(self, like: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """(LMO inputs of `prepared_here`, uninitialised; stacks of whole ones)."""
        if not self.divided:
            return self.solved.stacks.allocate() if self.solved else ([], [])  # type: ignore[union-attr]
        self._inputs = Packing.cut([like.new_empty(sum(self.entries))], self.packings)
        return self._inputs, []

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
        flat, all_leave = self._inputs.parts[0], len(self.leaving) == len(self.members)
        pieces = [self._inputs[k] for k in self.leaving] if self.scaled or not all_leave else []
        if not all_leave:  # other replicas send the rest
            flat = torch.cat([x.reshape(-1) for x in pieces]) if pieces else flat.new_empty(0)
        message = self._with_exponents(flat, pieces) if self.scaled else flat.to(self.dtype)
        del flat, pieces, self._inputs
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

    def _with_exponents(self, flat: Tensor, pieces: list[Tensor]) -> Tensor:
        """For each rank its pieces in float16, scaled to largest entries near 2^TOP, then their exponents."""
        full = pieces if all(self.entries) else [x if x.numel() else x.new_zeros(1) for x in pieces]
        largest = torch.stack(torch._foreach_norm(full, inf))
        exponents = torch.frexp(largest).exponent
        shift = torch.where(largest > 0, TOP - exponents, 0)
        half = shift // 2  # 2^shift may overflow for subnormal entries: multiply twice
        for power in (half, shift - half):
            factors = torch.ldexp(torch.ones_like(largest), power)
            rows = Rows.of(self.scales, "pieces", range(len(pieces)), pieces)
            flat = (flat.view(-1, rows.length) * rows.spread(factors)).view(-1)
        codes = torch.where(largest > 0, exponents, ZERO_EXPONENT).to(self.dtype)
        numbers = [len(sent) for sent in self.outgoing if sent] if not self.everywhere else [len(codes)]
        sizes = [sum(n for n, _ in sent) for sent in self.outgoing if sent][: len(numbers)]
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
            packed = self.solved is not None and self.solved.stacks.packings  # type: ignore[union-attr]
            self._copy_flat(zs if packed else self._split(zs), flat)
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

    def _arrived(self, flat: Tensor) -> Packed:
        """The pieces of all members, in their order: by owner, in segments of equal size if they are padded."""
        if not self.segments:
            return Packing.cut([flat], self.packings)
        segments = zip(flat.view(len(self.ranks), -1).unbind(), self.counts, strict=True)
        return Packing.cut([segment.narrow(0, 0, count) for segment, count in segments], self.packings)

    def _scaled(self, batch: Batch, flat: Tensor, lengths: list[float]) -> Directions:
        """The pieces of `flat`; on an accelerator times length / -decay in the dtype of W, by one operation."""
        if batch.flags is None or batch.staged:
            return self._arrived(flat), lengths
        decays = [shared_factor(part.group) for part in batch.parts]
        if self.scales.get("decays") != decays:
            by_member = {k: decay for part, decay in zip(batch.parts, decays, strict=True) for k in part.index}
            shared = [by_member[k] for k in range(len(lengths))]
            numbers = [length / factor for length, factor in zip(lengths, shared, strict=True)]
            factors = torch.tensor(numbers, dtype=torch.promote_types(batch.members[0].piece.dtype, torch.float32))
            self.scales |= {"decays": decays, "shared": shared, "factors": factors.to(flat.device)}
        factors, shared, length = self.scales["factors"], self.scales["shared"], self.row
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
