"""Ways to run the oracle on many ranks, as frozen values; `inexact_muon.plan.strategies` has their cost on paper."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from inexact_muon.parallel.compressed import ef21
from inexact_muon.parallel.compressors import COMPRESSORS, Compressor, LowRank
from inexact_muon.parallel.gram import gram_reduced, reducible
from inexact_muon.parallel.tasks import Answer, Run, Solver, Task, collect, give_back
from inexact_muon.schedules.grammar import read, write


@dataclass(frozen=True)
class Strategy(ABC):
    """A way to run the oracle.

    Attributes:
        copies: whether plain tensors are copies on every rank of a process group, among which work is divided.
        averages: whether gradients are each rank's own, and the step takes their mean.
    """

    name: ClassVar[str]
    copies: ClassVar[bool] = False
    averages: ClassVar[bool] = False

    @abstractmethod
    def run(self, tasks: Sequence[Task], solver: Solver) -> Run:
        """The answers to some tasks of one set of ranks; yields whenever messages are under way."""

    def __str__(self) -> str:
        return write(self)


@dataclass(frozen=True)
class Replicated(Strategy):
    """Every rank gathers every matrix and orthogonalises all of them; nothing comes back."""

    name: ClassVar[str] = "replicated"

    def run(self, tasks: Sequence[Task], solver: Solver) -> Run:
        wholes, sends, receives, landing = [], [], [], []
        for task in tasks:
            place = task.place
            row = place.holders[place.copy]
            whole = task.m if len(row) == 1 else task.m.new_empty(place.shape)
            wholes.append(whole)
            if len(row) > 1:
                for j, rank in enumerate(row):
                    part = task.m if rank == place.me else task.m.new_empty(place.piece_shape(j))
                    landing.append((place.take(whole, j), part))
                    if rank != place.me:
                        sends.append((rank, task.m))
                        receives.append((rank, part))
        if landing:
            under_way = solver.wire.exchange(sends, receives)
            yield
            under_way.wait()
            for target, part in landing:
                target.copy_(part)
        return [_own(task, answer) for task, answer in zip(tasks, _solved(tasks, wholes, solver), strict=True)]


@dataclass(frozen=True)
class OwnerRank(Strategy):
    """Each matrix is orthogonalised once, by one rank, the most expensive matrices given out first.

    Pieces travel to the owner, and every holder gets its piece of the answer; a stack of matrices that lie whole on
    their ranks sends nothing. With `copies` plain tensors are divided among the ranks, too.
    """

    name: ClassVar[str] = "owner-rank"
    copies: ClassVar[bool] = True

    def run(self, tasks: Sequence[Task], solver: Solver) -> Run:
        return (yield from together(tasks, solver, lambda task: owned if not _stacked(task, solver) else blockwise))


@dataclass(frozen=True)
class Auto(OwnerRank):
    """Owner-rank for what is divided; plain tensors stay where they are, since nobody says that they are copies."""

    name: ClassVar[str] = "auto"
    copies: ClassVar[bool] = False


@dataclass(frozen=True)
class GramReduced(Strategy):
    """Where the long side alone is cut, only n x n matrices in float64 travel; the rest as owner-rank."""

    name: ClassVar[str] = "gram-reduced"

    def run(self, tasks: Sequence[Task], solver: Solver) -> Run:
        def way(task: Task) -> Any:
            if reducible(task, solver):
                return reduced
            return blockwise if _stacked(task, solver) else owned

        return (yield from together(tasks, solver, way))


@dataclass(frozen=True)
class BlockPeriodic(Strategy):
    """MuonBP (arXiv 2510.16981): pieces are orthogonalised where they lie; every `period`-th step whole matrices are.

    The first step is a whole one. Undivided matrices are whole at every step. Factors by shape are those of the block
    on steps by blocks.

    Attributes:
        period: 1 is Muon.
        block_lr: multiplies lr on steps by blocks, the second of the two step sizes.
    """

    name: ClassVar[str] = "block-periodic"

    period: int = 5
    block_lr: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.period, bool) or not isinstance(self.period, int) or self.period < 1:
            raise ValueError(f"block-periodic: period must be an integer of at least 1, got {self.period!r}")
        if not 0.0 <= self.block_lr < float("inf"):
            raise ValueError(f"block-periodic: block_lr must be finite and not negative, got {self.block_lr}")

    def run(self, tasks: Sequence[Task], solver: Solver) -> Run:
        def by_blocks(some: Sequence[Task], solver: Solver) -> Run:
            return (yield from blockwise(some, solver, self.block_lr))

        def way(task: Task) -> Any:
            if _stacked(task, solver):
                return blockwise
            whole = solver.step(task) % self.period == 0 or len(task.place.pieces) == 1
            return owned if whole else by_blocks

        return (yield from together(tasks, solver, way))


@dataclass(frozen=True)
class Compressed(Strategy):
    """EF21-Muon (arXiv 2510.00643): compressed changes of momenta go to the owner, of weights to everyone.

    Each rank works on its own part of the batch, and nothing else may average gradients: no DistributedDataParallel,
    or its `no_sync`. Gradients of AdamW's parameters are averaged in the step.

    Attributes:
        up: compressor of momenta.
        down: compressor of weights; None is the same as up.
    """

    name: ClassVar[str] = "compressed"
    copies: ClassVar[bool] = True
    averages: ClassVar[bool] = True

    up: Compressor = field(default_factory=LowRank)
    down: Compressor | None = None

    def run(self, tasks: Sequence[Task], solver: Solver) -> Run:
        return (yield from ef21(tasks, solver, self.up, self.up if self.down is None else self.down))


def together(tasks: Sequence[Task], solver: Solver, way: Any) -> Run:
    """Tasks that go different ways, one way after the other."""
    ways: dict[Any, list[int]] = {}
    for i, task in enumerate(tasks):
        ways.setdefault(way(task), []).append(i)
    answers: dict[int, Answer] = {}
    for run, places in ways.items():
        answers.update(zip(places, (yield from run([tasks[i] for i in places], solver)), strict=True))
    return [answers[i] for i in range(len(tasks))]


def owned(tasks: Sequence[Task], solver: Solver) -> Run:
    """Pieces to the owner, the oracle once, pieces of the answer to every holder."""
    if not any(task.place.shared for task in tasks):
        return _solved(tasks, [task.m for task in tasks], solver)
    wholes, under_way = collect(tasks, [task.m for task in tasks], solver.wire)
    yield
    under_way.wait()
    mine = [(i, task, whole) for i, (task, whole) in enumerate(zip(tasks, wholes, strict=True)) if whole is not None]
    solved = _solved([task for _, task, _ in mine], [whole for _, _, whole in mine], solver)
    answers = dict(zip((i for i, _, _ in mine), solved, strict=True))
    zs = [answers[i].z if i in answers else None for i in range(len(tasks))]
    pieces, under_way = give_back(tasks, zs, solver.wire)
    yield
    under_way.wait()
    factors = [answers[i].factor if i in answers else solver.uniform(task) for i, task in enumerate(tasks)]
    return [Answer(piece, factor) for piece, factor in zip(pieces, factors, strict=True)]


def blockwise(tasks: Sequence[Task], solver: Solver, lr: float = 1.0) -> Run:
    """Each rank's own piece as matrices of its own; nothing is sent unless the answer is to be measured."""
    blocks = [solver.blocks(task) for task in tasks]
    given = [[x for x in some if x.numel()] for some in blocks]
    answers = []
    for task, some, ms, zs in zip(tasks, blocks, given, solver.directions(tasks, given), strict=True):
        solved = iter(zip(zs, [lr * factor for factor in solver.factors(task, ms, zs)], strict=True))
        pairs = [next(solved) if x.numel() else (x, None) for x in some] if ms else []  # the view wants empty ones back
        known = next((factor for _, factor in pairs if factor is not None), 1.0)
        factors = [known if factor is None else factor for _, factor in pairs]
        answers.append(solver.answer(task, task.m, [z for z, _ in pairs], factors))
    yield from _measured(tasks, answers, solver, exact=True)
    return answers


