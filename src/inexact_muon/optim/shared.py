"""The step of parameters shared among ranks: agreement before the step, and Algorithm 1 on the pieces.

Each rank works on its own piece of a parameter, gradient and state; only the oracle needs whole matrices, which the
strategy in `parallel` assembles. All ranks that hold a parameter must send the same messages in the same order:
whether it has a gradient and whether that is finite is agreed on by one reduction per set of ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeGuard

import torch
from torch import Tensor

from inexact_muon.dtensors import is_fake, local, piece_of, pieces
from inexact_muon.lmo._base import sides
from inexact_muon.optim.adamw import adamw_, by_options
from inexact_muon.optim.algorithm import lmo_inputs, step_factor, update_buffers_, update_weights_
from inexact_muon.optim.batches import Batch, Member
from inexact_muon.optim.finite import Flags, is_host_readable
from inexact_muon.optim.groups import Groups
from inexact_muon.optim.telemetry import oracle_flops
from inexact_muon.parallel.place import Place
from inexact_muon.parallel.shares import Direction, Share, assign, interleaved
from inexact_muon.parallel.strategies import run
from inexact_muon.parallel.team import Team
from inexact_muon.polar.batching import limit_on, within, work

Entry = tuple[dict[str, Any], Tensor]
Chunk = list[tuple[Batch, list[Tensor], list[Share]]]
"""(batch, LMO inputs of its members, their shares) of parameters that are processed together."""

PRESENT, MISSING, BAD = range(3)
"""Columns of a gradient's status; BAD is 1 if it is not finite and 2 if it is sparse."""


