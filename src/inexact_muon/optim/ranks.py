"""The step of parameters that several ranks hold: agreement, owners, chunks and routes."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from inexact_muon.lmo import Ball, Spectral
from inexact_muon.lmo._base import sides
from inexact_muon.optim.adamw import by_options
from inexact_muon.optim.agreement import Agreement
from inexact_muon.optim.assembly import RankRoute
from inexact_muon.optim.batches import Batch, Member
from inexact_muon.optim.collective import Gathered, OwnBlocks, on_owners
from inexact_muon.optim.gram import Summed, reducible, summed_chunks
from inexact_muon.optim.owned import Owned
from inexact_muon.optim.stepplan import StepPlan, alone
from inexact_muon.optim.telemetry import COLUMNS, oracle_flops
from inexact_muon.parallel.team import Team
from inexact_muon.polar import Auto
from inexact_muon.polar.batching import COPIES, HALF_COPIES, limit_on
from inexact_muon.strategies import BlockPeriodic, GramReduced, Replicated
from inexact_muon.views import BATCH, View
from inexact_muon.views.blocks import Cut

OVERLAPPED = 64 * 2**20
"""Bytes of a rank's matrices from which they are sent in several chunks, so that messages overlap with products."""

FEWEST = 4
"""Number of chunks from then on."""


@dataclass
class Ranks:
    """The ranks of one optimizer, and what they have agreed on.

    Attributes:
        period: routes are others where a group's `turn` is no multiple of it: steps by blocks.
    """

    team: Team
    agreement: Agreement = field(init=False)
    period: int = field(init=False)

    def __post_init__(self) -> None:
        self.agreement = Agreement(self.team)
        self.period = self.team.strategy.period if isinstance(self.team.strategy, BlockPeriodic) else 1

    def plan(self, members: list[Member], optimizer: Any) -> StepPlan:
        """Chunks of members that this rank works on alone, then those of each set of ranks."""
        lmo = [m for m in members if m.group["algorithm"] == "lmo"]
        own: list[Member] = []
        routed: dict[Any, list[Member]] = {}
        balls = merged({m.ball for m in lmo})
        for m in lmo:
            if m.place is None or (not m.place.shared and m.place.source is None):
                own.append(m)
                continue
            m.ball = balls[m.ball]
            routed.setdefault((m.place.ranks, self._route(m), m.place.holders), []).append(m)
        chunks = list(alone(own, optimizer.memory_limit))
        for key in sorted(routed):
            kinds: dict[Any, list[Member]] = {}
            for m in routed[key]:
                kinds.setdefault((m.kind, m.compute_dtype), []).append(m)
            for alike in kinds.values():
                chunks += self._chunks(key[1], alike, optimizer.memory_limit)
        plan = StepPlan(members, chunks, by_options([m for m in members if m.group["algorithm"] == "adamw"]))
        plan.sets = self.agreement.sets
        plan.shared = {id(p): (shared, k) for shared in plan.sets for k, (_, p) in enumerate(shared.entries)}
        return plan

    def _route(self, m: Member) -> str:
        strategy, place = self.team.strategy, m.place
        if place.source is not None:
            return "gathered"
        if isinstance(strategy, Replicated):
            return "everywhere"
        if isinstance(strategy, GramReduced) and reducible(m):
            return "summed"
        if isinstance(strategy, BlockPeriodic) and m.group["turn"] % strategy.period and len(place.pieces) > 1:
            return "blocks"
        axes = m.view.axes(len(place.shape))
        if place.cut and all(axes[dim] == BATCH for dim in place.cut):
            return "experts"  # whole matrices in a divided stack stay on their ranks
        return "experts" if place.cut and holds_whole(m.view, place.shape, place.pieces) else "owned"

    def _chunks(self, route: str, members: list[Member], limit: int | None) -> list[list[Batch]]:
        """Batches of one kind and route. Owners and chunks are the same on all ranks."""
        assign(members)
        members.sort(key=lambda m: (m.owner, m.place.shape, str(m.view)))
        dtype = self._wire_dtype(members[0])
        most, everywhere = limit_on(members[0].piece.device, limit), route == "everywhere"
        chunks = summed_chunks(members, most) if route == "summed" else spread(members, most, dtype, everywhere)
        group = self.team.group(members[0].place) if route != "gathered" else None
        kinds: dict[str, tuple[Any, ...]] = {  # class of the route, and what it needs besides
            "gathered": (Gathered,),
            "summed": (Summed,),
            "blocks": (OwnBlocks, getattr(self.team.strategy, "block_lr", 1.0)),
            "experts": (OwnBlocks,),
        }
        kind, *rest = kinds.get(route, (Owned, dtype, everywhere))
        return [[Batch(chunk, route=kind(chunk, group, self.team.wire, *rest))] for chunk in chunks]

    def _wire_dtype(self, m: Member) -> torch.dtype:
        """Dtype of pieces on the wire; lengths that need the dual norm need the momentum as it is."""
        state = m.buffers[0].dtype
        narrow = torch.finfo(m.compute_dtype).bits < torch.finfo(state).bits
        return m.compute_dtype if self.team.precision == "oracle" and narrow and not m.length.needs_dual else state

    def on_owners(self, members: Sequence[Member], several: Sequence[Sequence[Tensor]]) -> Any:
        """`collective.on_owners` of members that the same ranks hold."""
        route = RankRoute([*members], self.team.group(members[0].place), self.team.wire)
        return on_owners(route, {id(m.p) for m in members}, *several)

    def reduce_samples(self, optimizer: Any) -> None:
        """Store the samples of this step, reduced over the ranks; identical on all of them."""
        telemetry = optimizer.telemetry
        for shared in self.agreement.sets:
            sampled = [p for _, p in shared.entries if id(p) in telemetry.chosen]
            if sampled:
                rows = [telemetry.partial_sums.get(id(p), [0.0] * COLUMNS) for p in sampled]
                sums = torch.tensor(rows, dtype=torch.float64, device=sampled[0].device)
                for p, total in zip(sampled, self.team.wire.reduce(sums, shared.groups).tolist(), strict=True):
                    telemetry.store(p, total)


