"""An LMO with an error of prescribed size, for experiments with the theorems."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch
from typing import ClassVar

import torch
from torch import Tensor

from inexact_muon.lmo._base import Ball
from inexact_muon.lmo.entries import ColNorm, Euclidean, RowNorm, Sign, entry_dims, unit
from inexact_muon.lmo.spectral import Nuclear, Spectral

DIRECTIONS = ("random", "worst")


@dataclass(frozen=True)
class Perturbed(Ball):
    """d_hat = d + delta * e with norm(e) = 1: Assumption 1 with equality, if d is unique.

    d is the exact solution of `inner`, regardless of inner's own inexactness. For rank-deficient m the distance to the
    set of solutions may be smaller than delta.

    Attributes:
        direction: "random" draws e from (seed, m), reproducibly and independently for every m; "worst" makes the bound
            tight or nearly so: for the spectral ball it shortens all singular directions but the last and lengthens
            that one, so that the overshoot is 1 + delta and the gap delta (1 - 2 sigma_n / sum sigma).
    """

    name: ClassVar[str] = "perturbed"

    inner: Ball
    delta: float = 0.1
    direction: str = "random"
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.inner, Perturbed) or not isinstance(self.inner, Ball):
            raise TypeError(f"perturbed: inner must be a plain ball, got {self.inner!r}")
        if not 0.0 <= self.delta < float("inf"):
            raise ValueError(f"perturbed: delta must be finite and not negative, got {self.delta}")
        if self.direction not in DIRECTIONS:
            raise ValueError(f"perturbed: direction must be random or worst, got {self.direction!r}")

    def unit_direction(self, m: Tensor) -> Tensor:
        return -self.inner.exact(m) - self.delta * self._error(m)

    def _error(self, m: Tensor) -> Tensor:
        if self.direction == "worst":
            return self.inner.radius(m.shape) * worst_error(self.inner, m.double())
        # Seed with the bits of a sum over m, so that e depends on m only; a generator uses 32 of them.
        bits = int(m.double().abs().sum().view(torch.int64))
        generator = torch.Generator().manual_seed((bits ^ (bits >> 32) ^ self.seed) & 0xFFFFFFFF)
        e = torch.randn(m.shape, generator=generator, dtype=torch.float64).to(m.device)
        norm = self.inner.norm(e)
        return e / norm.reshape(*norm.shape, *(1,) * (m.ndim - norm.ndim))

    # Norms and geometry are those of the inner ball.

    def unit_norm(self, x: Tensor) -> Tensor:
        return self.inner.norm(x)

    def unit_dual(self, g: Tensor) -> Tensor:
        return self.inner.dual_norm(g)

    def unit_exact(self, m: Tensor) -> Tensor:
        return -self.inner.exact(m)

    def unit_distance(self, m: Tensor, z: Tensor) -> Tensor:
        return self.inner.distance(m, -z)

    def unit_rho(self, fan_out: int, fan_in: int) -> float:
        return self.inner.rho((fan_out, fan_in))

    def check(self, m: Tensor) -> None:
        self.inner.check(m)


@singledispatch
def worst_error(ball: Ball, m: Tensor) -> Tensor:
    """The error direction e, norm(e) = 1 in the plain ball, that costs most descent; along d for balls not known."""
    return ball.unit_exact(m)


@worst_error.register
def _(ball: Sign, m: Tensor) -> Tensor:
    return m.sign() * (1.0 - 2.0 * _least(m, entry_dims(m)))


@worst_error.register
def _(ball: Euclidean, m: Tensor) -> Tensor:
    # Descent is lost by 1/cos of the angle to d; to first order an error orthogonal to m is worst.
    direction, across = unit(m, entry_dims(m)), _least(m, entry_dims(m))
    across = across - (across * direction).sum(dim=entry_dims(m), keepdim=True) * direction
    return unit(across, entry_dims(m)) if m.shape != (1,) else direction


@worst_error.register(ColNorm)
@worst_error.register(RowNorm)
def _(ball: ColNorm | RowNorm, m: Tensor) -> Tensor:
    # Shorten every line but the smallest, and lengthen that one.
    others = -3 - ball.along
    least = torch.linalg.vector_norm(m, dim=ball.along, keepdim=True).argmin(others, keepdim=True)
    sign = torch.ones_like(m).scatter_(others, least.expand_as(m.narrow(others, 0, 1)), -1.0)
    return unit(m, (ball.along,)) * sign


@worst_error.register
def _(ball: Spectral, m: Tensor) -> Tensor:
    u, s, vh = torch.linalg.svd(m, full_matrices=False)
    sign = torch.ones_like(s)
    sign[..., -1] = -1.0
    return (u * sign.unsqueeze(-2)) @ vh


@worst_error.register
def _(ball: Nuclear, m: Tensor) -> Tensor:
    # Along the second pair, against descent: overshoot 1 + delta, and sigma_2/sigma_1 delta of the descent is lost.
    u, _, vh = torch.linalg.svd(m, full_matrices=False)
    second = min(1, min(m.shape[-2:]) - 1)
    return u[..., second : second + 1] @ vh[..., second : second + 1, :]


def _least(m: Tensor, dims: tuple[int, ...]) -> Tensor:
    """1 at the entry of smallest magnitude, 0 elsewhere."""
    flat = m.abs().reshape(*m.shape[: m.ndim - len(dims)], -1)
    return torch.zeros_like(flat).scatter_(-1, flat.argmin(-1, keepdim=True), 1.0).reshape(m.shape)