@dataclass
class Shared:
    """The distributed step.

    Attributes:
        entries: (group, parameter) of this step whose gradients the ranks have agreed on.
        finite: id of a parameter -> whether its gradient is finite; a tensor of one element on an accelerator.
    """

    team: Team
    entries: list[Entry] = field(default_factory=list)
    finite: dict[int, bool | Tensor] = field(default_factory=dict)
    _compared: set[Any] = field(default_factory=set)
    _patterns: dict[Any, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)

    def handles(self, p: Tensor) -> bool:
        """Whether a parameter is a DTensor, or replicated on other ranks in a way that the strategy uses."""
        return hasattr(p, "device_mesh") or self.team.place(p).shared

    def agree(self, optimizer: Groups, entries: Sequence[Entry]) -> list[Entry]:
        """Agree on the shared entries and keep them for `step`; returns the others.

        Raises:
            ValueError: on all ranks, if parameters differ, or only some ranks have a gradient for one.
        """
        names = {id(p): name for name, p, _ in optimizer.named()}
        self.entries, self.finite = [], {}
        for place, some in self._by_ranks(entries).values():
            found = self._agree_on_finite(optimizer, place, some, names)
            self.finite.update(zip((id(p) for _, p in some), found, strict=True))
            self.entries += [(group, p) for group, p in some if p.grad is not None]
        if optimizer.on_nonfinite == "raise" and not all(map(bool, self.finite.values())):
            name = next(names[key] for key, finite in self.finite.items() if not bool(finite))
            raise ValueError(f"the gradient of parameter {name} is not finite; nothing was changed")
        return [(group, p) for group, p in entries if not self.handles(p)]

    def _by_ranks(self, entries: Iterable[Entry]) -> dict[Any, tuple[Place, list[Entry]]]:
        """Entries grouped by the ranks that hold them, in an order that is equal on all ranks."""
        found: dict[Any, tuple[Place, list[Entry]]] = {}
        for group, p in entries:
            if self.handles(p):
                place = self.team.place(p)
                found.setdefault((place.ranks, len(place.groups)), (place, []))[1].append((group, p))
        return dict(sorted(found.items()))

    def _agree_on_finite(
        self, optimizer: Groups, place: Place, some: Sequence[Entry], names: dict[int, str]
    ) -> list[bool] | list[Tensor]:
        """Whether each gradient is finite on all ranks, by one reduction.

        On an accelerator the host checks the result only for a new pattern of missing gradients.
        """
        key = tuple(id(p) for _, p in some)
        if (place.ranks, key) not in self._compared:
            lines = [
                f"strategy {self.team.strategy}",
                *(_describe(names[id(p)], p, group, optimizer) for group, p in some),
            ]
            self.team.compare(place, lines, some[0][1].device)
            self._compared.add((place.ranks, key))
        grads = [p.grad for _, p in some]
        pattern = (place.ranks, key, tuple(None if g is None else g.layout for g in grads))
        new = pattern not in self._patterns
        if new:
            self._patterns[pattern] = _presence(grads, some[0][1].device)
        present, sparse, dense = self._patterns[pattern]
        given = [(g, optimizer.dtype_of(p)) for g, (_, p) in zip(grads, some, strict=True) if _dense(g)]
        if given:
            bad = (~Flags.of(*zip(*((local(g), dtype) for g, dtype in given), strict=True)).vector).to(torch.uint8)
            sparse = bad if len(given) == len(grads) else sparse.scatter(0, dense, bad)
        reduced = self.team.wire.reduce(torch.column_stack((present, sparse)), place.groups, largest=True)
        readable = is_host_readable(reduced)
        if (new or readable) and not is_fake(reduced):
            _check(reduced.tolist(), some, names)
        return (
            [not bad for bad in reduced[:, BAD].tolist()] if readable else list((reduced.select(1, BAD) == 0).unbind())
        )

    def step(self, optimizer: Groups) -> None:
        """Update the agreed entries."""
        lmo_entries = [(group, p) for group, p in self.entries if group["algorithm"] == "lmo"]
        strategy, wire = self.team.strategy, self.team.wire
        runs = (
            (chunk, run(strategy, [s for *_, shares in chunk for s in shares], optimizer.directions, wire))
            for chunk in self._chunks(optimizer, lmo_entries)
        )
        for chunk, found in interleaved(runs):
            given = iter(found)
            for batch, inputs, shares in chunk:
                directions = [next(given) for _ in shares]
                apply_directions_(optimizer, batch, shares, directions)
                update_buffers_(batch, inputs)
        self.adamw(optimizer, [(group, p) for group, p in self.entries if group["algorithm"] == "adamw"])

    def _chunks(self, optimizer: Groups, lmo_entries: Sequence[Entry]) -> Iterator[Chunk]:
        """Chunks within the memory limit, one set of ranks after another; each is started when it is requested."""
        items = []
        for group, p in lmo_entries:
            place, shapes, ball = self.team.place(p), optimizer.view(group).shapes(p.shape), optimizer.ball(group)
            cost = float(sum(oracle_flops(ball, shape, p.device) for shape in shapes if 0 not in shape) or p.numel())
            # If ranks share the work, most expensive first; otherwise equal shapes are adjacent.
            order = (place.ranks, -cost * place.shared, group["ball"], min(sides(shapes[0])), shapes[0])
            items.append((order, cost, place, group, p))
        items.sort(key=lambda item: item[0])
        owners = assign([(place, cost) for _, cost, place, _, _ in items])
        given = [(group, p, place, owner) for (*_, place, group, p), owner in zip(items, owners, strict=True)]
        for ranks, some in groupby(given, key=lambda item: item[2].ranks):
            limit = limit_on(given[0][1].device, optimizer.memory_limit) * len(ranks)
            for chunk in within(((item, work(item[1])) for item in some), limit):
                yield self._start(optimizer, chunk)

    def _start(self, optimizer: Groups, items: Sequence[tuple[dict[str, Any], Tensor, Place, int]]) -> Chunk:
        """LMO inputs of these parameters; those known not to be finite are counted and left out."""
        kinds: dict[Any, list[tuple[Member, Share, bool | Tensor]]] = {}
        for group, p, place, owner in items:
            finite = self.finite[id(p)]
            state = optimizer.state_of(p, ("momentum_buffer",))
            if finite is False:
                state["skipped"] += 1
                continue
            ball, length, view = optimizer.ball(group), optimizer.length(group), optimizer.view(group)
            member = Member(*pieces(p, state), group, ball, length, view)
            wanted = id(p) in optimizer.wanted and bool(finite)
            share = Share(member.p, place, ball, view, group["turn"], length.needs_dual, wanted, owner, id(p))
            kinds.setdefault(member.kind, []).append((member, share, finite))
        chunk: Chunk = []
        for some in kinds.values():
            batch = Batch([member for member, _, _ in some], unstacked=True)
            on = [finite for _, _, finite in some if isinstance(finite, Tensor)]
            batch.flags = Flags.from_vector(torch.stack(on)) if on else None
            inputs, _ = lmo_inputs(batch)
            for (_, share, _), m in zip(some, inputs, strict=True):
                share.m = m
            chunk.append((batch, inputs, [share for _, share, _ in some]))
        return chunk

    def adamw(self, optimizer: Groups, entries: Sequence[Entry]) -> None:
        """AdamW on this rank's pieces."""
        given = []
        for group, p in entries:
            state = optimizer.state_of(p, ("exp_avg", "exp_avg_sq"))
            if self.finite[id(p)] is False:
                state["skipped"] += 1
            else:
                given.append((*pieces(p, state), group, p))
        for some in by_options([(x, state, group) for x, state, group, _ in given]):
            sources = [next(p for x, _, _, p in given if x is entry[0]) for entry in some]
            keys = [id(p) if self.team.place(p).copy == 0 else 0 for p in sources]  # one replica records sizes
            on = [self.finite[id(p)] for p in sources]
            flags = None if isinstance(on[0], bool) else Flags.from_vector(torch.stack(on))  # type: ignore[arg-type]
            adamw_(some, flags, optimizer.telemetry, keys)

    def reduce_samples(self, optimizer: Groups) -> None:
        """Store the samples of this step, reduced over the ranks; identical on all of them."""
        telemetry = optimizer.telemetry
        for place, some in self._by_ranks(self.entries).values():
            sampled = [p for _, p in some if id(p) in telemetry.chosen]
            if sampled:
                rows = [telemetry.partial_sums.get(id(p), [0.0] * 6) for p in sampled]
                sums = torch.tensor(rows, dtype=torch.float64, device=sampled[0].device)
                for p, total in zip(sampled, self.team.wire.reduce(sums, place.groups).tolist(), strict=True):
                    telemetry.store(p.numel(), id(p), total)