@lru_cache(maxsize=1024)
def holds_whole(view: View, shape: tuple[int, ...], pieces: tuple[tuple[tuple[int, int], ...], ...]) -> bool:
    """Whether every matrix lies whole in one of the pieces, none of which is empty: heads, divided between them."""
    whole, parts = Counter[tuple[int, ...]](), Counter[tuple[int, ...]]()
    for size in view.shapes(shape):
        whole[size[-2:]] += prod(size[:-2])
    if len(pieces) > whole.total():
        return False
    for spans in pieces:
        size, first = tuple(end - start for start, end in spans), tuple(start for start, _ in spans)
        for part in Cut(view, size, first, shape).shapes if 0 not in size else [(0, 0)]:
            parts[part[-2:]] += prod(part[:-2])
    return parts == whole


def merged(balls: set[Ball]) -> dict[Ball, Ball]:
    """Ball -> the same with the choices that polar="auto" made in any group, so that members form one batch."""
    rows: dict[Any, dict[Any, None]] = {}
    known = {ball: ball.polar for ball in balls if isinstance(ball, Spectral) and isinstance(ball.polar, Auto)}
    for ball, polar in known.items():
        rows.setdefault((ball.scale, polar.target), {}).update(dict.fromkeys(polar.chosen))
    resolved = dict(zip(balls, balls, strict=True))
    for ball, polar in known.items():
        chosen = tuple(sorted(rows[ball.scale, polar.target], key=str))
        if len({row[:3] for row in chosen}) == len(chosen):  # not where groups of a checkpoint chose differently
            resolved[ball] = replace(ball, polar=replace(polar, chosen=chosen))
    return resolved


def cost(m: Member) -> float:
    """Flops of the oracle, or entries where it has none."""
    shapes = m.whole.shapes
    return float(sum(oracle_flops(m.ball, shape, m.p.device) for shape in shapes if 0 not in shape) or m.p.numel())


def assign(members: Sequence[Member]) -> None:
    """Owners: the holder with the least work so far, most expensive first; then entries are evened out.

    The largest message of an all-gather, and the largest work space, are those of the owner with the most entries.
    """
    queue = [(0.0, 0, rank) for rank in members[0].place.ranks]
    costs = {id(m): cost(m) for m in members}
    shapes = {id(m): (min(sides(m.whole.shapes[0])), m.whole.shapes[0]) for m in members}
    for m in sorted(members, key=lambda m: (-costs[id(m)], shapes[id(m)])):
        load, entries, m.owner = queue[0]
        heapq.heapreplace(queue, (load + costs[id(m)], entries + m.p.numel(), m.owner))
    loads, sizes = ({rank: entry[k] for *entry, rank in queue} for k in (0, 1))
    while (pair := _exchange(members, costs, loads, sizes)) is not None:
        for m, other in (pair, pair[::-1]):
            loads[m.owner] += costs[id(other)] - costs[id(m)]
            sizes[m.owner] += other.p.numel() - m.p.numel()
        pair[0].owner, pair[1].owner = pair[1].owner, pair[0].owner