def reduced(tasks: Sequence[Task], solver: Solver) -> Run:
    """Gram-reduced."""
    answers = yield from gram_reduced(tasks, solver)
    yield from _measured(tasks, answers, solver, exact=False)
    return answers


def _solved(tasks: Sequence[Task], wholes: Sequence[Tensor], solver: Solver) -> list[Answer]:
    """The oracle on whole matrices; its owner measures the answer."""
    answers = solver.solve(tasks, wholes)
    for task, whole, answer in zip(tasks, wholes, answers, strict=True):
        if answer.plain is not None and task.mine:
            solver.record(task, whole, answer.plain, exact=False)
    return answers


def _measured(tasks: Sequence[Task], answers: Sequence[Answer], solver: Solver, exact: bool) -> Generator[None]:
    """Answers that no rank has whole go to the owners where they are to be measured, and what they answer to."""
    pairs = [(task, answer.plain) for task, answer in zip(tasks, answers, strict=True) if answer.plain is not None]
    if not pairs:
        return
    wanted = [task for task, _ in pairs]
    ms, first = collect(wanted, [task.m for task in wanted], solver.wire)
    zs, second = collect(wanted, [z for _, z in pairs], solver.wire)
    yield
    first.wait()
    second.wait()
    for task, m, z in zip(wanted, ms, zs, strict=True):
        if m is not None and z is not None:
            solver.record(task, m, z, exact)


def _own(task: Task, answer: Answer) -> Answer:
    """This rank's piece of a whole answer."""
    assert answer.z is not None
    return Answer(task.place.take(answer.z, task.place.piece), answer.factor)


def _stacked(task: Task, solver: Solver) -> bool:
    """Whether the pieces are stacks of whole matrices."""
    axes = solver.axes(task)
    return bool(task.place.cut) and all(axes[dim] == -3 for dim in task.place.cut)


STRATEGIES: dict[str, type] = {
    cls.name: cls for cls in (Auto, Replicated, OwnerRank, GramReduced, BlockPeriodic, Compressed)
}
"""Name -> class, for text only."""


def parse(text: str) -> Strategy:
    """The strategy that a text names: "owner-rank", "block-periodic:4", "compressed(up=low-rank:8, down=natural)"."""
    strategy: Any = read(text, {**STRATEGIES, **COMPRESSORS})
    if not isinstance(strategy, Strategy):
        raise ValueError(f"{text!r} is a compressor, not a strategy: write compressed(up={text})")
    return strategy