def apply_directions_(
    optimizer: Groups, batch: Batch, shares: Sequence[Share], found: Sequence[Direction], sole: bool = False
) -> None:
    """W <- (1 - lr decay) W - lr length z on this rank's pieces; measures what is sampled.

    Args:
        sole: no other rank updates these pieces. Otherwise only the first replica records update sizes.
    """
    zs, lengths = [], []
    for member, share, direction in zip(batch.members, shares, found, strict=True):
        z, length = with_length(member, share, direction)
        if share.place.source is not None:
            z = piece_of(z, share.place.source)
        if direction.observed is not None:
            optimizer.observe(share.key, share.ball, share.view, *direction.observed, direction.estimable)
        if share.key in optimizer.telemetry.chosen and (sole or share.place.copy == 0):
            optimizer.telemetry.record_sizes(share.key, z, member.p, float(member.group["lr"]) * length)
        if batch.flags is not None:  # `update_weights_` then takes z scaled, up to the factor -decay
            left = -member.decay or 1.0
            z, length = z.to(member.p.dtype) * (length / left), left
        zs.append(z)
        lengths.append(length)
    update_weights_(batch, zs, lengths)


def with_length(member: Member, share: Share, direction: Direction) -> tuple[Tensor, float]:
    """(z, step length); the length is 1 if matrices have different lengths, which are then applied to z."""
    z = direction.z
    duals: Sequence[Tensor | None] = direction.duals or [None] * len(direction.shapes)
    if not z.numel():
        return z, 1.0
    factors = [step_factor(member, shape, dual) for shape, dual in zip(direction.shapes, duals, strict=True)]
    full = [factor for factor, shape in zip(factors, direction.shapes, strict=True) if 0 not in shape]
    if all(not isinstance(factor, Tensor) and factor == full[0] for factor in full):
        return z, direction.factor * (full[0] if full else 1.0)  # type: ignore[return-value]
    wide = z.to(torch.promote_types(z.dtype, torch.float32))  # avoids overflow in half precision
    blocks = share.blocks(wide)
    if [tuple(block.shape) for block in blocks] == direction.shapes or not any(isinstance(f, Tensor) for f in factors):
        scaled = share.joined([block * factor for block, factor in zip(blocks, factors, strict=True)], z.shape)
    else:  # a matrix may span several blocks of the piece: cut the factors in the same way
        spread = [wide.new_ones(shape) * f for shape, f in zip(direction.shapes, factors, strict=True)]
        scaled = wide * share.place.take(share.view.join(spread, share.place.shape), share.place.piece)
    return scaled, direction.factor


def _dense(g: Tensor | None) -> TypeGuard[Tensor]:
    return g is not None and g.layout == torch.strided


def _presence(grads: Sequence[Tensor | None], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """(columns PRESENT and MISSING, column BAD of sparse gradients, indices of dense ones), transferred once."""
    present = torch.tensor([(g is not None, g is None) for g in grads], dtype=torch.uint8)
    sparse = torch.tensor([0 if g is None or _dense(g) else 2 for g in grads], dtype=torch.uint8)
    dense = torch.tensor([k for k, g in enumerate(grads) if _dense(g)], dtype=torch.int64)
    return present.to(device), sparse.to(device), dense.to(device)


def _describe(name: str, p: Tensor, group: dict[str, Any], optimizer: Groups) -> str:
    """Description of a parameter on which ranks must agree."""
    what = f"{group['algorithm']} {group['ball']} {group['view']}" if group["algorithm"] == "lmo" else "adamw"
    dtypes = f"{p.dtype}, state {optimizer.dtype_of(p)}".replace("torch.", "")
    return f"{name} of shape {tuple(p.shape)}, {dtypes}, {what}"


def _check(reduced: Sequence[Sequence[int]], some: Sequence[Entry], names: dict[int, str]) -> None:
    """Validate that ranks agree, before anything is changed."""
    for (_, p), status in zip(some, reduced, strict=True):
        name = f"parameter {names[id(p)]} of shape {tuple(p.shape)}"
        if status[BAD] == 2:
            raise TypeError(f"sparse gradients are not supported, got one for {name} on some rank; nothing was changed")
        if status[PRESENT] and status[MISSING]:
            raise ValueError(
                f"{name} has a gradient on some ranks and none on others; nothing was changed: give it one on all "
                "ranks (zeros suffice), or on none"
            )