def _exchange(
    members: Sequence[Member], costs: dict[int, float], loads: dict[int, float], sizes: dict[int, float]
) -> tuple[Member, Member] | None:
    """Two matrices, one of the owner with the most entries, that even these out and leave the largest load as it is."""
    fullest, limit = max(sizes, key=lambda rank: (sizes[rank], -rank)), max(loads.values())
    kinds = {(m.owner, costs[id(m)], m.p.numel()): m for m in reversed(members)}.values()
    mine, others = ([m for m in kinds if (m.owner == fullest) == here] for here in (True, False))
    for m in mine:
        for other in others:
            fewer, dearer = m.p.numel() - other.p.numel(), costs[id(other)] - costs[id(m)]
            evened = fewer > 0 and sizes[other.owner] + fewer < sizes[fullest]
            if evened and max(loads[fullest] + dearer, loads[other.owner] - dearer) <= limit:
                return m, other
    return None


def spread(
    members: Sequence[Member], limit: int, wire: torch.dtype | None = None, everywhere: bool = False
) -> list[list[Member]]:
    """Chunks in which every owner has a like share of its work, as few as fit the memory limit.

    Three chunks are at work at a time: one whose pieces travel, one whose products run, one whose directions travel.
    Messages overlap with products only where a rank has some in each chunk, so that there are no more chunks than the
    owner with the fewest matrices has, unless the memory limit asks for more.
    """
    owned: dict[int, list[Member]] = {}
    for m in members:
        owned.setdefault(m.owner, []).append(m)
    fewest, most = (f(len(own) for own in owned.values()) for f in (min, max))
    size = max(sum(m.p.numel() * m.buffers[0].element_size() for m in own) for own in owned.values())
    count = min(FEWEST, fewest) if size >= OVERLAPPED else 1
    while True:
        chunks: list[list[Member]] = [[] for _ in range(count)]
        for own in owned.values():
            for m, chunk in zip(own, shares([m.p.numel() for m in own], count), strict=True):
                chunks[chunk].append(m)
        chunks = [chunk for chunk in chunks if chunk]
        if count >= most or max(work_space(chunk, wire, everywhere) for chunk in chunks) <= limit:
            return chunks
        count += 1


def shares(sizes: Sequence[int], count: int) -> list[int]:
    """The part, of `count` consecutive parts of like size, of each item; none is empty if there are enough items."""
    total, before, last, parts = sum(sizes) or 1, 0, -1, []
    for k, size in enumerate(sizes):
        part = min(last + 1, int((before + 0.5 * size) / total * count))
        last = max(last, 0, part, count - len(sizes) + k)
        parts.append(min(last, count - 1))
        before += size
    return parts


def work_space(members: Sequence[Member], wire: torch.dtype | None = None, everywhere: bool = False) -> int:
    """Bytes that the busiest rank needs while chunks like this one follow each other: the most of three moments.

    While products run, there are the inputs of three chunks, the next one's pieces on the wire, and directions that
    come back; of what a rank owns the next one's pieces, the matrices, the oracle's work and two copies of directions.
    Before that, pieces are scaled and packed; after it, directions are scaled in the dtype of W.
    """
    place, state = members[0].place, members[0].buffers[0].element_size()
    half = torch.finfo(members[0].compute_dtype).bits < 32 and isinstance(members[0].ball, Spectral)
    oracle = max(4, state) * (HALF_COPIES if half else COPIES)
    divided = len(place.pieces) > 1
    sent = state if wire is None else wire.itemsize
    back = 2 if half and not members[0].length.needs_dual else max(4, state)
    weight = max(4, members[0].piece.element_size())
    most = 0
    for row in place.holders:
        for j, rank in enumerate(row):
            pieces = sum(prod(m.place.piece_shape(j)) for m in members)
            own = sum(m.p.numel() for m in members if everywhere or m.owner == rank)
            inputs = 3 * (pieces if divided or everywhere else own)
            products = inputs * state + pieces * (sent + back) + own * (2 * sent + 2 * back + oracle)
            packing = inputs * state + 2 * pieces * (state + sent) + own * sent if divided else 0
            weights = inputs * state + pieces * (2 * back + 2 * weight) + own * sent + members[0].stage_work(pieces)
            most = max(most, products, packing, weights)
    return most
