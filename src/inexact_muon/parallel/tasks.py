"""Parameters of one step as work for several ranks: who owns each, and how pieces reach the owner and come back."""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from inexact_muon.lmo import Ball
from inexact_muon.parallel.place import Place
from inexact_muon.parallel.wire import Pending, Wire

Number = float | Tensor


@dataclass
class Task:
    """One parameter in one step.

    Attributes:
        m: this rank's piece of what the ball sees.
        place: who holds the pieces.
        owner: the rank that orthogonalises it.
        p: this rank's piece of the parameter, in place.
        state: of the parameter.
        job: what the optimizer knows about it.
    """

    m: Tensor
    place: Place
    owner: int
    p: Tensor
    state: dict[str, Any]
    job: Any

    @property
    def mine(self) -> bool:
        """Whether this rank is the owner."""
        return self.owner == self.place.me or not self.place.shared


@dataclass
class Answer:
    """This rank's piece of z, to be subtracted lr factor times; None where the parameter has been written already.

    Attributes:
        plain: z without factors, if it is to be measured.
    """

    z: Tensor | None
    factor: Number = 1.0
    plain: Tensor | None = None


class Solver(Protocol):
    """What a strategy asks of the optimizer."""

    wire: Wire

    def solve(self, tasks: Sequence[Task], wholes: Sequence[Tensor]) -> list[Answer]:
        """The answers to whole parameters, on one rank."""

    def uniform(self, task: Task) -> float:
        """The factor of the answer to a whole parameter as far as its shape says it; 1 where it is in the answer."""

    def ball(self, task: Task) -> Ball:
        """The ball of a task."""

    def shapes(self, task: Task) -> list[tuple[int, ...]]:
        """Shapes of the whole matrices that the ball sees."""

    def blocks(self, task: Task) -> list[Tensor]:
        """This rank's piece, cut where the parameter is cut into matrices."""

    def axes(self, task: Task) -> tuple[int | None, ...]:
        """Where each dimension of the parameter lies in its matrices: -3 for a batch, -2, -1; None for several."""

    def directions(self, tasks: Sequence[Task], matrices: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """z of each matrix of each task."""

    def factors(self, task: Task, ms: Sequence[Tensor], zs: Sequence[Tensor]) -> list[Number]:
        """What multiplies lr z, for each matrix."""

    def factor(self, task: Task, shape: Sequence[int], dual: Tensor) -> Number:
        """The same from the shape of a whole matrix and dual = <m, z>."""

    def answer(self, task: Task, like: Tensor, zs: Sequence[Tensor], factors: Sequence[Number]) -> Answer:
        """The matrices put together as `like` is, with their factors; `plain` is there if it is to be measured."""

    def wants(self, task: Task) -> bool:
        """Whether this step's answer is to be measured."""

    def record(self, task: Task, m: Tensor, z: Tensor, exact: bool) -> None:
        """Measures z, the answer to m, both whole."""

    def walk(self, task: Task, x: Tensor, answer: Answer) -> None:
        """x <- (1 - lr decay) x - lr factor z, in place."""

    def step(self, task: Task) -> int:
        """The number of the step."""


Run = Generator[None, None, list[Answer]]
"""Work on some tasks that yields whenever messages are under way."""


def assign(work: Sequence[tuple[Place, float]]) -> list[int]:
    """The owner of each: the holder with the least work so far, the most expensive first; ties to the lower rank.

    What one set of ranks holds is balanced by itself: another rank may not know of the rest.
    """
    owners = [0] * len(work)
    queues: dict[tuple[int, ...], list[tuple[float, int]]] = {}
    for i in sorted(range(len(work)), key=lambda i: -work[i][1]):
        place, cost = work[i]
        if not place.shared:
            continue  # also spares a compiled step the heap, which it cannot trace
        queue = queues.setdefault(place.ranks, [(0.0, rank) for rank in place.ranks])
        load, owners[i] = queue[0]
        heapq.heapreplace(queue, (load + cost, owners[i]))
    return owners


def interleaved(runs: Iterable[tuple[list[Task], Run]]) -> Iterator[tuple[list[Task], list[Answer]]]:
    """Runs of which one computes while the messages of its neighbours are under way.

    The next run sends its pieces before this one computes, and this one's answers travel while the next one computes.
    """
    started: list[tuple[list[Task], Run]] = []
    for entry in runs:
        started.append(entry)
        yield from _advance(started)
    while started:
        yield from _advance(started)


def _advance(started: list[tuple[list[Task], Run]]) -> Iterator[tuple[list[Task], list[Answer]]]:
    """Every run goes on to its next messages, the youngest first; those that end leave."""
    for tasks, run in started[::-1]:
        try:
            next(run)
        except StopIteration as end:
            started[:] = [entry for entry in started if entry[1] is not run]
            yield tasks, end.value


def collect(tasks: Sequence[Task], pieces: Sequence[Tensor], wire: Wire) -> tuple[list[Tensor | None], Pending]:
    """Starts sending pieces to owners; the wholes that this rank owns are filled when the messages are through.

    The pieces come from the owner's own copy.
    """
    wholes: list[Tensor | None] = []
    sends, receives, landed = [], [], []
    for task, x in zip(tasks, pieces, strict=True):
        place = task.place
        row = place.holders[place.copy_of(task.owner)] if place.shared else (place.me,)
        if task.mine:
            whole = x if len(row) == 1 else x.new_empty(place.shape)
            wholes.append(whole)
            for j, rank in enumerate(row):
                if len(row) > 1:
                    part = x if rank == place.me else x.new_empty(place.piece_shape(j))
                    landed.append((place.take(whole, j), part))
                    if rank != place.me:
                        receives.append((rank, part))
        else:
            wholes.append(None)
            if place.me in row:
                sends.append((task.owner, x))
    return wholes, _Landing(wire.exchange(sends, receives), landed)


def give_back(tasks: Sequence[Task], wholes: Sequence[Tensor | None], wire: Wire) -> tuple[list[Tensor], Pending]:
    """Starts sending each holder its piece of what the owners know; filled when the messages are through."""
    pieces, sends, receives = [], [], []
    for task, whole in zip(tasks, wholes, strict=True):
        place = task.place
        if whole is None:
            piece = task.m.new_empty(place.piece_shape(place.piece))
            receives.append((task.owner, piece))
        else:
            piece = place.take(whole, place.piece)
            others = ((rank, j) for row in place.holders for j, rank in enumerate(row) if rank != place.me)
            sends += [(rank, place.take(whole, j)) for rank, j in others if place.shared]
        pieces.append(piece)
    return pieces, wire.exchange(sends, receives)


class _Landing(Pending):
    """Pieces that are copied to their place in a whole when they are there."""

    def __init__(self, pending: Pending, landed: Sequence[tuple[Tensor, Tensor]]) -> None:
        self._pending, self._landed = pending, landed

    def wait(self) -> None:
        self._pending.wait()
        with torch.no_grad():
            for target, part in self._landed:
                target.copy_(part)
        self._landed = ()
