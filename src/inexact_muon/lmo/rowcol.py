"""Balls of the maximum column norm and of the maximum row norm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

import torch
from torch import Tensor

from inexact_muon.lmo._base import UNIT, Ball, Radius
from inexact_muon.lmo.entries import block_distance, unit


@dataclass(frozen=True)
class _Lines(Ball):
    """Norm max_j ||line_j||_2, dual norm sum_j ||line_j||_2; `along` is the dimension of a line."""

    along: ClassVar[int]

    def unit_norm(self, x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x, dim=self.along).amax(-1)

    def unit_dual(self, g: Tensor) -> Tensor:
        return torch.linalg.vector_norm(g, dim=self.along).sum(-1)

    def unit_direction(self, m: Tensor) -> Tensor:
        return unit(m, (self.along,))

    def unit_rho(self, fan_out: int, fan_in: int) -> float:
        return sqrt(fan_in if self.along == -2 else fan_out)

    def unit_distance(self, m: Tensor, z: Tensor) -> Tensor:
        return block_distance(m, z, (self.along,)).amax(-1)

    def unit_worst(self, m: Tensor) -> Tensor:
        # Shorten every line but the smallest, and lengthen that one.
        least = torch.linalg.vector_norm(m, dim=self.along, keepdim=True).argmin(-3 - self.along, keepdim=True)
        sign = torch.ones_like(m).scatter_(-3 - self.along, least.expand_as(m.narrow(-3 - self.along, 0, 1)), -1.0)
        return unit(m, (self.along,)) * sign


@dataclass(frozen=True)
class ColNorm(_Lines):
    """max_j ||column j||_2 (the 1 -> 2 operator norm); d = -(each column divided by its norm).

    scale="rms": radius sqrt(out), the 1 -> RMS norm: Scion's embedding layer.
    """

    name: ClassVar[str] = "col-norm"
    along: ClassVar[int] = -2
    scales: ClassVar[Mapping[str, Radius]] = {**UNIT, "rms": lambda fan_out, fan_in: sqrt(fan_out)}


@dataclass(frozen=True)
class RowNorm(_Lines):
    """max_i ||row i||_2 (the 2 -> infinity operator norm); d = -(each row divided by its norm).

    scale="rms": radius 1/sqrt(in), the RMS -> infinity norm.
    """

    name: ClassVar[str] = "row-norm"
    along: ClassVar[int] = -1
    scales: ClassVar[Mapping[str, Radius]] = {**UNIT, "rms": lambda fan_out, fan_in: 1.0 / sqrt(fan_in)}
