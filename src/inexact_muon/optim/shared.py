"""The step of parameters that several ranks hold: what the ranks agree on before it, and Algorithm 1 on their pieces.

A rank works on its own piece of each parameter, gradient and state; only the oracle needs whole matrices, and the
strategy of `parallel` brings these together. Every rank that holds a parameter sends the same messages in the same
order: whether there is a gradient and whether it is finite is decided together, by one reduction for each set of ranks.
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
from inexact_muon.optim.algorithm import momentum, move_, reach, remember_
from inexact_muon.optim.batches import Batch, Member
from inexact_muon.optim.finite import Flags, hosted
from inexact_muon.optim.groups import Groups
from inexact_muon.optim.telemetry import oracle_flops
from inexact_muon.parallel.place import Place
from inexact_muon.parallel.shares import Direction, Share, assign, interleaved
from inexact_muon.parallel.strategies import run
from inexact_muon.parallel.team import Team
from inexact_muon.polar.batching import limit_on, within, work

Entry = tuple[dict[str, Any], Tensor]
Chunk = list[tuple[Batch, list[Tensor], list[Share]]]
"""(batch, what the ball sees of its members, their shares) of parameters that are worked on together."""

THERE, MISSING, BAD = range(3)
"""What a rank says about a gradient; bad is 1 where it is not finite and 2 where it is sparse."""


@dataclass
class Shared:
    """What ranks do together.

    Attributes:
        entries: (group, parameter) of this step, with a gradient that ranks agreed on.
        finite: by id of a parameter, whether its gradient is; a tensor of one element on an accelerator.
    """

    team: Team
    entries: list[Entry] = field(default_factory=list)
    finite: dict[int, bool | Tensor] = field(default_factory=dict)
    _compared: set[Any] = field(default_factory=set)
    _patterns: dict[Any, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)

    def holds(self, p: Tensor) -> bool:
        """Whether a parameter is a DTensor, or other ranks hold copies of it that a strategy uses."""
        return hasattr(p, "device_mesh") or self.team.place(p).shared

    def agree(self, optimizer: Groups, entries: Sequence[Entry]) -> list[Entry]:
        """Takes over what ranks share; returns the rest.

        Raises:
            ValueError: on all ranks, if parameters differ, or some have a gradient for one and others have none.
        """
        names = {id(p): name for name, p, _ in optimizer.named()}
        self.entries, self.finite = [], {}
        for place, some in self._sets(entries).values():
            found = self._said(optimizer, place, some, names)
            self.finite.update(zip((id(p) for _, p in some), found, strict=True))
            self.entries += [(group, p) for group, p in some if p.grad is not None]
        if optimizer.on_nonfinite == "raise" and not all(map(bool, self.finite.values())):
            name = next(names[key] for key, finite in self.finite.items() if not bool(finite))
            raise ValueError(f"the gradient of parameter {name} is not finite; nothing was changed")
        return [(group, p) for group, p in entries if not self.holds(p)]

    def _sets(self, entries: Iterable[Entry]) -> dict[Any, tuple[Place, list[Entry]]]:
        """Entries by the ranks that hold them, in an order that all ranks share."""
        found: dict[Any, tuple[Place, list[Entry]]] = {}
        for group, p in entries:
            if self.holds(p):
                place = self.team.place(p)
                found.setdefault((place.ranks, len(place.groups)), (place, []))[1].append((group, p))
        return dict(sorted(found.items()))

    def _said(
        self, optimizer: Groups, place: Place, some: Sequence[Entry], names: dict[int, str]
    ) -> list[bool] | list[Tensor]:
        """Whether the gradient of each is finite on all ranks; what they say travels as one message.

        On an accelerator the host reads it only if this rank has not seen the same gradients missing before.
        """
        key = tuple(id(p) for _, p in some)
        if (place.ranks, key) not in self._compared:
            lines = [f"strategy {self.team.strategy}", *(_line(names[id(p)], p, group, optimizer) for group, p in some)]
            self.team.compare(place, lines, some[0][1].device)
            self._compared.add((place.ranks, key))
        grads = [p.grad for _, p in some]
        pattern = (place.ranks, key, tuple(None if g is None else g.layout for g in grads))
        new = pattern not in self._patterns
        if new:
            self._patterns[pattern] = _patterned(grads, some[0][1].device)
        there, sparse, dense = self._patterns[pattern]
        given = [(g, optimizer.dtype_of(p)) for g, (_, p) in zip(grads, some, strict=True) if _dense(g)]
        if given:
            bad = (~Flags.of(*zip(*((local(g), dtype) for g, dtype in given), strict=True)).vector).to(torch.uint8)
            sparse = bad if len(given) == len(grads) else sparse.scatter(0, dense, bad)
        told = self.team.wire.reduce(torch.column_stack((there, sparse)), place.groups, largest=True)
        if (new or hosted(told)) and not is_fake(told):
            _check(told.tolist(), some, names)
        return [not bad for bad in told[:, BAD].tolist()] if hosted(told) else list((told.select(1, BAD) == 0).unbind())

    def step(self, optimizer: Groups) -> None:
        """One step of the agreed entries."""
        moving = [(group, p) for group, p in self.entries if group["algorithm"] == "lmo"]
        runs = ((chunk, self._run(optimizer, chunk)) for chunk in self._chunks(optimizer, moving))
        for chunk, found in interleaved(runs):
            given = iter(found)
            for batch, seen, shares in chunk:
                directions = [next(given) for _ in shares]
                walk(optimizer, batch, shares, directions)
                remember_(batch, seen)
        self.adamw(optimizer, [(group, p) for group, p in self.entries if group["algorithm"] == "adamw"])

    def _run(self, optimizer: Groups, chunk: Chunk) -> Any:
        return run(
            self.team.strategy, [s for *_, shares in chunk for s in shares], optimizer.directions, self.team.wire
        )

    def _chunks(self, optimizer: Groups, moving: Sequence[Entry]) -> Iterator[Chunk]:
        """What one set of ranks holds after the other, within the memory; each chunk begins when it is asked for."""
        drafts = []
        for group, p in moving:
            place, shapes, ball = self.team.place(p), optimizer.view(group).shapes(p.shape), optimizer.ball(group)
            cost = float(sum(oracle_flops(ball, shape, p.device) for shape in shapes if 0 not in shape) or p.numel())
            # Where ranks share the work the expensive ones go first, else alike ones lie next to each other.
            order = (place.ranks, -cost * place.shared, group["ball"], min(sides(shapes[0])), shapes[0])
            drafts.append((order, cost, place, group, p))
        drafts.sort(key=lambda draft: draft[0])
        owners = assign([(place, cost) for _, cost, place, _, _ in drafts])
        given = [(group, p, place, owner) for (*_, place, group, p), owner in zip(drafts, owners, strict=True)]
        for ranks, some in groupby(given, key=lambda draft: draft[2].ranks):
            limit = limit_on(given[0][1].device, optimizer.memory_limit) * len(ranks)
            for chunk in within(((draft, work(draft[1])) for draft in some), limit):
                yield self._started(optimizer, chunk)

    def _started(self, optimizer: Groups, drafts: Sequence[tuple[dict[str, Any], Tensor, Place, int]]) -> Chunk:
        """The momenta of these parameters; those that are known not to be finite are counted and left out."""
        kinds: dict[Any, list[tuple[Member, Share, bool | Tensor]]] = {}
        for group, p, place, owner in drafts:
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
            batch = Batch([member for member, _, _ in some], loose=True)
            on = [finite for _, _, finite in some if isinstance(finite, Tensor)]
            batch.flags = Flags.given(torch.stack(on)) if on else None
            seen, _ = momentum(batch)
            for (_, share, _), m in zip(some, seen, strict=True):
                share.m = m
            chunk.append((batch, seen, [share for _, share, _ in some]))
        return chunk

    def adamw(self, optimizer: Groups, entries: Sequence[Entry]) -> None:
        """AdamW on the pieces."""
        given = []
        for group, p in entries:
            state = optimizer.state_of(p, ("exp_avg", "exp_avg_sq"))
            if self.finite[id(p)] is False:
                state["skipped"] += 1
            else:
                given.append((*pieces(p, state), group, p))
        for some in by_options([(x, state, group) for x, state, group, _ in given]):
            sources = [next(p for x, _, _, p in given if x is entry[0]) for entry in some]
            before = [
                (x, g, p, x.detach().clone())
                for (x, _, g), p in zip(some, sources, strict=True)
                if id(p) in optimizer.telemetry.chosen
            ]
            on = [self.finite[id(p)] for p in sources]
            adamw_(some, None if isinstance(on[0], bool) else Flags.given(torch.stack(on)))  # type: ignore[arg-type]
            for x, group, p, old in before:
                moved = old.double() * (1.0 - float(group["lr"]) * group["weight_decay"]) - x.double()
                once = self.team.place(p).copy == 0  # one copy counts
                sizes = [float(y.double().square().sum()) if once else 0.0 for y in (moved, old)]
                optimizer.telemetry.sizes(id(p), *sizes)

    def settle(self, optimizer: Groups) -> None:
        """Samples from what the ranks noted, the same on all of them."""
        telemetry = optimizer.telemetry
        for place, some in self._sets(self.entries).values():
            sampled = [p for _, p in some if id(p) in telemetry.chosen]
            if sampled:
                notes = [telemetry.notes.get(id(p), [0.0] * 6) for p in sampled]
                rows = torch.tensor(notes, dtype=torch.float64, device=sampled[0].device)
                for p, total in zip(sampled, self.team.wire.reduce(rows, place.groups).tolist(), strict=True):
                    telemetry.end(p.numel(), id(p), total)


def walk(
    optimizer: Groups, batch: Batch, shares: Sequence[Share], found: Sequence[Direction], once: bool = False
) -> None:
    """W <- (1 - lr decay) W - lr length z on the pieces, and what is to be measured.

    Args:
        once: no other rank has these pieces; else one copy of each counts in the size of an update.
    """
    zs, lengths = [], []
    for member, share, direction in zip(batch.members, shares, found, strict=True):
        z, length = lengthened(member, share, direction)
        if share.place.source is not None:
            z = piece_of(z, share.place.source)
        if direction.seen is not None:
            show(optimizer, share, *direction.seen, direction.estimable)
        if share.key in optimizer.telemetry.chosen:
            counts = once or share.place.copy == 0
            rate = float(member.group["lr"]) * length
            sizes = [float(y.double().square().sum()) if counts else 0.0 for y in (z, member.p)]
            optimizer.telemetry.sizes(share.key, rate * rate * sizes[0], sizes[1])
        if batch.flags is not None:  # there `move_` wants z multiplied, but for -decay
            left = -member.decay or 1.0
            z, length = z.to(member.p.dtype) * (length / left), left
        zs.append(z)
        lengths.append(length)
    move_(batch, zs, lengths)


def lengthened(member: Member, share: Share, direction: Direction) -> tuple[Tensor, float]:
    """(z, the length of its step): 1 where the matrices have lengths of their own, which are then in z."""
    z = direction.z
    duals: Sequence[Tensor | None] = direction.duals or [None] * len(direction.shapes)
    if not z.numel():
        return z, 1.0
    factors = [reach(member, shape, dual) for shape, dual in zip(direction.shapes, duals, strict=True)]
    full = [factor for factor, shape in zip(factors, direction.shapes, strict=True) if 0 not in shape]
    if all(not isinstance(factor, Tensor) and factor == full[0] for factor in full):
        return z, direction.factor * (full[0] if full else 1.0)  # type: ignore[return-value]
    wide = z.to(torch.promote_types(z.dtype, torch.float32))  # half precision may overflow
    blocks = share.blocks(wide)
    if [tuple(block.shape) for block in blocks] == direction.shapes or not any(isinstance(f, Tensor) for f in factors):
        scaled = share.joined([block * factor for block, factor in zip(blocks, factors, strict=True)], z.shape)
    else:  # a matrix may lie in several blocks of the piece: the factors are cut as it is
        spread = [wide.new_ones(shape) * f for shape, f in zip(direction.shapes, factors, strict=True)]
        scaled = wide * share.place.take(share.view.join(spread, share.place.shape), share.place.piece)
    return scaled, direction.factor


def show(optimizer: Groups, share: Share, m: Tensor, z: Tensor, estimable: bool) -> None:
    """Shows z, the answer to m, both whole."""
    pairs = [(a, b) for a, b in zip(share.view.cut(m), share.view.cut(z), strict=True) if a.numel()]
    if pairs:
        optimizer.show(share.key, [(share.ball, a, -share.ball.radius(a.shape) * b) for a, b in pairs], estimable)


def _dense(g: Tensor | None) -> TypeGuard[Tensor]:
    return g is not None and g.layout == torch.strided


def _patterned(grads: Sequence[Tensor | None], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """(columns `THERE` and `MISSING`, column `BAD` of the sparse ones, the places of the dense ones), sent once."""
    there = torch.tensor([(g is not None, g is None) for g in grads], dtype=torch.uint8)
    sparse = torch.tensor([0 if g is None or _dense(g) else 2 for g in grads], dtype=torch.uint8)
    dense = torch.tensor([k for k, g in enumerate(grads) if _dense(g)], dtype=torch.int64)
    return there.to(device), sparse.to(device), dense.to(device)


def _line(name: str, p: Tensor, group: dict[str, Any], optimizer: Groups) -> str:
    """What ranks must agree on about a parameter."""
    what = f"{group['algorithm']} {group['ball']} {group['view']}" if group["algorithm"] == "lmo" else "adamw"
    dtypes = f"{p.dtype}, state {optimizer.dtype_of(p)}".replace("torch.", "")
    return f"{name} of shape {tuple(p.shape)}, {dtypes}, {what}"


def _check(told: Sequence[Sequence[int]], some: Sequence[Entry], names: dict[int, str]) -> None:
    """Raises one sentence on what ranks do not agree on, before anything has changed."""
    for (_, p), said in zip(some, told, strict=True):
        name = f"parameter {names[id(p)]} of shape {tuple(p.shape)}"
        if said[BAD] == 2:
            raise TypeError(f"sparse gradients are not supported, got one for {name} on some rank; nothing was changed")
        if said[THERE] and said[MISSING]:
            raise ValueError(
                f"{name} has a gradient on some ranks and none on others; nothing was changed: give it one everywhere "
                "(zeros will do), or none anywhere"
            )
