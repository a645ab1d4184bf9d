"""Execution of the strategies of `inexact_muon.strategies`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from inexact_muon.dtensors import whole_of
from inexact_muon.lmo._base import inner
from inexact_muon.parallel.gram import gram_reduced, reducible
from inexact_muon.parallel.shares import (
    CopyOnArrival,
    Direction,
    Oracle,
    Run,
    Share,
    gather_to_owners,
    receive_whole,
    scatter_from_owners,
    solve,
)
from inexact_muon.parallel.wire import Wire
from inexact_muon.strategies import BlockPeriodic, GramReduced, Replicated, Strategy


def run(strategy: Strategy, shares: Sequence[Share], oracle: Oracle, wire: Wire) -> Run:
    """Directions of parameters of one set of ranks; yields while messages are in flight."""
    by_blocks = partial(blockwise, factor=getattr(strategy, "block_lr", 1.0))

    def route(share: Share) -> Any:
        match strategy:
            case Replicated():
                return replicated
            case GramReduced() if reducible(share):
                return reduced
            case BlockPeriodic(period=period) if share.turn % period and len(share.place.pieces) > 1:
                return blockwise if _stacked(share) else by_blocks
        return blockwise if _stacked(share) else owned  # whole matrices in a divided stack stay on their ranks

    return by_route(shares, oracle, wire, route)


def by_route(shares: Sequence[Share], oracle: Oracle, wire: Wire, route: Callable[[Share], Any]) -> Run:
    """Run shares grouped by route, one route after another."""
    routes: dict[Any, list[int]] = {}
    for i, share in enumerate(shares):
        routes.setdefault(gather_by_collectives if share.place.source is not None else route(share), []).append(i)
    found: dict[int, Direction] = {}
    for run, places in routes.items():
        found.update(zip(places, (yield from run([shares[i] for i in places], oracle, wire)), strict=True))
    return [found[i] for i in range(len(shares))]


def owned(shares: Sequence[Share], oracle: Oracle, wire: Wire) -> Run:
    """Gather pieces on the owner, run the oracle once, and scatter the direction."""
    if not any(share.place.shared for share in shares):
        return solve(shares, [share.m for share in shares], oracle)
    wholes, pending = gather_to_owners(shares, [share.m for share in shares], wire)
    yield
    pending.wait()
    mine = [(i, whole) for i, whole in enumerate(wholes) if whole is not None]
    solved = solve([shares[i] for i, _ in mine], [whole for _, whole in mine], oracle)
    found = dict(zip((i for i, _ in mine), solved, strict=True))
    made, pending = scatter_from_owners(shares, [found.get(i) for i in range(len(shares))], wire)
    yield
    pending.wait()
    return made


def replicated(shares: Sequence[Share], oracle: Oracle, wire: Wire) -> Run:
    """Every rank gathers the whole parameter from its replica, runs the oracle, and takes its piece."""
    wholes, sends, receives, copies = [], [], [], []
    for share in shares:
        place, m = share.place, share.m
        row = place.holders[place.copy]
        whole, placed, incoming = receive_whole(place, m, row)
        wholes.append(whole)
        copies += placed
        sends += [(rank, m) for rank in row if rank != place.me]
        receives += incoming
    if copies:
        pending = CopyOnArrival(wire.exchange(sends, receives), copies)
        yield
        pending.wait()
    return [_local_piece(share, found) for share, found in zip(shares, solve(shares, wholes, oracle), strict=True)]


def gather_by_collectives(shares: Sequence[Share], oracle: Oracle, wire: Wire) -> Run:
    """As `replicated`, by the collectives of DTensors."""
    wholes = [whole_of(share.m, share.place.source) for share in shares]
    found = solve(shares, wholes, oracle)
    for share, direction in zip(shares, found, strict=True):
        direction.observed = direction.observed if share.mine else None
    return found
    yield  # makes this a generator, as the other routes are


def blockwise(shares: Sequence[Share], oracle: Oracle, wire: Wire, factor: float = 1.0) -> Run:
    """Each rank orthogonalises the blocks of its own piece; nothing is sent unless the result is measured."""
    blocks = [share.blocks(share.m) for share in shares]
    given = [[x for x in some if x.numel()] for some in blocks]
    found = []
    for share, some, zs in zip(shares, blocks, oracle([share.ball for share in shares], given), strict=True):
        answers = iter(zs)
        answered = [next(answers).to(x.dtype) if x.numel() else x for x in some]  # the view expects empty blocks, too
        duals = [inner(x, z) for x, z in zip(some, answered, strict=True)] if share.dual else []
        z = share.joined(answered, share.m.shape) if zs else torch.zeros_like(share.m)
        found.append(Direction(z, [tuple(x.shape) for x in some], duals, factor, estimable=False))
    yield from _gather_measured(shares, found, wire)
    return found


def reduced(shares: Sequence[Share], oracle: Oracle, wire: Wire) -> Run:
    """Gram-reduced."""
    found = yield from gram_reduced(shares, wire)
    yield from _gather_measured(shares, found, wire)
    return found


def _gather_measured(shares: Sequence[Share], found: Sequence[Direction], wire: Wire) -> Generator[None]:
    """Gather m and z on the owner, if they are measured and no rank has them whole."""
    pairs = [(share, direction) for share, direction in zip(shares, found, strict=True) if share.measured]
    if not pairs:
        return
    wanted = [share for share, _ in pairs]
    ms, first = gather_to_owners(wanted, [share.m for share in wanted], wire)
    zs, second = gather_to_owners(wanted, [direction.z for _, direction in pairs], wire)
    yield
    first.wait()
    second.wait()
    for (_, direction), m, z in zip(pairs, ms, zs, strict=True):
        direction.observed = None if m is None or z is None else (m, z)


def _local_piece(share: Share, found: Direction) -> Direction:
    """This rank's piece of a whole direction."""
    observed = found.observed if share.mine else None
    return replace(found, z=share.place.take(found.z, share.place.piece), observed=observed)


def _stacked(share: Share) -> bool:
    """Whether the pieces are stacks of whole matrices."""
    axes = share.view.axes(len(share.place.shape))
    return bool(share.place.cut) and all(axes[dim] == -3 for dim in share.place.cut)
