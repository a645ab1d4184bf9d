"""Execution of the strategies of `inexact_muon.strategies`."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial
from typing import Any

import torch

from inexact_muon.dtensors import whole_of
from inexact_muon.lmo._base import inner
from inexact_muon.parallel.gram import gram_reduced, reducible
from inexact_muon.parallel.shares import Direction, Oracle, Run, Share, gather, scatter_from_owners, solve
from inexact_muon.parallel.wire import Wire
from inexact_muon.strategies import BlockPeriodic, GramReduced, Replicated, Strategy


def run(strategy: Strategy, shares: Sequence[Share], oracle: Oracle, wire: Wire) -> Run:
    """Directions of parameters of one set of ranks, one route after another; yields while messages are in flight."""
    by_blocks = partial(blockwise, factor=getattr(strategy, "block_lr", 1.0))

    def route(share: Share) -> Any:
        if share.place.source is not None:
            return gather_by_collectives
        match strategy:
            case Replicated():
                return replicated
            case GramReduced() if reducible(share):
                return reduced
            case BlockPeriodic(period=period) if share.turn % period and len(share.place.pieces) > 1:
                return by_blocks
        return by_blocks if _stacked(share) else owned  # whole matrices in a divided stack stay on their ranks

    routes: dict[Any, list[int]] = {}
    for i, share in enumerate(shares):
        routes.setdefault(route(share), []).append(i)
    found: dict[int, Direction] = {}
    for solved_by, places in routes.items():
        found.update(zip(places, (yield from solved_by([shares[i] for i in places], oracle, wire)), strict=True))
    return [found[i] for i in range(len(shares))]


def owned(shares: Sequence[Share], oracle: Oracle, wire: Wire) -> Run:
    """Gather pieces on the owner, run the oracle once, and scatter the direction."""
    if not any(share.place.shared for share in shares):
        return solve(shares, [share.m for share in shares], oracle)
    wholes, pending = gather(shares, [share.m for share in shares], wire)
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
    wholes, pending = gather(shares, [share.m for share in shares], wire, everywhere=True)
    if any(len(share.place.pieces) > 1 for share in shares):
        yield
        pending.wait()
    found = solve(shares, [whole for whole in wholes if whole is not None], oracle)
    for share, direction in zip(shares, found, strict=True):
        direction.z = share.place.take(direction.z, share.place.piece)
        direction.observed = direction.observed if share.mine else None
    return found


def gather_by_collectives(shares: Sequence[Share], oracle: Oracle, wire: Wire) -> Run:
    """As `replicated`, by the collectives of DTensors."""
    wholes = [whole_of(share.m, share.place.source) for share in shares]
    found = solve(shares, wholes, oracle)
    for share, direction in zip(shares, found, strict=True):
        direction.observed = direction.observed if share.mine else None
    return found
    yield  # makes this a generator, as the other routes are


def blockwise(shares: Sequence[Share], oracle: Oracle, wire: Wire, factor: float = 1.0) -> Run:
    """Each rank orthogonalises the blocks of its own piece; nothing is sent unless the result is measured.

    Args:
        factor: multiplies the step length of matrices that are divided.
    """
    blocks = [share.blocks(share.m) for share in shares]
    given = [[x for x in some if x.numel()] for some in blocks]
    found = []
    for share, some, zs in zip(shares, blocks, oracle([share.ball for share in shares], given), strict=True):
        answers = iter(zs)
        answered = [next(answers).to(x.dtype) if x.numel() else x for x in some]  # the view expects empty blocks, too
        duals = [inner(x, z) for x, z in zip(some, answered, strict=True)] if share.dual else []
        z = share.joined(answered, share.m.shape) if zs else torch.zeros_like(share.m)
        length = 1.0 if _stacked(share) else factor
        found.append(Direction(z, [tuple(x.shape) for x in some], duals, length, estimable=False))
    yield from _gather_measured(shares, found, wire)
    return found


def reduced(shares: Sequence[Share], oracle: Oracle, wire: Wire) -> Run:
    """Gram-reduced."""
    found = yield from gram_reduced(shares, wire)
    yield from _gather_measured(shares, found, wire)
    return found


def _gather_measured(shares: Sequence[Share], found: Sequence[Direction], wire: Wire) -> Generator[None]:
    """Gather m and z on the owner, if they are measured and no rank has them whole."""
    wanted = [(share, direction) for share, direction in zip(shares, found, strict=True) if share.measured]
    if not wanted:
        return
    pieces = [*(share.m for share, _ in wanted), *(direction.z for _, direction in wanted)]
    wholes, pending = gather([share for share, _ in wanted] * 2, pieces, wire)
    yield
    pending.wait()
    for (_, direction), m, z in zip(wanted, wholes, wholes[len(wanted) :], strict=False):
        direction.observed = None if m is None or z is None else (m, z)


def _stacked(share: Share) -> bool:
    """Whether the pieces are stacks of whole matrices."""
    axes = share.view.axes(len(share.place.shape))
    return bool(share.place.cut) and all(axes[dim] == -3 for dim in share.place.cut)
