"""The functions of `matrix` as a training problem: one matrix, gradient noise of known size."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

import torch
from torch import Tensor, nn

from inexact_muon_lab.problems.matrix import Exponential, Logistic, MatrixProblem, Quadratic
from inexact_muon_lab.problems.task import Batch, Task
from inexact_muon_lab.spec.spec import Matrix, RunSpec

SALT = 7919
"""Separates the seeds of the noise from those of the function."""


class Point(nn.Module):
    """The matrix to train."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(start.clone())

    def forward(self) -> Tensor:
        return self.weight


def function(options: Matrix, seed: int) -> MatrixProblem:
    """The function of a spec section."""
    if options.function == "quadratic":
        return Quadratic(options.rows, options.columns, seed, condition=options.condition)
    kind = Logistic if options.function == "logistic" else Exponential
    return kind(options.rows, options.columns, seed)


def build(spec: RunSpec) -> Task:
    """f(X) + <mean of the examples, X>: its gradient is grad f(X) plus noise. Validation reports f and its gradient."""
    options = spec.problem
    assert isinstance(options, Matrix)
    objective = function(options, spec.seed)
    size = options.noise / sqrt(options.rows * options.columns)

    def examples(step: int) -> Batch:
        generator = torch.Generator().manual_seed(SALT + 1_000_003 * spec.seed + step)
        shape = (spec.batch, options.rows, options.columns)
        return (size * torch.randn(shape, generator=generator, dtype=torch.float64),)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        x = model()
        return objective.loss(x.cpu()) + (batch[0].mean(dim=0) * x).sum().cpu()

    def metrics(model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        x = model().cpu()
        return {"loss": objective.loss(x), "gradient": torch.linalg.matrix_norm(objective.gradient(x), "nuc")}

    return Task(model=Point(objective.start), batch=examples, loss=loss, validation=lambda index: (), metrics=metrics)
