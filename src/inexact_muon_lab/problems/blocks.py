"""A function of several matrices, each in its own norm, with joint smoothness constants."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from inexact_muon.lmo import Ball
from inexact_muon_lab.problems.matrix import Quadratic


@dataclass(frozen=True)
class Blocks:
    """f(X_1..X_p) = sum_i w_i q_i(X_i) + mu/2 (sum_i <C_i, X_i>)^2 with quadratics q_i of different shapes.

    Joint constants: for D = (D_1..D_p), f(X+D) - f(X) - <grad f(X), D> = sum_i w_i q_i''[D_i, D_i]/2 + mu/2 (sum_i
    <C_i, D_i>)^2, and (sum_i u_i)^2 <= p sum_i u_i^2 with |<C_i, D_i>| <= dual_norm(C_i) norm(D_i), so that L_i = w_i
    L(q_i) + p mu dual_norm(C_i)^2 suffices. One block at a time needs only L(q_i) w_i + mu dual_norm(C_i)^2 =
    `separate`: too small by nearly a factor p if the coupling dominates. f >= 0.
    """

    name: ClassVar[str] = "blocks"

    shapes: tuple[tuple[int, int], ...] = ((5, 3), (4, 4), (2, 6))
    weights: tuple[float, ...] = (1.0, 3.0, 0.3)
    coupling: float = 0.5
    seed: int = 0

    @cached_property
    def parts(self) -> tuple[Quadratic, ...]:
        return tuple(Quadratic(n, m, seed=self.seed + 7 * i) for i, (n, m) in enumerate(self.shapes))

    @cached_property
    def _directions(self) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(self.seed)
        return tuple(torch.randn(shape, generator=generator, dtype=torch.float64) / 4.0 for shape in self.shapes)

    @property
    def start(self) -> list[Tensor]:
        return [part.start for part in self.parts]

    @property
    def initial_gap(self) -> float:
        """D0, with the lower bound 0 for f*."""
        return float(self.loss(self.start))

    def loss(self, x: list[Tensor]) -> Tensor:
        separate = sum(w * q.loss(xi) for w, q, xi in zip(self.weights, self.parts, x, strict=True))
        return separate + 0.5 * self.coupling * self._moment(x) ** 2

    def gradient(self, x: list[Tensor]) -> list[Tensor]:
        pull = self.coupling * self._moment(x)
        terms = zip(self.weights, self.parts, x, self._directions, strict=True)
        return [w * q.gradient(xi) + pull * c for w, q, xi, c in terms]

    def smoothness(self, balls: tuple[Ball, ...], joint: bool = True) -> list[float]:
        """L_i in the norms of the balls, for simultaneous updates of all blocks or, if not joint, one at a time."""
        count = len(self.shapes) if joint else 1
        terms = zip(self.weights, self.parts, balls, self._directions, strict=True)
        return [w * q.smoothness(b) + count * self.coupling * float(b.dual_norm(c)) ** 2 for w, q, b, c in terms]

    def _moment(self, x: list[Tensor]) -> Tensor:
        zero = torch.zeros((), dtype=torch.float64)
        return sum(((c * xi).sum() for c, xi in zip(self._directions, x, strict=True)), zero)
