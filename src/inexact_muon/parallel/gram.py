"""Gram-reduced: no whole matrix anywhere, only n x n matrices in float64 travel.

With the long side cut, X = [X_1 ... X_p] and X X^T = sum_r X_r X_r^T. Each rank forms its term; the owner of the matrix
in each copy adds them in the order of ranks, works out Q with answer Q X and sends Q to all; each rank multiplies its
piece. In float64, because a float32 sum in another order moves the answer to an ill-conditioned matrix by 1e-3, and
without restarts, which would need another sum. Each piece is brought to entries near 1 by a power of two first, so that
squares neither overflow nor vanish; the exponents travel with the matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from inexact_muon.lmo import Spectral
from inexact_muon.lmo._base import sides
from inexact_muon.parallel.tasks import Answer, Run, Solver, Task

NOTHING = -5000.0
"""The exponent of a piece that is zero or empty, so that it decides nothing."""


def reducible(task: Task, solver: Solver) -> bool:
    """Whether the long side of every matrix, and it alone, is cut, and the oracle can work from X X^T."""
    place, ball = task.place, solver.ball(task)
    if len(place.pieces) == 1 or not isinstance(ball, Spectral):
        return False
    if not all(ball.polar.at(*sides(shape), task.m.device).from_gram for shape in solver.shapes(task)):
        return False
    axes = solver.axes(task)
    (side, *more) = {axes[dim] for dim in place.cut} or {None}
    if more or side not in (-2, -1):
        return False
    return all(shape[side] == max(shape[-2:]) for shape in solver.shapes(task))


def gram_reduced(tasks: Sequence[Task], solver: Solver) -> Run:
    """The answers to tasks that are `reducible`."""
    scaled = [[_scaled(x, solver.shapes(task)[i]) for i, x in enumerate(solver.blocks(task))] for task in tasks]
    terms = [_packed([torch.cat((_gram(y, t).flatten(1), e), 1) for y, e, t in parts]) for parts in scaled]
    owners = [task.place.holders[task.place.copy][_nth(task)] for task in tasks]
    sends, receives, theirs = [], [], []
    for task, term, owner in zip(tasks, terms, owners, strict=True):
        row = task.place.holders[task.place.copy]
        if owner == task.place.me:
            found = [term if rank == owner else torch.empty_like(term) for rank in row]
            receives += [(rank, x) for rank, x in zip(row, found, strict=True) if rank != owner]
            theirs.append(found)
        else:
            sends.append((owner, term))
            theirs.append([])
    under_way = solver.wire.exchange(sends, receives)
    yield
    under_way.wait()
    solved = [_multipliers(task, given, solver) if given else None for task, given in zip(tasks, theirs, strict=True)]
    sends, receives, messages = [], [], list[Tensor]()
    for task, message, term, owner in zip(tasks, solved, terms, owners, strict=True):
        if message is None:
            message = term.new_empty(term.numel() + sum(len(e) for _, e, _ in scaled[len(messages)]))
            receives.append((owner, message))
        else:
            sends += [(rank, message) for rank in task.place.holders[task.place.copy] if rank != owner]
        messages.append(message)
    under_way = solver.wire.exchange(sends, receives)
    yield
    under_way.wait()
    return [_applied(task, parts, x, solver) for task, parts, x in zip(tasks, scaled, messages, strict=True)]


def _nth(task: Task) -> int:
    """Which piece of its copy the owner holds: copies repeat each other and send nothing to each other."""
    return task.place.holders[task.place.copy_of(task.owner)].index(task.owner)


def _scaled(x: Tensor, shape: Sequence[int]) -> tuple[Tensor, Tensor, bool]:
    """(y, e, tall) with x = 2^e y, y (batch, ., .) in float64 with entries of size 1."""
    tall = shape[-2] > shape[-1] or (shape[-2] == shape[-1] and x.shape[-2] != shape[-2])
    y = x.reshape(prod(shape[:-2]), *x.shape[-2:]).double()
    if not x.numel():
        return y, y.new_full((len(y), 1), NOTHING), tall
    largest = y.abs().amax(dim=(-2, -1))
    exponent = torch.frexp(largest).exponent.double()
    half = (exponent / 2).floor()  # 2^-e may overflow where x is subnormal: multiply twice
    y = y * _power(-half)[:, None, None] * _power(half - exponent)[:, None, None]
    return y, torch.where(largest > 0, exponent, NOTHING)[:, None], tall


def _gram(y: Tensor, tall: bool) -> Tensor:
    return torch.bmm(y.mT, y) if tall else torch.bmm(y, y.mT)


def _power(exponent: Tensor) -> Tensor:
    """2^e, exactly."""
    return torch.ldexp(torch.ones_like(exponent), exponent.to(torch.int32))


def _packed(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.flatten() for part in parts])


def _unpacked(message: Tensor, counts: Sequence[tuple[int, int]], extra: int) -> list[tuple[Tensor, Tensor]]:
    """(n x n matrices, the numbers that follow each) for stacks of so many matrices of a side n."""
    found = []
    parts = torch.split(message, [count * (n * n + extra) for count, n in counts])
    for part, (count, n) in zip(parts, counts, strict=True):
        rows = part.view(count, n * n + extra)
        found.append((rows[:, : n * n].reshape(count, n, n), rows[:, n * n :]))
    return found


def _counts(task: Task, solver: Solver) -> list[tuple[int, int]]:
    return [(prod(shape[:-2]), min(sides(shape))) for shape in solver.shapes(task)]


def _multipliers(task: Task, terms: Sequence[Tensor], solver: Solver) -> Tensor:
    """For each matrix Q, the exponent of the scale in which it was found, and tr(Q G) = <y, Q y>."""
    ball = solver.ball(task)
    assert isinstance(ball, Spectral)
    counts = _counts(task, solver)
    unpacked = [_unpacked(term, counts, 1) for term in terms]
    parts = []
    for shape, stacks in zip(solver.shapes(task), zip(*unpacked, strict=True), strict=True):
        exponent = torch.stack([e for _, e in stacks]).amax(0)
        total = torch.zeros_like(stacks[0][0])
        for gram, e in stacks:
            total += gram * _power(2.0 * (e - exponent))[:, :, None]
        q = ball.polar.at(*sides(shape), task.m.device).multiplier(total)
        dual = (q * total).sum(dim=(-2, -1))[:, None]
        parts.append(torch.cat((q.flatten(1), exponent, dual), 1))
    return _packed(parts)


def _applied(task: Task, parts: Sequence[tuple[Tensor, Tensor, bool]], message: Tensor, solver: Solver) -> Answer:
    """Q times the piece, with its factors."""
    shapes, zs, factors = solver.shapes(task), [], []
    unpacked = _unpacked(message, _counts(task, solver), 2)
    for (y, e, tall), shape, block, (q, numbers) in zip(parts, shapes, solver.blocks(task), unpacked, strict=True):
        x = y * _power(e - numbers[:, :1])[:, :, None]
        z = torch.bmm(x, q) if tall else torch.bmm(q, x)
        zs.append(z.to(task.m.dtype).reshape(block.shape))
        dual = (numbers[:, 1] * _power(numbers[:, 0])).to(torch.promote_types(task.m.dtype, torch.float32))
        factors.append(solver.factor(task, shape, dual.reshape((*shape[:-2], 1, 1))))
    return solver.answer(task, task.m, zs, factors)
