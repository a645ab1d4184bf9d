"""How the strategies of `inexact_muon.strategies` are run."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from inexact_muon.dtensors import whole_of
from inexact_muon.lmo._base import inner
from inexact_muon.parallel.gram import gram_reduced, reducible
from inexact_muon.parallel.shares import Ask, Direction, Run, Share, collect, give_back, solve
from inexact_muon.parallel.wire import Wire
from inexact_muon.strategies import BlockPeriodic, GramReduced, Replicated, Strategy


def run(strategy: Strategy, shares: Sequence[Share], ask: Ask, wire: Wire) -> Run:
    """The answers to some parameters of one set of ranks; yields whenever messages are under way."""
    by_blocks = partial(blockwise, factor=getattr(strategy, "block_lr", 1.0))

    def way(share: Share) -> Any:
        match strategy:
            case Replicated():
                return replicated
            case GramReduced() if reducible(share):
                return reduced
            case BlockPeriodic(period=period) if share.turn % period and len(share.place.pieces) > 1:
                return blockwise if _stacked(share) else by_blocks
        return blockwise if _stacked(share) else owned  # stacks of whole matrices stay on their ranks

    return together(shares, ask, wire, way)


def together(shares: Sequence[Share], ask: Ask, wire: Wire, way: Callable[[Share], Any]) -> Run:
    """Shares that go different ways, one way after the other."""
    ways: dict[Any, list[int]] = {}
    for i, share in enumerate(shares):
        ways.setdefault(gathering if share.place.source is not None else way(share), []).append(i)
    found: dict[int, Direction] = {}
    for run, places in ways.items():
        found.update(zip(places, (yield from run([shares[i] for i in places], ask, wire)), strict=True))
    return [found[i] for i in range(len(shares))]


def owned(shares: Sequence[Share], ask: Ask, wire: Wire) -> Run:
    """Pieces to the owner, the oracle once, pieces of the answer to every holder."""
    if not any(share.place.shared for share in shares):
        return solve(shares, [share.m for share in shares], ask)
    wholes, under_way = collect(shares, [share.m for share in shares], wire)
    yield
    under_way.wait()
    mine = [(i, whole) for i, whole in enumerate(wholes) if whole is not None]
    solved = solve([shares[i] for i, _ in mine], [whole for _, whole in mine], ask)
    found = dict(zip((i for i, _ in mine), solved, strict=True))
    made, under_way = give_back(shares, [found.get(i) for i in range(len(shares))], wire)
    yield
    under_way.wait()
    return made


def replicated(shares: Sequence[Share], ask: Ask, wire: Wire) -> Run:
    """Every rank gathers the whole from its copy, and takes its piece of the answer."""
    wholes, sends, receives, landing = [], [], [], []
    for share in shares:
        place, m = share.place, share.m
        row = place.holders[place.copy]
        whole = m if len(row) == 1 else m.new_empty(place.shape)
        wholes.append(whole)
        if len(row) > 1:
            parts = [m if rank == place.me else m.new_empty(place.piece_shape(j)) for j, rank in enumerate(row)]
            landing += [(place.take(whole, j), part) for j, part in enumerate(parts)]
            sends += [(rank, m) for rank in row if rank != place.me]
            receives += [(rank, part) for rank, part in zip(row, parts, strict=True) if rank != place.me]
    if landing:
        under_way = wire.exchange(sends, receives)
        yield
        under_way.wait()
        for target, part in landing:
            target.copy_(part)
    return [_own(share, found) for share, found in zip(shares, solve(shares, wholes, ask), strict=True)]


def gathering(shares: Sequence[Share], ask: Ask, wire: Wire) -> Run:
    """The same by the collectives of DTensors."""
    wholes = [whole_of(share.m, share.place.source) for share in shares]
    found = solve(shares, wholes, ask)
    for share, direction in zip(shares, found, strict=True):
        direction.seen = direction.seen if share.mine else None
    return found
    yield  # a generator, as the other ways are


def blockwise(shares: Sequence[Share], ask: Ask, wire: Wire, factor: float = 1.0) -> Run:
    """Each rank's own piece as matrices of its own; nothing is sent unless the answer is to be measured."""
    blocks = [share.blocks(share.m) for share in shares]
    given = [[x for x in some if x.numel()] for some in blocks]
    found = []
    for share, some, zs in zip(shares, blocks, ask([share.ball for share in shares], given), strict=True):
        answers = iter(zs)
        answered = [next(answers).to(x.dtype) if x.numel() else x for x in some]  # the view wants empty ones back
        duals = [inner(x, z) for x, z in zip(some, answered, strict=True)] if share.dual else []
        z = share.joined(answered, share.m.shape) if zs else torch.zeros_like(share.m)
        found.append(Direction(z, [tuple(x.shape) for x in some], duals, factor, estimable=False))
    yield from _shown(shares, found, wire)
    return found


def reduced(shares: Sequence[Share], ask: Ask, wire: Wire) -> Run:
    """Gram-reduced."""
    found = yield from gram_reduced(shares, wire)
    yield from _shown(shares, found, wire)
    return found


def _shown(shares: Sequence[Share], found: Sequence[Direction], wire: Wire) -> Generator[None]:
    """Answers that no rank has whole go to the owners where they are to be measured, and what they answer to."""
    pairs = [(share, direction) for share, direction in zip(shares, found, strict=True) if share.measured]
    if not pairs:
        return
    wanted = [share for share, _ in pairs]
    ms, first = collect(wanted, [share.m for share in wanted], wire)
    zs, second = collect(wanted, [direction.z for _, direction in pairs], wire)
    yield
    first.wait()
    second.wait()
    for (_, direction), m, z in zip(pairs, ms, zs, strict=True):
        direction.seen = None if m is None or z is None else (m, z)


def _own(share: Share, found: Direction) -> Direction:
    """This rank's piece of a whole answer."""
    seen = found.seen if share.mine else None
    return replace(found, z=share.place.take(found.z, share.place.piece), seen=seen)


def _stacked(share: Share) -> bool:
    """Whether the pieces are stacks of whole matrices."""
    axes = share.view.axes(len(share.place.shape))
    return bool(share.place.cut) and all(axes[dim] == -3 for dim in share.place.cut)
