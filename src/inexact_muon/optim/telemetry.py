"""What happened at the last sampled step, per parameter: inexactness, update size, skipped steps.

Sampling reads values on the host; between samples nothing is measured and nothing waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from inexact_muon.inexactness import Inexactness, assess
from inexact_muon.lmo import Ball


@dataclass
class Sample:
    """One parameter at one step."""

    step: int
    inexactness: Inexactness | None
    update_rms: float
    update_ratio: float


@dataclass
class Telemetry:
    """Every `every` steps (0: never), a sample of each parameter."""

    every: int = 0
    step: int = 0
    samples: dict[int, Sample] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 0:
            raise ValueError(f"sample_every must be an integer of at least 0, got {self.every!r}")

    def begin(self) -> None:
        """A step of the optimizer begins."""
        self.step += 1

    @property
    def sampling(self) -> bool:
        """Whether this step is sampled: the first, and every `every`-th after it."""
        return self.every > 0 and (self.step - 1) % self.every == 0

    def record(self, p: Tensor, update: Tensor, answers: Iterable[tuple[Ball, Tensor, Tensor]]) -> None:
        """Keeps the sample of p: its update, and (ball, m, d_hat) for each matrix that was seen."""
        size = float(torch.linalg.vector_norm(update.double()))
        weight = float(torch.linalg.vector_norm(p.double()))
        ratio = size / weight if weight > 0 else float("inf") if size > 0 else 0.0
        parts = [(ball, m, d_hat) for ball, m, d_hat in answers if m.numel()]
        inexactness = combine(parts) if parts else None
        self.samples[id(p)] = Sample(self.step, inexactness, size / max(1, update.numel()) ** 0.5, ratio)


def combine(answers: list[tuple[Ball, Tensor, Tensor]]) -> Inexactness:
    """Inexactness of several matrices as one point of the product ball: norms by maximum, dual norms by sum.

    delta and overshoot are the largest; the gap is the mean weighted by dual norms.
    """
    delta = overshoot = total = achieved = 0.0
    for ball, m, d_hat in answers:
        found, dual, descent = assess(ball, m, d_hat)
        delta = max(delta, float(torch.as_tensor(found.delta).max()))
        overshoot = max(overshoot, float(torch.as_tensor(found.overshoot).max()))
        total += float(dual.sum())
        achieved += float(descent.sum())
    return Inexactness(delta, 1.0 - achieved / total if total > 0 else 0.0, overshoot)
