"""Gram-reduced: ranks exchange n x n float64 matrices instead of assembling whole ones.

If the long side is divided, X = [X_1 ... X_p] and X X^T = sum_r X_r X_r^T. Each rank forms its term; the owner in each
replica adds them in rank order, computes Q such that z = Q X, and sends Q to all; each rank multiplies its piece.
Float64, because a float32 sum in another order changes z by 1e-3 for an ill-conditioned matrix; without restarts, which
would need another sum. Each piece is first scaled by a power of two to entries near 1, so that squares neither overflow
nor underflow; the exponents are sent with the matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from inexact_muon.lmo import Spectral
from inexact_muon.lmo._base import sides
from inexact_muon.optim.algorithm import step_factor
from inexact_muon.optim.assembly import RankRoute, Run, scaled, uniform_factor
from inexact_muon.optim.batches import Batch, Member
from inexact_muon.optim.collective import measured

ZERO_EXPONENT = -5000.0
"""Exponent of a zero or empty piece; lower than all others, so that it does not affect the scale."""

Piece = tuple[Tensor, Tensor, bool]
"""(y, e, tall) of this rank's blocks 2^e y of some matrices: y (batch, ., .) in float64 with entries near 1."""


@dataclass(eq=False)
class Summed(RankRoute):
    """Gram-reduced: no rank has a whole matrix."""

    def __post_init__(self) -> None:
        place = self.members[0].place
        index = {rank: j for row in place.holders for j, rank in enumerate(row)}
        self.ranks, self.row = place.ranks, place.row
        self.adds = [self.row[index[m.owner]] for m in self.members]  # replicas repeat it and do not communicate
        self.mine = [k for k, rank in enumerate(self.adds) if rank == place.me]
        self.order = sorted(range(len(self.members)), key=lambda k: self.ranks.index(self.adds[k]))
        self.squares = [[(prod(s[:-2]), min(sides(s))) for s in m.whole.shapes] for m in self.members]  # (count, n)

    def directions(self, batch: Batch, inputs: list[Tensor], stacks: list[Tensor], optimizer: Any) -> Run:
        blocks = [m.here(x) for m, x in zip(self.members, inputs, strict=True)]
        pieces = [
            [_unit_scaled(x, shape) for x, shape in zip(parts, m.whole.shapes, strict=True)]
            for m, parts in zip(self.members, blocks, strict=True)
        ]
        terms = [_packed([torch.cat((_gram(y, t).flatten(1), e), 1) for y, e, t in part]) for part in pieces]
        sizes, toward, back = self._counts(1)
        message = torch.cat([terms[k] for k in self.order])
        del terms  # they are as large as the matrices: nothing is held longer than it is needed
        arrived, pending = self.wire.swap(message, toward, back, self.group)
        del message
        yield
        pending.wait()
        summands = torch.split(arrived, [sizes[k] for _ in self.row for k in self.mine])
        solved = [self._multipliers(k, summands[i :: len(self.mine)]) for i, k in enumerate(self.mine)]
        del summands
        sizes, toward, back = self._counts(2)
        message = torch.cat(solved * len(self.row)) if solved else arrived.new_empty(0)
        del solved
        arrived, pending = self.wire.swap(message, back, toward, self.group)
        del message
        yield
        pending.wait()
        messages = dict(zip(self.order, torch.split(arrived, [sizes[k] for k in self.order]), strict=True))
        answers = [self._applied(k, pieces[k], blocks[k], messages[k]) for k in range(len(self.members))]
        raw = [m.here.join(zs) for m, (zs, _) in zip(self.members, answers, strict=True)]
        yield from measured(self, inputs, raw, optimizer, estimable=True)
        directions, lengths = [], []
        for m, z, (zs, duals) in zip(self.members, raw, answers, strict=True):
            factors = [
                step_factor(m, shape, dual if m.length.needs_dual else None)
                for shape, dual in zip(m.whole.shapes, duals, strict=True)
            ]
            uniform = uniform_factor(m)
            if uniform is None:
                z = m.here.join([block * factor for block, factor in zip(zs, factors, strict=True)])
            directions.append(z)
            lengths.append(1.0 if uniform is None else uniform)
        return scaled(batch, directions, lengths)

    def _counts(self, extra: int) -> tuple[list[int], list[int], list[int]]:
        """(entries of each member, entries to and from the ranks that add), with so many numbers for each matrix."""
        sizes = [sum(count * (n * n + extra) for count, n in squares) for squares in self.squares]
        toward = [sum(n for n, adds in zip(sizes, self.adds, strict=True) if adds == rank) for rank in self.ranks]
        own = sum(sizes[k] for k in self.mine)
        return sizes, toward, [own if rank in self.row else 0 for rank in self.ranks]

    def _unpacked(self, k: int, message: Tensor, extra: int) -> list[tuple[Tensor, Tensor]]:
        """(n x n matrices, the `extra` numbers of each) of member k."""
        pairs = []
        parts = torch.split(message, [count * (n * n + extra) for count, n in self.squares[k]])
        for part, (count, n) in zip(parts, self.squares[k], strict=True):
            rows = part.view(count, n * n + extra)
            pairs.append((rows[:, : n * n].reshape(count, n, n), rows[:, n * n :]))
        return pairs

    def _multipliers(self, k: int, terms: Sequence[Tensor]) -> Tensor:
        """For each matrix: Q, the exponent of the common scale, and tr(Q G) = <y, Q y>."""
        m = self.members[k]
        assert isinstance(m.ball, Spectral)
        unpacked = [self._unpacked(k, term, 1) for term in terms]
        parts = []
        for shape, stacks in zip(m.whole.shapes, zip(*unpacked, strict=True), strict=True):
            exponent = torch.stack([e for _, e in stacks]).amax(0)
            total = torch.zeros_like(stacks[0][0])
            for gram, e in stacks:
                total += gram * _power(2.0 * (e - exponent))[:, :, None]
            q = m.ball.polar.at(*sides(shape), total.device).multiplier(total)
            dual = (q * total).sum(dim=(-2, -1))[:, None]
            parts.append(torch.cat((q.flatten(1), exponent, dual), 1))
        return _packed(parts)

    def _applied(
        self, k: int, pieces: Sequence[Piece], blocks: Sequence[Tensor], message: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Q times this rank's blocks, and <m, z> of the whole matrices."""
        zs, duals, shapes = [], [], self.members[k].whole.shapes
        unpacked = self._unpacked(k, message, 2)
        for (y, e, tall), shape, block, (q, numbers) in zip(pieces, shapes, blocks, unpacked, strict=True):
            x = y * _power(e - numbers[:, :1])[:, :, None]
            z = torch.bmm(x, q) if tall else torch.bmm(q, x)
            zs.append(z.to(block.dtype).reshape(block.shape))
            dual = (numbers[:, 1] * _power(numbers[:, 0])).to(torch.promote_types(block.dtype, torch.float32))
            duals.append(dual.reshape((*shape[:-2], 1, 1)))
        return zs, duals


def _unit_scaled(x: Tensor, shape: Sequence[int]) -> Piece:
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


def summed_chunks(members: Sequence[Member], limit: int) -> list[list[Member]]:
    """Chunks whose Gram matrices fit the memory limit, at least one matrix at a time; owners take turns."""
    turns: dict[int, int] = {}
    ordered = []
    for m in members:
        turns[m.owner] = turns.get(m.owner, -1) + 1
        ordered.append((turns[m.owner], m.owner, m))
    chunks: list[list[Member]] = []
    for _, _, m in sorted(ordered, key=lambda entry: entry[:2]):
        if chunks and gram_space([*chunks[-1], m]) <= limit:
            chunks[-1].append(m)
        else:
            chunks.append([m])
    return [sorted(chunk, key=lambda m: m.owner) for chunk in chunks]  # as `Owned` sends them to be measured


def gram_space(members: Sequence[Member]) -> int:
    """Bytes that the busiest rank needs while chunks like this one follow each other.

    Of each matrix there is an n x n term of this rank, its message, and the multiplier, in three chunks; where they
    are added, one of each rank as it arrives, one for each as it leaves, in two chunks, and the oracle's work. Pieces
    are in float64, scaled.
    """
    place, state = members[0].place, members[0].buffers[0].element_size()
    squares = [sum(prod(s[:-2]) * min(sides(s)) ** 2 for s in m.whole.shapes) for m in members]
    own: dict[int, int] = {}
    for m, square in zip(members, squares, strict=True):
        own[m.owner] = own.get(m.owner, 0) + square
    pieces = max(sum(prod(m.place.piece_shape(j)) for m in members) for j in range(len(place.pieces)))
    added = max(own.values()) * len(place.row)
    return 3 * pieces * (2 * 8 + state) + 8 * (4 * sum(squares) + 3 * added + 4 * max(squares))


def reducible(m: Member) -> bool:
    """Whether exactly the long side of every matrix is divided and the oracle can work from X X^T."""
    place, ball, shapes = m.place, m.ball, m.whole.shapes
    if len(place.pieces) == 1 or not isinstance(ball, Spectral):
        return False
    if not all(ball.polar.at(*sides(shape), m.p.device).from_gram for shape in shapes):
        return False
    (side, *more) = {m.view.axes(len(place.shape))[dim] for dim in place.cut} or {None}
    if more or side not in (-2, -1):
        return False
    return all(shape[side] == max(shape[-2:]) for shape in shapes)
