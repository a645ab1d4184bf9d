"""Per-parameter samples (inexactness, update size, skipped steps), and observers of an optimizer's steps.

Sampling reads values on the host; other steps do not synchronise. The first sampled step measures every parameter;
later ones rotate through the parameters within a budget, a fraction of the oracles' work.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf, isnan, nan, prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from inexact_muon.lmo import Ball, Spectral
from inexact_muon.optim.decay import PLAIN_STAGES
from inexact_muon.optim.group import Group

if TYPE_CHECKING:
    from inexact_muon.inexactness import Inexactness

Entry = tuple[Group, Tensor]
"""(group, parameter)"""

Answer = tuple[Ball, Tensor, Tensor]
"""(ball, m, d_hat) of one matrix: LMO input and output."""


class Observer:
    """Called with the inputs and outputs of oracles; must not modify them. Override the methods you need."""

    def wants(self, optimizer: Optimizer, entries: Sequence[Entry]) -> Collection[int]:
        """Ids of the parameters to observe, among the (group, parameter) entries of this step."""
        return ()

    def seen(self, name: str, answers: Sequence[Answer]) -> None:
        """Called before W changes with the answers of one observed parameter, on the rank that holds them entirely."""

    def asking(self) -> None:
        """Called before the oracles run."""

    def answered(self) -> None:
        """Called after the oracles have run."""


SHARE = 0.1
"""Default fraction of the oracles' work that measuring may add to a sampled step."""

COLUMNS = 11
"""Numbers of a sample that ranks add up."""


@dataclass
class Sample:
    """One parameter at one step; `applied` is the inexactness after its stages, if it has any."""

    step: int
    inexactness: Inexactness | None
    update_rms: float
    update_ratio: float
    applied: Inexactness | None = None


@dataclass
class Telemetry:
    """Samples of some parameters every `every` steps (0: never).

    Attributes:
        share: fraction of the oracles' work in sampled steps that measuring may take once every parameter has a sample.
        credit: unspent part of it.
        chosen: ids of the parameters to sample in this step.
        partial_sums: this rank's contribution to each, `COLUMNS` numbers: 1 if it measured, delta, gap, overshoot,
            lifted (NaN if it has none), the squared norms of update and weight, and 1, delta, gap, overshoot of what
            stages made of it.
    """

    every: int = 0
    share: float = SHARE
    step: int = 0
    credit: float = 0.0
    samples: WeakIdKeyDictionary = field(default_factory=WeakIdKeyDictionary)
    chosen: set[int] = field(default_factory=set)
    partial_sums: dict[int, list[float]] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy has the options, and no samples: they are of other parameters."""
        return Telemetry, (self.every, self.share)

    def begin(self, costs: Callable[[], Iterable[tuple[Tensor, float, float]]]) -> None:
        """Start a step and choose what to sample.

        Args:
            costs: yields (parameter, cost of measuring, work of the oracle); called in sampled steps only.
        """
        self.step += 1
        self.chosen, self.partial_sums = set(), {}
        if self.every == 0 or (self.step - 1) % self.every:
            return
        entries = list(costs())
        self.credit += self.share * sum(work for _, _, work in entries)
        last = {id(p): self.samples[p].step if p in self.samples else -1 for p, _, _ in entries}
        for p, cost, _ in sorted(entries, key=lambda entry: last[id(entry[0])]):  # never sampled first
            if last[id(p)] >= 0:
                if cost > self.credit:
                    break  # strict rotation: cheaper parameters do not overtake this one
                self.credit -= cost
            self.chosen.add(id(p))
        # Cap credit at the most expensive sample.
        self.credit = min(self.credit, max((cost for _, cost, _ in entries), default=0.0))

    def record(self, key: int, inexactness: Inexactness, applied: bool = False) -> None:
        """Record the inexactness of a parameter, or what stages make of it; called on one of the ranks that hold it."""
        lifted = nan if inexactness.lifted is None else inexactness.lifted
        numbers = [1.0, *map(float, (inexactness.delta, inexactness.gap, inexactness.overshoot))]
        row = self.partial_sums.setdefault(key, [0.0] * COLUMNS)
        if applied:
            row[7:] = numbers
        else:
            row[:5] = [*numbers, float(lifted)]

    def record_sizes(self, key: int, update: Tensor, weight: Tensor, rate: float = 1.0) -> None:
        """Add ||rate * update||_F^2 and ||weight||_F^2 of this rank's piece, before the update."""
        row = self.partial_sums.setdefault(key, [0.0] * COLUMNS)
        row[5] += rate * rate * float(update.double().square().sum())
        row[6] += float(weight.double().square().sum())

    def store_local_samples(self, params: Iterable[Tensor]) -> None:
        """Store the samples of parameters that no other rank shares."""
        for p in params:
            if id(p) in self.partial_sums:
                self.store(p, self.partial_sums[id(p)])

    def sample_of(self, p: Tensor) -> Sample | None:
        """The last sample of a parameter."""
        return self.samples.get(p)  # type: ignore[no-untyped-call]

    def store(self, p: Tensor, total: Sequence[float]) -> None:
        """Store the sample of a parameter, from its partial sums added over all ranks."""
        from inexact_muon.inexactness import Inexactness

        measured, delta, gap, overshoot, lifted, update, weight, staged, *applied = total
        size, weight = update**0.5, weight**0.5
        ratio = size / weight if weight > 0 else inf if size > 0 else 0.0
        inexactness = Inexactness(delta, gap, overshoot, None if isnan(lifted) else lifted) if measured else None
        after = Inexactness(*applied) if staged else None
        self.samples[p] = Sample(self.step, inexactness, size / max(1, p.numel()) ** 0.5, ratio, after)


