"""What happened at the last sampled step, per parameter: inexactness, update size, skipped steps.

Sampling reads values on the host; between samples nothing is measured and nothing waits. The first sampled step
measures every parameter; later ones take turns, as many at a time as a share of the oracles' work pays for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf, prod
from typing import Any

import torch
from torch import Tensor

from inexact_muon.inexactness import SMALL, Inexactness, assess
from inexact_muon.lmo import Ball, Spectral

SHARE = 0.1
"""Of the work of a sampled step's oracles that measuring may add."""


@dataclass
class Sample:
    """One parameter at one step."""

    step: int
    inexactness: Inexactness | None
    update_rms: float
    update_ratio: float


@dataclass
class Telemetry:
    """Every `every` steps (0: never), a sample of some parameters.

    Attributes:
        share: of the oracles' work in sampled steps that measuring may take, once every parameter has a sample.
        credit: what of it has not been spent.
        chosen: ids of the parameters to sample in this step.
        notes: what this rank knows about them: whether it measured, delta, gap, overshoot, and two squares.
    """

    every: int = 0
    share: float = SHARE
    step: int = 0
    credit: float = 0.0
    samples: dict[int, Sample] = field(default_factory=dict)
    chosen: set[int] = field(default_factory=set)
    notes: dict[int, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 0:
            raise ValueError(f"sample_every must be an integer of at least 0, got {self.every!r}")
        if not self.share > 0.0:
            raise ValueError(f"sample_share must be positive, got {self.share!r}")

    def begin(self, moving: Callable[[], Iterable[tuple[int, float, float]]]) -> None:
        """A step begins; `moving` tells, if asked, (id, cost of measuring, work of the oracle) of each parameter."""
        self.step += 1
        self.chosen, self.notes = set(), {}
        if self.every == 0 or (self.step - 1) % self.every:
            return
        entries = list(moving())
        self.credit += self.share * sum(work for _, _, work in entries)
        for key, cost, _ in sorted(entries, key=lambda entry: self._age(entry[0])):
            if key in self.samples:
                if cost > self.credit:
                    break  # it is this one's turn: the cheaper ones after it wait, too
                self.credit -= cost
            self.chosen.add(key)
        # What is left after everybody had a turn is not saved up, what the next in turn needs is.
        self.credit = min(self.credit, max((cost for _, cost, _ in entries), default=0.0))

    def _age(self, key: int) -> int:
        return self.samples[key].step if key in self.samples else -1

    def note(self, key: int, found: Inexactness) -> None:
        """What one parameter's answer is like; called on one of the ranks that hold it."""
        self.notes.setdefault(key, [0.0] * 6)[:4] = [
            1.0,
            *(float(x) for x in (found.delta, found.gap, found.overshoot)),
        ]

    def sizes(self, key: int, update: float, weight: float) -> None:
        """Squares of the Frobenius norms of a rank's piece of the update and of the parameter before it."""
        row = self.notes.setdefault(key, [0.0] * 6)
        row[4] += update
        row[5] += weight

    def settle(self, params: Iterable[Tensor]) -> None:
        """Keeps the samples of parameters that this rank has for itself."""
        if self.notes:
            for p in params:
                if id(p) in self.notes:
                    self.end(p.numel(), id(p), self.notes[id(p)])

    def end(self, entries: int, key: int, total: Sequence[float]) -> None:
        """Keeps the sample of a parameter of so many entries, from the sum of its notes over all ranks."""
        known, delta, gap, overshoot, update, weight = total
        size, weight = update**0.5, weight**0.5
        ratio = size / weight if weight > 0 else inf if size > 0 else 0.0
        inexactness = Inexactness(delta, gap, overshoot) if known else None
        self.samples[key] = Sample(self.step, inexactness, size / max(1, entries) ** 0.5, ratio)


def costs(optimizer: Any, entries: Iterable[tuple[dict[str, Any], Tensor]]) -> Iterator[tuple[int, float, float]]:
    """(id, cost of measuring, work of the oracle) of each parameter."""
    for group, p in entries:
        shapes = optimizer.view(group).shapes(p.shape) if group["algorithm"] == "lmo" else []
        ball = optimizer.ball(group)
        measuring = sum(measuring_cost(ball, shape) for shape in shapes)
        yield id(p), measuring, sum(oracle_flops(ball, shape, p.device) for shape in shapes)


def measuring_cost(ball: Ball, shape: Sequence[int]) -> float:
    """Time to measure one answer, in floating point operations of a matrix product (benchmarks/telemetry.py).

    Estimates are matrix-vector products, which wait for memory; below 129 the estimate decomposes.
    """
    if not isinstance(ball, Spectral):
        return 8.0 * prod(shape)
    n, m = sorted(shape[-2:])
    return 2.0 * prod(shape[:-2]) * n * n * m * (4.0 if n >= 512 else 40.0 if n > SMALL else 150.0)


def oracle_flops(ball: Ball, shape: Sequence[int], device: torch.device | None = None) -> int:
    """Floating point operations of the oracle on a matrix or a stack of them; 0 for balls with a closed form."""
    return prod(shape[:-2]) * ball.polar.flops_on(shape[-2], shape[-1], device) if isinstance(ball, Spectral) else 0


def combine(answers: Sequence[tuple[Ball, Tensor, Tensor]], exact: bool = False) -> Inexactness:
    """Inexactness of several matrices as one point of the product ball: norms by maximum, dual norms by sum.

    delta and overshoot are the largest; the gap is the mean weighted by dual norms.
    """
    delta = overshoot = total = achieved = 0.0
    for ball, m, d_hat in answers:
        found, dual, descent = assess(ball, m, d_hat, exact)
        delta = max(delta, float(torch.as_tensor(found.delta).max()))
        overshoot = max(overshoot, float(torch.as_tensor(found.overshoot).max()))
        total += float(dual.sum())
        achieved += float(descent.sum())
    return Inexactness(delta, 1.0 - achieved / total if total > 0 else 0.0, overshoot)


def stats_of(group: dict[str, Any], state: dict[str, Any], sample: Sample | None) -> dict[str, float]:
    """One parameter's row of `optimizer.stats()`."""
    row = {"lr": float(group["lr"])}
    row |= {key: float(state[key]) for key in ("step", "skipped") if key in state}
    if sample is not None:
        row |= {"update_rms": sample.update_rms, "update_ratio": sample.update_ratio}
        if sample.inexactness is not None:
            row |= {k: float(getattr(sample.inexactness, k)) for k in ("delta", "gap", "overshoot", "factor")}
    return row
