"""Balls of entrywise norms: l-infinity and Euclidean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

import torch
from torch import Tensor

from inexact_muon.lmo._base import UNIT, Ball, Radius
from inexact_muon.polar.scaling import to_unit_entries


@dataclass(frozen=True)
class Sign(Ball):
    """Entrywise maximum norm; d = -sign(m); dual norm sum |g_ij|.

    scale="rms": radius 1/in, Scion's output layer.
    """

    name: ClassVar[str] = "sign"
    of_vectors: ClassVar[bool] = True
    scales: ClassVar[Mapping[str, Radius]] = {**UNIT, "rms": lambda fan_out, fan_in: 1.0 / fan_in}

    def unit_norm(self, x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x, torch.inf, dim=entry_dims(x))

    def unit_dual(self, g: Tensor) -> Tensor:
        return torch.linalg.vector_norm(g, 1, dim=entry_dims(g))

    def unit_direction(self, m: Tensor) -> Tensor:
        return m.sign()

    def unit_rho(self, fan_out: int, fan_in: int) -> float:
        return sqrt(fan_out * fan_in)

    def unit_distance(self, m: Tensor, z: Tensor) -> Tensor:
        error = torch.where(m == 0, (z.abs() - 1.0).clamp(min=0.0), (z - m.sign()).abs())
        return error.amax(dim=entry_dims(m))


@dataclass(frozen=True)
class Euclidean(Ball):
    """Frobenius norm, its own dual; d = -m/||m||_2.

    scale="rms": radius sqrt(number of entries), Scion's biases.
    """

    name: ClassVar[str] = "euclidean"
    of_vectors: ClassVar[bool] = True
    scales: ClassVar[Mapping[str, Radius]] = {**UNIT, "rms": lambda fan_out, fan_in: sqrt(fan_out * fan_in)}

    def unit_norm(self, x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x, dim=entry_dims(x))

    def unit_dual(self, g: Tensor) -> Tensor:
        return self.unit_norm(g)

    def unit_direction(self, m: Tensor) -> Tensor:
        return unit(m, entry_dims(m))

    def unit_rho(self, fan_out: int, fan_in: int) -> float:
        return 1.0

    def unit_distance(self, m: Tensor, z: Tensor) -> Tensor:
        return block_distance(m, z, entry_dims(m))


def unit(x: Tensor, dim: tuple[int, ...]) -> Tensor:
    """x / ||x||_2 over `dim`, 0 for 0, for entries of any magnitude; computed in float32 or wider."""
    if x.numel() == 0:
        return x.clone()
    scaled = to_unit_entries(x.to(torch.promote_types(x.dtype, torch.float32)), dim)
    norm = torch.linalg.vector_norm(scaled, dim=dim, keepdim=True)
    return scaled / torch.where(norm == 0, torch.ones_like(norm), norm)


def block_distance(m: Tensor, z: Tensor, dim: tuple[int, ...]) -> Tensor:
    """||z - m/||m|| || over `dim`; if m is zero, every z in the ball is exact: max(||z|| - 1, 0)."""
    m = m.double()
    error = torch.linalg.vector_norm(z - unit(m, dim), dim=dim)
    outside = (torch.linalg.vector_norm(z, dim=dim) - 1.0).clamp(min=0.0)
    return torch.where(m.abs().amax(dim=dim) == 0, outside, error)


def entry_dims(x: Tensor) -> tuple[int, ...]:
    """The dimensions of one matrix of a batch, or of a vector."""
    return (-2, -1) if x.ndim >= 2 else tuple(range(x.ndim))


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
