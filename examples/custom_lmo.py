"""A ball of one's own: a matrix is as long as its longest head, so that every head moves equally far."""

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

import torch
from torch import Tensor, nn

from inexact_muon import Scion, lmo, measure
from inexact_muon.testing import check_ball


@dataclass(frozen=True)
class Heads(lmo.Ball):
    """max_h ||head h||_F over blocks of rows; dual norm sum_h ||head h||_F; d = -each head over its norm."""

    name: ClassVar[str] = "heads"

    count: int = 2

    def _blocks(self, x: Tensor) -> Tensor:
        return x.unflatten(-2, (self.count, -1))

    def _lengths(self, x: Tensor) -> Tensor:
        return torch.linalg.matrix_norm(self._blocks(x))

    def unit_norm(self, x: Tensor) -> Tensor:
        return self._lengths(x).amax(-1)

    def unit_dual(self, g: Tensor) -> Tensor:
        return self._lengths(g).sum(-1)

    def unit_direction(self, m: Tensor) -> Tensor:
        lengths = self._lengths(m)[..., None, None]
        return (self._blocks(m) / lengths.where(lengths > 0, 1.0)).flatten(-3, -2)

    def unit_rho(self, fan_out: int, fan_in: int) -> float:
        return sqrt(self.count)


ball = Heads(4)
check_ball(ball, torch.randn(3, 8, 6, dtype=torch.float64))  # the contract: norm, dual norm, argmin and rho fit

torch.manual_seed(0)
m = torch.randn(16, 8)
print(measure(ball, m, ball(m)))  # exact: delta 0, gap 0, overshoot 1

layer, inputs = nn.Linear(16, 32), torch.randn(256, 16)
targets = torch.relu(inputs @ torch.randn(16, 32))
groups = [
    {"params": [layer.weight], "ball": ball, "radius": 1.0},
    {"params": [layer.bias], "ball": lmo.Euclidean(), "radius": 1.0},
]
optimizer = Scion(groups, lr=0.05, momentum=0.8)
losses = []
for _ in range(100):
    loss = nn.functional.mse_loss(layer(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