def costs(optimizer: Any, entries: Iterable[Entry]) -> Iterator[tuple[Tensor, float, float]]:
    """(parameter, cost of measuring, work of the oracle) of each."""
    for group, p in entries:
        shapes = optimizer.view(group).shapes(p.shape) if group["algorithm"] == "lmo" else []
        ball = optimizer.ball(group)
        measuring = sum(measuring_cost(ball, shape) for shape in shapes)
        if not PLAIN_STAGES.items() <= group.items():  # what they make is measured by an SVD
            measuring += sum(300.0 * prod(shape) * min(shape[-2:]) for shape in shapes)
        yield p, measuring, sum(oracle_flops(ball, shape, p.device) for shape in shapes)


def measuring_cost(ball: Ball, shape: Sequence[int]) -> float:
    """Time to measure one LMO output, as flops of a matrix product that takes as long (benchmarks/telemetry.py).

    Estimates use matrix-vector products, which are memory-bound; up to a short side of `SMALL` they use an SVD.
    """
    if not isinstance(ball, Spectral):
        return 8.0 * prod(shape)
    from inexact_muon.inexactness import SMALL

    n, m = sorted(shape[-2:])
    return 2.0 * prod(shape[:-2]) * n * n * m * (4.0 if n >= 512 else 40.0 if n > SMALL else 150.0)


def oracle_flops(ball: Ball, shape: Sequence[int], device: torch.device | None = None) -> int:
    """Floating point operations of the oracle on a matrix or a stack of them; 0 for balls with a closed form."""
    return prod(shape[:-2]) * ball.polar.flops_on(shape[-2], shape[-1], device) if isinstance(ball, Spectral) else 0


def combine(answers: Sequence[Answer], exact: bool = False) -> Inexactness:
    """Inexactness of several matrices as one point of the product of their balls.

    The norm of a product ball is the maximum and its dual norm the sum: delta and overshoot are the largest, the gap is
    the mean weighted by dual norms, and lifted counts the directions of all.
    """
    from inexact_muon.inexactness import Inexactness, assess

    delta = overshoot = total = achieved = lifted = directions = 0.0
    for ball, m, d_hat in answers:
        inexactness, dual, descent = assess(ball, m, d_hat, exact)
        delta = max(delta, float(torch.as_tensor(inexactness.delta).max()))
        overshoot = max(overshoot, float(torch.as_tensor(inexactness.overshoot).max()))
        total += float(dual.sum())
        achieved += float(descent.sum())
        if inexactness.lifted is not None:
            lifted += min(m.shape[-2:]) * float(torch.as_tensor(inexactness.lifted).sum())
            directions += min(m.shape[-2:]) * prod(m.shape[:-2])
    gap = 1.0 - achieved / total if total > 0 else 0.0
    return Inexactness(delta, gap, overshoot, lifted / directions if directions else None)
