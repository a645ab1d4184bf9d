"""Smooth functions of matrices with proved constants, for checks of the theorems, and as training problems. Float64.

Points are (..., n, m), with leading dimensions for a batch of runs; losses have the batch's shape.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import exp, sqrt
from typing import ClassVar

import torch
from torch import Tensor, nn

from inexact_muon.lmo import Ball
from inexact_muon_lab.problems.task import Batch, Task
from inexact_muon_lab.spec.spec import Matrix, RunSpec

SALT = 7919
"""Separates the seeds of the noise from those of the function."""


@dataclass(frozen=True)
class MatrixProblem(ABC):
    """A function with its gradient, a starting point, a lower bound, and its smoothness in a ball's norm."""

    name: ClassVar[str]

    n: int = 6
    m: int = 4
    seed: int = 0

    @property
    def lowest(self) -> float:
        """f*, or a lower bound on it: every bound increases with D0 = f(x^0) - lowest, so it stays valid."""
        return 0.0

    @abstractmethod
    def loss(self, x: Tensor) -> Tensor:
        """f(x)."""

    @abstractmethod
    def gradient(self, x: Tensor) -> Tensor:
        """grad f(x), in closed form."""

    @abstractmethod
    def smoothness(self, ball: Ball) -> float:
        """L in the norm of a plain ball, or an upper bound on it."""

    @cached_property
    def start(self) -> Tensor:
        return torch.zeros(self.n, self.m, dtype=torch.float64)

    @property
    def initial_gap(self) -> float:
        """D0."""
        return float(self.loss(self.start)) - self.lowest

    def _normal(self, *shape: int, salt: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(1000 * self.seed + salt)
        return torch.randn(*shape, generator=generator, dtype=torch.float64)


@dataclass(frozen=True)
class Quadratic(MatrixProblem):
    """f(X) = 1/2 sum_ij a_i b_j (X_ij - B_ij)^2, weights from 1 down to 1/condition; at 1 it is 1/2 ||X - B||_F^2.

    grad f(X+D) - grad f(X) = diag(a) D diag(b) is linear in D, so L is the maximum of its dual norm over norm(D) <= 1,
    known for every ball; a_(i) are the weights in descending order:

    - spectral: singular values of a product are dominated by the products of singular values (Horn), so
      ||diag(a) D diag(b)||_nuc <= sum_i a_(i) b_(i) norm(D), with equality at the D that pairs them. L = sum_{i <=
      min(n,m)} a_(i) b_(i); min(n, m) for condition 1, as ||D||_nuc <= sqrt(min) ||D||_F <= min ||D||_2 also shows.
    - sign: sum_ij a_i b_j |D_ij| <= (sum a)(sum b) max |D_ij|.
    - euclidean, nuclear: max a max b (for the nuclear norm at rank-one D, the extreme points of its ball).
    - col-norm: sum_j b_j ||diag(a) D_j|| <= max a sum b; row-norm: sum a max b.
    """

    name: ClassVar[str] = "quadratic"

    condition: float = 10.0

    @cached_property
    def _weights(self) -> tuple[Tensor, Tensor]:
        smallest = sqrt(1.0 / self.condition)
        a, b = (torch.logspace(0.0, 1.0, side, base=smallest, dtype=torch.float64) for side in (self.n, self.m))
        return a, b

    @cached_property
    def target(self) -> Tensor:
        """B, the minimiser."""
        return self._normal(self.n, self.m)

    def loss(self, x: Tensor) -> Tensor:
        return 0.5 * ((x - self.target) * self.gradient(x)).sum(dim=(-2, -1))

    def gradient(self, x: Tensor) -> Tensor:
        a, b = self._weights
        return a.unsqueeze(-1) * (x - self.target) * b

    def smoothness(self, ball: Ball) -> float:
        a, b = self._weights
        constants = {
            "spectral": (a[: self.m] * b[: self.n]).sum(),
            "sign": a.sum() * b.sum(),
            "euclidean": a.max() * b.max(),
            "nuclear": a.max() * b.max(),
            "col-norm": a.max() * b.sum(),
            "row-norm": a.sum() * b.max(),
        }
        return float(constants[plain(ball).name])


@dataclass(frozen=True)
class Logistic(MatrixProblem):
    """f(W) = mean_i [logsumexp(W x_i) - (W x_i)_{y_i}]: n classes, m features, convex, f >= 0.

    grad f(W) = mean_i (p_i - e_{y_i}) x_i^T with p_i = softmax(W x_i). The Jacobian diag(p) - p p^T of the softmax has
    spectral norm at most 1/2: it is positive semidefinite, and by Gershgorin row i has p_i(1-p_i) + sum_{j != i} p_i
    p_j = 2 p_i (1-p_i) <= 1/2. So ||p_i(W+D) - p_i(W)||_2 <= ||D x_i||_2/2, and since an outer product has nuclear
    norm ||u|| ||v||, ||grad f(W+D) - grad f(W)||_nuc <= mean_i ||D x_i|| ||x_i||/2 <= ||D||_2 mean_i ||x_i||^2/2. That
    is L for the spectral ball. For the euclidean one it is also L, as ||.||_F <= ||.||_nuc and ||D||_2 <= ||D||_F.
    """

    name: ClassVar[str] = "logistic"

    samples: int = 40

    @cached_property
    def _data(self) -> tuple[Tensor, Tensor]:
        x = self._normal(self.samples, self.m)
        scores = x @ self._normal(self.m, self.n, salt=1) + self._normal(self.samples, self.n, salt=2)
        return x, torch.nn.functional.one_hot(scores.argmax(-1), self.n).double()

    def loss(self, x: Tensor) -> Tensor:
        features, labels = self._data
        scores = features @ x.mT
        return (scores.logsumexp(-1) - (scores * labels).sum(-1)).mean(-1)

    def gradient(self, x: Tensor) -> Tensor:
        features, labels = self._data
        return ((features @ x.mT).softmax(-1) - labels).mT @ features / self.samples

    def smoothness(self, ball: Ball) -> float:
        if plain(ball).name not in ("spectral", "euclidean"):
            raise ValueError(f"logistic: no constant is proved for the ball {plain(ball).name}")
        features, _ = self._data
        return float((features**2).sum(-1).mean()) / 2.0


@dataclass(frozen=True)
class Exponential(MatrixProblem):
    """f(X) = sum_i cosh(sigma_i(X - B)) over the min(n, m) singular values: (L0, L1)-smooth, not L-smooth.

    grad f = U sinh(S) V^T, ||grad f||_nuc = sum sinh(sigma_i). With S(X) = [[0, X], [X^T, 0]], whose eigenvalues are
    +-sigma_i and |n-m| zeros, f = tr(e^S)/2 - |n-m|/2. For H = S(D), in the eigenbasis of S, d^2/dt^2 tr e^(S+tH) =
    sum_ij |H_ij|^2 (e^{l_i} - e^{l_j})/(l_i - l_j) <= sum_ij |H_ij|^2 (e^{l_i} + e^{l_j})/2 = tr(H^2 e^S) <= ||D||_2^2
    tr e^S, so that D^2 f(X)[D, D] <= ||D||_2^2 (sum_i cosh sigma_i + |n-m|/2). By Weyl sigma_i(X+tD) <= sigma_i(X) + t
    r for ||D||_2 <= r, and cosh(s + tr) <= e^{tr} cosh s. Taylor's formula with int_0^1 (1-t) e^{tr} dt = (e^r - 1 -
    r)/r^2 =: kappa/2 and cosh <= 1 + sinh give f(X+D) <= f(X) + <grad f(X), D> + (L0 + L1 ||grad f(X)||_nuc)/2
    ||D||_2^2 with L1 = kappa, L0 = kappa (n+m)/2 (which is min(n,m) + |n-m|/2). The adaptive step is at most (1-eta)
    nu/(L1 nu^2) <= 1/L1 long, and at r = 0.77 1/kappa = 0.7605 <= r: the constants hold wherever the theorem's steps
    lead.
    """

    name: ClassVar[str] = "exponential"

    spread: float = 1.0

    @property
    def lowest(self) -> float:
        return float(min(self.n, self.m))

    @cached_property
    def target(self) -> Tensor:
        """B, the minimiser."""
        return self.spread * self._normal(self.n, self.m)

    def loss(self, x: Tensor) -> Tensor:
        return torch.linalg.svdvals(x - self.target).cosh().sum(-1)

    def gradient(self, x: Tensor) -> Tensor:
        u, s, vh = torch.linalg.svd(x - self.target, full_matrices=False)
        return (u * s.sinh().unsqueeze(-2)) @ vh

    def smoothness(self, ball: Ball) -> float:
        raise ValueError("exponential: it has no global L, its curvature grows without bound; use local_smoothness")

    def local_smoothness(self, max_step: float = 0.77) -> tuple[float, float]:
        """(L0, L1) in the spectral norm, for steps of at most `max_step`."""
        kappa = 2.0 * (exp(max_step) - 1.0 - max_step) / max_step**2
        return kappa * (self.n + self.m) / 2.0, kappa


def plain(ball: Ball) -> Ball:
    """The ball without its error; only the unit scale has proved constants."""
    inner: Ball = getattr(ball, "inner", ball)
    if inner.scale != "unit":
        raise ValueError(f"the constants are those of the plain ball, got scale {inner.scale!r}")
    return inner


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
