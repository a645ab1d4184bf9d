"""Gram-reduced: ranks exchange n x n float64 matrices instead of assembling whole ones.

If the long side is divided, X = [X_1 ... X_p] and X X^T = sum_r X_r X_r^T. Each rank forms its term; the owner in each
replica adds them in rank order, computes Q such that z = Q X, and sends Q to all; each rank multiplies its piece.
Float64, because a float32 sum in another order changes z by 1e-3 for an ill-conditioned matrix; without restarts, which
would need another sum. Each piece is first scaled by a power of two to entries near 1, so that squares neither overflow
nor underflow; the exponents are sent with the matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from inexact_muon.lmo import Spectral
from inexact_muon.lmo._base import sides
from inexact_muon.parallel.shares import Direction, Run, Share
from inexact_muon.parallel.wire import Wire

ZERO_EXPONENT = -5000.0
"""Exponent of a zero or empty piece; lower than all others, so that it does not affect the scale."""


def reducible(share: Share) -> bool:
    """Whether exactly the long side of every matrix is divided and the oracle can work from X X^T."""
    place, ball, shapes = share.place, share.ball, share.shapes
    if len(place.pieces) == 1 or not isinstance(ball, Spectral):
        return False
    if not all(ball.polar.at(*sides(shape), share.m.device).from_gram for shape in shapes):
        return False
    axes = share.view.axes(len(place.shape))
    (side, *more) = {axes[dim] for dim in place.cut} or {None}
    if more or side not in (-2, -1):
        return False
    return all(shape[side] == max(shape[-2:]) for shape in shapes)


def gram_reduced(shares: Sequence[Share], wire: Wire) -> Run:
    """Directions of shares that are `reducible`."""
    scaled = [[_scaled(x, shape) for x, shape in zip(s.blocks(s.m), s.shapes, strict=True)] for s in shares]
    terms = [_packed([torch.cat((_gram(y, t).flatten(1), e), 1) for y, e, t in parts]) for parts in scaled]
    owners = [share.place.holders[share.place.copy][_owner_index(share)] for share in shares]
    sends, receives, theirs = [], [], []
    for share, term, owner in zip(shares, terms, owners, strict=True):
        row = share.place.holders[share.place.copy]
        if owner == share.place.me:
            found = [term if rank == owner else torch.empty_like(term) for rank in row]
            receives += [(rank, x) for rank, x in zip(row, found, strict=True) if rank != owner]
            theirs.append(found)
        else:
            sends.append((owner, term))
            theirs.append([])
    pending = wire.exchange(sends, receives)
    yield
    pending.wait()
    solved = [_multipliers(share, given) if given else None for share, given in zip(shares, theirs, strict=True)]
    sends, receives, messages = [], [], list[Tensor]()
    for share, message, term, owner in zip(shares, solved, terms, owners, strict=True):
        if message is None:
            message = term.new_empty(term.numel() + sum(len(e) for _, e, _ in scaled[len(messages)]))
            receives.append((owner, message))
        else:
            sends += [(rank, message) for rank in share.place.holders[share.place.copy] if rank != owner]
        messages.append(message)
    pending = wire.exchange(sends, receives)
    yield
    pending.wait()
    return [_applied(share, parts, x) for share, parts, x in zip(shares, scaled, messages, strict=True)]


def _owner_index(share: Share) -> int:
    """Index of the owner's piece within its replica; replicas repeat the work and do not communicate."""
    return share.place.holders[share.place.copy_of(share.owner)].index(share.owner)


def _scaled(x: Tensor, shape: Sequence[int]) -> tuple[Tensor, Tensor, bool]:
    """(y, e, tall) with x = 2^e y, y (batch, ., .) in float64 with entries of magnitude 1."""
    tall = shape[-2] > shape[-1] or (shape[-2] == shape[-1] and x.shape[-2] != shape[-2])
    y = x.reshape(prod(shape[:-2]), *x.shape[-2:]).double()
    if not x.numel():
        return y, y.new_full((len(y), 1), ZERO_EXPONENT), tall
    largest = y.abs().amax(dim=(-2, -1))
    exponent = torch.frexp(largest).exponent.double()
    half = (exponent / 2).floor()  # 2^-e may overflow for subnormal x: multiply twice
    y = y * _power(-half)[:, None, None] * _power(half - exponent)[:, None, None]
    return y, torch.where(largest > 0, exponent, ZERO_EXPONENT)[:, None], tall


def _gram(y: Tensor, tall: bool) -> Tensor:
    return torch.bmm(y.mT, y) if tall else torch.bmm(y, y.mT)


def _power(exponent: Tensor) -> Tensor:
    """2^e, exactly."""
    return torch.ldexp(torch.ones_like(exponent), exponent.to(torch.int32))


def _packed(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.flatten() for part in parts])


def _unpacked(message: Tensor, counts: Sequence[tuple[int, int]], extra: int) -> list[tuple[Tensor, Tensor]]:
    """(n x n matrices, the `extra` numbers of each) for stacks of (count, n)."""
    found = []
    parts = torch.split(message, [count * (n * n + extra) for count, n in counts])
    for part, (count, n) in zip(parts, counts, strict=True):
        rows = part.view(count, n * n + extra)
        found.append((rows[:, : n * n].reshape(count, n, n), rows[:, n * n :]))
    return found


def _counts(share: Share) -> list[tuple[int, int]]:
    return [(prod(shape[:-2]), min(sides(shape))) for shape in share.shapes]


def _multipliers(share: Share, terms: Sequence[Tensor]) -> Tensor:
    """For each matrix: Q, the exponent of the common scale, and tr(Q G) = <y, Q y>."""
    ball = share.ball
    assert isinstance(ball, Spectral)
    counts = _counts(share)
    unpacked = [_unpacked(term, counts, 1) for term in terms]
    parts = []
    for shape, stacks in zip(share.shapes, zip(*unpacked, strict=True), strict=True):
        exponent = torch.stack([e for _, e in stacks]).amax(0)
        total = torch.zeros_like(stacks[0][0])
        for gram, e in stacks:
            total += gram * _power(2.0 * (e - exponent))[:, :, None]
        q = ball.polar.at(*sides(shape), share.m.device).multiplier(total)
        dual = (q * total).sum(dim=(-2, -1))[:, None]
        parts.append(torch.cat((q.flatten(1), exponent, dual), 1))
    return _packed(parts)


def _applied(share: Share, parts: Sequence[tuple[Tensor, Tensor, bool]], message: Tensor) -> Direction:
    """Q times this rank's piece."""
    zs, duals, m = [], [], share.m
    unpacked = _unpacked(message, _counts(share), 2)
    for (y, e, tall), shape, block, (q, numbers) in zip(parts, share.shapes, share.blocks(m), unpacked, strict=True):
        x = y * _power(e - numbers[:, :1])[:, :, None]
        z = torch.bmm(x, q) if tall else torch.bmm(q, x)
        zs.append(z.to(m.dtype).reshape(block.shape))
        dual = (numbers[:, 1] * _power(numbers[:, 0])).to(torch.promote_types(m.dtype, torch.float32))
        duals.append(dual.reshape((*shape[:-2], 1, 1)))
    return Direction(share.joined(zs, m.shape), share.shapes, duals)
