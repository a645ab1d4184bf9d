"""Gram-reduced: ranks exchange n x n float64 matrices instead of assembling whole ones.

If the long side is divided, X = [X_1 ... X_p] and X X^T = sum_r X_r X_r^T. Each rank forms its term; the owner in each
replica adds them in rank order, computes Q such that z = Q X, and sends Q to all; each rank multiplies its piece.
Float64, because a float32 sum in another order changes z by 1e-3 for an ill-conditioned matrix; without restarts, which
would need another sum. Each piece is first scaled by a power of two to entries near 1, so that squares neither overflow
nor underflow; the exponents are sent with the matrices.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from inexact_muon.lmo import Ball, Spectral
from inexact_muon.lmo._base import sides
from inexact_muon.parallel.place import Place
from inexact_muon.parallel.wire import Wire

ZERO_EXPONENT = -5000.0
"""Exponent of a zero or empty piece; lower than all others, so that it does not affect the scale."""


@dataclass(frozen=True)
class GramPart:
    """This rank's piece of a parameter.

    Attributes:
        shapes: of the whole matrices.
        blocks: the blocks of each matrix that the piece contains.
        owner: the rank that adds the terms, or whose index in its replica does.
    """

    place: Place
    shapes: list[tuple[int, ...]]
    blocks: list[Tensor]
    ball: Ball
    owner: int

    @property
    def adds(self) -> int:
        """The rank that adds in this replica: replicas repeat the work and do not communicate."""
        return self.place.row[self.place.holders[self.place.copy_of(self.owner)].index(self.owner)]


def gram_reduced(
    parts: Sequence[GramPart], group: Any, wire: Wire
) -> Generator[None, None, list[tuple[list[Tensor], list[Tensor]]]]:
    """For each part the blocks of the direction, and <m, z> of each matrix; yields while messages are in flight."""
    place = parts[0].place
    scaled = [[_scaled(x, shape) for x, shape in zip(p.blocks, p.shapes, strict=True)] for p in parts]
    terms = [_packed([torch.cat((_gram(y, t).flatten(1), e), 1) for y, e, t in part]) for part in scaled]
    mine = [k for k, p in enumerate(parts) if p.adds == place.me]
    lengths = {
        True: [x.numel() for x in terms],
        False: [x.numel() + sum(len(e) for _, e, _ in s) for x, s in zip(terms, scaled, strict=True)],
    }

    def counts(up: bool) -> tuple[list[int], list[int]]:
        """(entries to, entries from) the rank that adds, for each rank; `up`: of the terms, else of the multipliers."""
        toward = [sum(n for n, p in zip(lengths[up], parts, strict=True) if p.adds == rank) for rank in place.ranks]
        own = sum(lengths[up][k] for k in mine)
        return toward, [own if rank in place.row else 0 for rank in place.ranks]

    order = sorted(range(len(parts)), key=lambda k: place.ranks.index(parts[k].adds))
    message = torch.cat([terms[k] for k in order])
    del terms  # they are as large as the matrices: nothing is held longer than it is needed
    arrived, pending = wire.swap(message, *counts(True), group)
    del message
    yield
    pending.wait()
    summands = torch.split(arrived, [lengths[True][k] for _ in place.row for k in mine])
    solved = [_multipliers(parts[k], summands[i :: len(mine)]) for i, k in enumerate(mine)]
    del summands
    toward, back = counts(False)
    message = torch.cat(solved * len(place.row)) if solved else arrived.new_empty(0)
    del solved
    arrived, pending = wire.swap(message, back, toward, group)
    del message
    yield
    pending.wait()
    messages = dict(zip(order, torch.split(arrived, [lengths[False][k] for k in order]), strict=True))
    return [_applied(p, part, messages[k]) for k, (p, part) in enumerate(zip(parts, scaled, strict=True))]


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
    pairs = []
    parts = torch.split(message, [count * (n * n + extra) for count, n in counts])
    for part, (count, n) in zip(parts, counts, strict=True):
        rows = part.view(count, n * n + extra)
        pairs.append((rows[:, : n * n].reshape(count, n, n), rows[:, n * n :]))
    return pairs


def _counts(part: GramPart) -> list[tuple[int, int]]:
    return [(prod(shape[:-2]), min(sides(shape))) for shape in part.shapes]


def _multipliers(part: GramPart, terms: Sequence[Tensor]) -> Tensor:
    """For each matrix: Q, the exponent of the common scale, and tr(Q G) = <y, Q y>."""
    ball = part.ball
    assert isinstance(ball, Spectral)
    counts = _counts(part)
    unpacked = [_unpacked(term, counts, 1) for term in terms]
    parts = []
    for shape, stacks in zip(part.shapes, zip(*unpacked, strict=True), strict=True):
        exponent = torch.stack([e for _, e in stacks]).amax(0)
        total = torch.zeros_like(stacks[0][0])
        for gram, e in stacks:
            total += gram * _power(2.0 * (e - exponent))[:, :, None]
        q = ball.polar.at(*sides(shape), total.device).multiplier(total)
        dual = (q * total).sum(dim=(-2, -1))[:, None]
        parts.append(torch.cat((q.flatten(1), exponent, dual), 1))
    return _packed(parts)


def _applied(
    part: GramPart, pieces: Sequence[tuple[Tensor, Tensor, bool]], message: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """Q times this rank's piece, and <m, z> of the whole matrices."""
    zs, duals = [], []
    unpacked = _unpacked(message, _counts(part), 2)
    for (y, e, tall), shape, block, (q, numbers) in zip(pieces, part.shapes, part.blocks, unpacked, strict=True):
        x = y * _power(e - numbers[:, :1])[:, :, None]
        z = torch.bmm(x, q) if tall else torch.bmm(q, x)
        zs.append(z.to(block.dtype).reshape(block.shape))
        dual = (numbers[:, 1] * _power(numbers[:, 0])).to(torch.promote_types(block.dtype, torch.float32))
        duals.append(dual.reshape((*shape[:-2], 1, 1)))
    return zs, duals
