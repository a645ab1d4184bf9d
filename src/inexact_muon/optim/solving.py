"""The optimizer as strategies see it: the oracle of one step, factors of its answers, and their measurement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from inexact_muon.lmo import Ball
from inexact_muon.lmo._base import sides
from inexact_muon.optim.agreement import Entry
from inexact_muon.optim.layout import gathered, laid_out, same_layout
from inexact_muon.optim.lengths import Length
from inexact_muon.optim.scales import SCALES
from inexact_muon.optim.telemetry import combine, measuring_cost, oracle_flops
from inexact_muon.optim.update import Number, make_job, momentum, remember, walk
from inexact_muon.parallel.place import Place, local, place_of
from inexact_muon.parallel.tasks import Answer, Task, assign, interleaved
from inexact_muon.polar.batching import limit_on, within, work
from inexact_muon.views import View

if TYPE_CHECKING:
    from inexact_muon.optim.core import LMOOptimizer


class Solving:
    """Implements `inexact_muon.parallel.tasks.Solver`."""

    def __init__(self, optimizer: LMOOptimizer, known: Mapping[int, bool]) -> None:
        """The step of an optimizer, for whose parameters it may be `known` whether gradients are finite."""
        self._optimizer = optimizer
        self._known = known
        self.wire = optimizer.team.wire

    def answers(self, moving: Sequence[Entry]) -> Iterator[tuple[Task, Answer]]:
        """Every parameter with its answer: what one set of ranks holds after the other, in chunks within the memory."""
        optimizer, drafts = self._optimizer, []
        for group, p in moving:
            place = optimizer.team.place(p) or place_of(p.new_empty(p.shape, device="meta"))
            assert place is not None
            shapes, ball = optimizer.view(group).shapes(p.shape), optimizer.ball_of(p, group)
            cost = float(sum(oracle_flops(ball, shape) for shape in shapes) or p.numel())
            # Where ranks share the work the expensive ones go first, else alike ones lie next to each other.
            order = (place.ranks, -cost * place.shared, group["ball"], min(sides(shapes[0])), shapes[0])
            drafts.append((order, cost, place, group, p))
        drafts.sort(key=lambda draft: draft[0])
        owners = assign([(place, cost) for _, cost, place, _, _ in drafts])
        given = [(group, p, place, owner) for (*_, place, group, p), owner in zip(drafts, owners, strict=True)]
        for ranks, some in groupby(given, key=lambda draft: draft[2].ranks):
            limit = limit_on(given[0][1].device, optimizer.memory_limit) * len(ranks)
            chunks = within(((draft, work(draft[1])) for draft in some), limit)
            tasks = ([task for draft in chunk for task in self._task(*draft)] for chunk in chunks)
            for made, answers in interleaved((made, optimizer.team.strategy.run(made, self)) for made in tasks):
                yield from zip(made, answers, strict=True)

    def _task(self, group: dict[str, Any], p: Tensor, place: Place, owner: int) -> Iterator[Task]:
        """The parameter as work, unless its gradient is known not to be finite."""
        state = self._optimizer.state_of(p, ("momentum_buffer",))
        job = make_job(p, group, state, self._known.get(id(p)))
        if job.finite is False:
            job.count()
            return
        seen, job.weight = momentum(job)
        job.seen = seen
        gather = self._optimizer.team.place(p) is None
        piece = gathered(seen) if gather else local(same_layout(seen, p))
        yield Task(piece, place, owner, p if gather else local(p), state, job)

    def write(self, task: Task, answer: Answer) -> None:
        """The parameter, where a strategy has not written it, and its momentum."""
        job = task.job
        if answer.z is not None:
            answer.z = laid_out(answer.z, job.p) if task.p is job.p else answer.z
            self.walk(task, task.p, answer)
        elif self.wants(task):
            self._optimizer.telemetry.sizes(id(job.p), 0.0, 0.0)  # every rank has a note of what is measured
        remember(job, job.seen, job.weight)
        # Nothing of it may live while the next one is worked on.
        task.m, answer.z, answer.plain, job.seen = task.m.new_empty(0), None, None, None

    def ball(self, task: Task) -> Ball:
        """The ball of a task, with the oracle that a policy has chosen."""
        return self._optimizer.ball_of(task.job.p, task.job.group)

    def solve(self, tasks: Sequence[Task], wholes: Sequence[Tensor]) -> list[Answer]:
        """One call of each ball for all of its matrices."""
        cut = [self._view(task).cut(whole) for task, whole in zip(tasks, wholes, strict=True)]
        found = self.directions(tasks, cut)
        return [
            self.answer(task, whole, zs, self.factors(task, ms, zs))
            for task, whole, ms, zs in zip(tasks, wholes, cut, found, strict=True)
        ]

    def directions(self, tasks: Sequence[Task], matrices: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """z of each matrix of each task."""
        found = self._optimizer.directions([self.ball(task) for task in tasks], matrices)
        return [[z.to(m.dtype) for z, m in zip(*pair, strict=True)] for pair in zip(found, matrices, strict=True)]

    def shapes(self, task: Task) -> list[tuple[int, ...]]:
        """Of the whole matrices."""
        return self._view(task).shapes(task.place.shape)

    def blocks(self, task: Task) -> list[Tensor]:
        """This rank's piece, cut where the parameter is cut."""
        return self._view(task).cut_piece(task.m, task.place.first, task.place.shape)

    def axes(self, task: Task) -> tuple[int | None, ...]:
        """Where the dimensions of the parameter lie in its matrices."""
        return self._view(task).axes(len(task.place.shape))

    def uniform(self, task: Task) -> float:
        """The factor by shape, if there is one for all matrices."""
        if self._length(task).needs_dual:
            return 1.0
        factors = {self.factor(task, shape) for shape in self.shapes(task)}
        return float(factors.pop()) if len(factors) == 1 else 1.0

    def factors(self, task: Task, ms: Sequence[Tensor], zs: Sequence[Tensor]) -> list[Number]:
        """What multiplies lr z: the ball's radius, the scale by shape and the length, and what a rule carries."""
        if not self._length(task).needs_dual:
            return [self.factor(task, m.shape) for m in ms]
        sums = [_inner(m, z) for m, z in zip(ms, zs, strict=True)]
        return [self.factor(task, m.shape, dual) for m, dual in zip(ms, sums, strict=True)]

    def factor(self, task: Task, shape: Sequence[int], dual: Tensor | None = None) -> Number:
        """The same for one matrix, whose <m, z> is known."""
        group, length, radius = task.job.group, self._length(task), self.ball(task).radius(shape)
        factor: Number = group["radius"]
        if length.needs_dual:
            assert dual is not None
            factor = length(group["radius"], dual * radius)
        carried: float = task.state.get("lr_factor", 1.0)
        return carried * (radius * SCALES[group["scale"]](*sides(shape)) * factor)

    def answer(self, task: Task, like: Tensor, zs: Sequence[Tensor], factors: Sequence[Number]) -> Answer:
        """One factor where it is the same for all matrices, else it is in z."""
        if not zs:
            return Answer(torch.zeros_like(like), 1.0, torch.zeros_like(like) if self.wants(task) else None)
        view, place = self._view(task), task.place
        start = (0,) * like.ndim if tuple(like.shape) == place.shape else place.first
        plain = view.join_piece(zs, like.shape, start, place.shape)
        first = factors[0]
        if isinstance(first, Tensor) or any(factor != first for factor in factors):
            scaled_zs = [z * factor for z, factor in zip(zs, factors, strict=True)]
            scaled = view.join_piece(scaled_zs, like.shape, start, place.shape)
            # Where z travels its dtype is that of the pieces; a lone one stays wide, since half precision may overflow.
            scaled = scaled.to(like.dtype) if task.place.shared else scaled
            return Answer(scaled, 1.0, plain if self.wants(task) else None)
        return Answer(plain, first, plain if self.wants(task) else None)

    def wants(self, task: Task) -> bool:
        """Whether this step's answer is to be measured."""
        return id(task.job.p) in self._optimizer.telemetry.chosen and bool(task.job.finite)

    def record(self, task: Task, m: Tensor, z: Tensor, exact: bool) -> None:
        """Measures z, the answer to m, both whole."""
        view, ball = self._view(task), self.ball(task)
        pairs = [(a, b) for a, b in zip(view.cut(m), view.cut(z), strict=True) if a.numel()]
        if pairs:
            answers = [(ball, a, -ball.radius(a.shape) * b) for a, b in pairs]
            self._optimizer.telemetry.note(id(task.job.p), combine(answers, exact))

    def walk(self, task: Task, x: Tensor, answer: Answer) -> None:
        """x <- (1 - lr decay) x - lr factor z, in place, and the sizes of both if they are wanted."""
        assert answer.z is not None
        if self.wants(task):
            counts = task.place.copy == 0 or x is not task.p  # one copy counts, or a server's own
            sizes = [float(gathered(y.double().square().sum())) if counts else 0.0 for y in (answer.z, x)]
            rate = float(task.job.group["lr"]) * float(answer.factor)
            self._optimizer.telemetry.sizes(id(task.job.p), rate * rate * sizes[0], sizes[1])
        walk(task.job, x, answer.z, answer.factor)

    def step(self, task: Task) -> int:
        """The number of the step."""
        turn: int = task.job.group["turn"]
        return turn

    def _view(self, task: Task) -> View:
        return self._optimizer.view(task.job.group)

    def _length(self, task: Task) -> Length:
        return self._optimizer.length(task.job.group)


def _inner(m: Tensor, z: Tensor) -> Tensor:
    """<m, z> of each matrix, kept as (..., 1, 1), in float32 or better: half precision ends at 65504."""
    wide = torch.promote_types(m.dtype, torch.float32)
    return (m.to(wide) * z.to(wide)).sum(dim=(-2, -1) if m.ndim >= 2 else None, keepdim=True)


def costs(optimizer: LMOOptimizer, ready: Sequence[Entry]) -> Iterator[tuple[int, float, float]]:
    """(id, cost of measuring, work of the oracle) of each parameter."""
    for group, p in ready:
        shapes = optimizer.view(group).shapes(p.shape) if group["algorithm"] == "lmo" else []
        ball = optimizer.ball(group)
        measuring = sum(measuring_cost(ball, shape) for shape in shapes)
        yield id(p), measuring, sum(oracle_flops(ball, shape) for shape in shapes)
