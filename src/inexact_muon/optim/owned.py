"""Directions that are computed once, by the rank that owns a matrix: pieces go there and come back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

import torch
from torch import Tensor

from inexact_muon.optim.assembly import Assembly, Directions, Run, equations, scaled, uniform_factor
from inexact_muon.optim.batches import Batch
from inexact_muon.optim.collective import on_owners
from inexact_muon.optim.masked import shared_factor
from inexact_muon.optim.rows import Packed, Packing, Rows, packing_of
from inexact_muon.parallel.wire import Pending
from inexact_muon.polar.batching import within

PADDING = 1.1
"""Most bytes of an all-gather, over those of the directions."""

SCRATCH = 2**27
"""Entries of momenta that are updated at once where another rank computes the direction."""


@dataclass(eq=False)
class Owned(Assembly):
    """Each direction is computed once, by the owner, and pieces of it come back.

    With `everywhere` every rank computes all of them, and nothing comes back.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        # Back come this rank's pieces from each owner, and everyone's from this one.
        self.counts = [sum(self.entries[k] for k in ks) for ks in self.owners.values()]
        self.back_counts = [sum(self._piece_sizes(rank)) for rank in self.ranks]
        # An all-gather needs parts of equal size: where it would send much more than there is, each rank sends its own.
        most = max(self.counts)
        self.padded = not self.divided and most * len(self.ranks) <= PADDING * sum(self.counts)
        self.segments = self.padded and min(self.counts) < most
        segments = [*self.owners.values()] if self.segments else [range(len(self.members))]
        self.packings = [packing_of([self.sizes[k] for k in ks]) for ks in segments]
        self.length = gcd(most if self.segments else 0, *self.entries)
        self.lengths = [uniform_factor(m) for m in self.members]
        narrow = torch.finfo(self.members[0].compute_dtype).bits < torch.finfo(self.dtype).bits
        oracle = self.members[0].compute_dtype if narrow else self.dtype
        self.back = torch.promote_types(self.like.dtype, torch.float32) if None in self.lengths else oracle
        self.others = [] if self.divided or self.everywhere else self._others()

    def _others(self) -> list[tuple[Tensor, Batch, int, Packing]]:
        """(indices, members that others own, their entries, packing), in batches of at most SCRATCH entries or one."""
        rows = sorted(set(range(len(self.members))) - set(self.mine))
        batches = []
        for chunk in within(((k, self.entries[k]) for k in rows), SCRATCH):
            index = torch.tensor(chunk).to(self.members[0].piece.device)
            packing = packing_of([self.sizes[k] for k in chunk])
            other = Batch([self.members[k] for k in chunk], route=self)
            batches.append((index, other, sum(self.entries[k] for k in chunk), packing))
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
            scratch = Packing.cut([self.like.new_empty(entries)], [packing])
            equations(other).lmo_inputs(other, scratch)
            equations(other).update_buffers_(other, scratch)

    def directions(self, batch: Batch, inputs: list[Tensor], stacks: list[Tensor], optimizer: Any) -> Run:
        wholes, exact = inputs, None
        if self.divided:
            wholes, stacks = yield from self.gather()
            if self.dtype != self.like.dtype and optimizer.observed:  # what the wire rounds is part of the error
                exact = {id(m.p): x for m, x in (yield from on_owners(self, optimizer.observed, inputs))}
        zs, lengths = optimizer.solve(self.solved, wholes, stacks, exact=exact) if self.solved else ([], [])
        del wholes, stacks
        if self.everywhere:
            whole = zip(batch.members, self.stacks.split(zs), strict=True)
            return scaled(batch, [m.place.take(z, m.place.piece) for m, z in whole], lengths)
        flat, pending = self._return(zs)
        del zs
        yield
        pending.wait()
        return self._scaled(batch, flat, [length or 1.0 for length in self.lengths])

    def _return(self, zs: list[Tensor]) -> tuple[Tensor, Pending]:
        """Send every holder its pieces of the directions; to all if they are whole everywhere."""
        own = sum(self.back_counts) if self.divided else self.back_counts[0]
        size = max(self.counts) if self.padded else own
        flat = self.like.new_empty(size, dtype=self.back)
        if self.divided and self.solved:
            wholes = [] if self.runs else self.stacks.split(zs)
            for pieces, whole, _ in self._moves(flat, self.ranks, zs, wholes):
                pieces.copy_(whole)
        elif self.solved:
            low = 0
            for x in zs if self.stacks.packings else self.stacks.split(zs):
                flat.narrow(0, low, x.numel()).view(x.shape).copy_(x)
                low += x.numel()
        if self.padded:
            return self.wire.gather(flat, self.group)
        message = flat if self.divided else torch.cat([flat] * len(self.ranks))
        return self.wire.swap(message, self.back_counts, self.counts, self.group)

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
        if self.cache.get("decays") != decays:
            by_member = {k: decay for part, decay in zip(batch.parts, decays, strict=True) for k in part.index}
            shared = [by_member[k] for k in range(len(lengths))]
            numbers = [length / factor for length, factor in zip(lengths, shared, strict=True)]
            factors = torch.tensor(numbers, dtype=torch.promote_types(batch.members[0].piece.dtype, torch.float32))
            self.cache |= {"decays": decays, "shared": shared, "factors": factors.to(flat.device)}
        factors, shared, length = self.cache["factors"], self.cache["shared"], self.length
        if length < Rows.SHORTEST:
            return [z * factor for z, factor in zip(self._arrived(flat), factors.unbind(), strict=True)], shared
        if "index" not in self.cache:
            index = torch.zeros(flat.numel() // length, dtype=torch.int64)
            for k, z in enumerate(self._arrived(flat)):
                start = z.storage_offset() // length
                index[start : start + z.numel() // length] = k
            self.cache["index"] = index.to(flat.device)
        spread = factors.index_select(0, self.cache["index"]).unsqueeze(1)
        return self._arrived((flat.view(-1, length) * spread).view(-1)), shared
