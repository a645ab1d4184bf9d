"""What every LMO is: a unit ball with its norm, dual norm and argmin, as a frozen value."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from inexact_muon._text import nearest, write
from inexact_muon.polar._base import check_finite, check_matrix, no_autocast
from inexact_muon.polar.batching import LIMIT

Radius = Callable[[int, int], float]
UNIT: Mapping[str, Radius] = {"unit": lambda out, into: 1.0}


@dataclass(frozen=True)
class Ball(ABC):
    """{d : norm(d) <= 1}. Calling it on m gives d_hat, close to d = argmin <m, d> over the ball.

    Tensors are (..., out, in), a leading dimension being a batch; norms have the batch's shape. With
    `scale` other than "unit" the ball is `radius(shape)` times the plain one: the dimension-normalised
    balls of Scion (arXiv 2502.07529).
    """

    name: ClassVar[str]
    scales: ClassVar[Mapping[str, Radius]] = UNIT

    scale: str = field(default="unit", kw_only=True)

    def __post_init__(self) -> None:
        if self.scale not in self.scales:
            raise ValueError(f"{self.name}: unknown scale {self.scale!r}: {nearest(self.scale, self.scales)}")

    # What a ball defines: the plain ball, radius 1.

    @abstractmethod
    def unit_norm(self, x: Tensor) -> Tensor:
        """Norm of x."""

    @abstractmethod
    def unit_dual(self, g: Tensor) -> Tensor:
        """max <g, d> over norm(d) <= 1."""

    @abstractmethod
    def unit_direction(self, m: Tensor) -> Tensor:
        """z with norm(z) = 1 and <m, z> = dual_norm(m), as well as this ball computes it; zero for zero."""

    @abstractmethod
    def unit_rho(self, out: int, into: int) -> float:
        """Smallest rho with dual_norm(v) <= rho ||v||_2."""

    def unit_exact(self, m: Tensor) -> Tensor:
        """`unit_direction` without error; the same thing for a ball with a closed form."""
        return self.unit_direction(m)

    def unit_distance(self, m: Tensor, z: Tensor) -> Tensor:
        """Distance of z from the set of exact directions."""
        return self.unit_norm(z - self.unit_exact(m))

    def unit_worst(self, m: Tensor) -> Tensor:
        """A direction e, norm(e) = 1, in which an error costs most (see Perturbed)."""
        return self.unit_exact(m)

    # What everybody calls.

    def __call__(self, m: Tensor) -> Tensor:
        """d_hat: same shape, dtype and device as m; points downhill; zero for zero."""
        self.check(m)
        check_finite(m)
        return self.answer(m)

    def answer(self, m: Tensor) -> Tensor:
        """`__call__` without its checks, hence without a host synchronisation on an accelerator."""
        return -self.radius(m.shape) * self.directions([m])[0].to(m.dtype)

    def directions(self, ms: Sequence[Tensor], limit: int = LIMIT) -> list[Tensor]:
        """z with `answer(m)` = -radius z, for each of ms; a ball may work on them together.

        In the dtype of m, or in the narrower one in which it was computed.

        Args:
            limit: bytes of work space, if several are worked on at once.
        """
        if not ms:
            return []
        with no_autocast(ms[0]):
            return [self.unit_direction(m).to(m.dtype) if m.numel() else m.clone() for m in ms]

    def exact(self, m: Tensor) -> Tensor:
        """The exact solution d, in float64. Where it is a set, the member with zeros."""
        self.check(m)
        return -self.radius(m.shape) * self.unit_exact(m.double())

    def norm(self, x: Tensor) -> Tensor:
        """Norm whose unit ball this is."""
        self.check(x)
        return self.unit_norm(_wide(x)) / self.radius(x.shape)

    def dual_norm(self, g: Tensor) -> Tensor:
        """max <g, d> over norm(d) <= 1."""
        self.check(g)
        return self.unit_dual(_wide(g)) * self.radius(g.shape)

    def distance(self, m: Tensor, d_hat: Tensor) -> Tensor:
        """delta: the distance of d_hat, in this norm, from the set of exact solutions, in float64."""
        self.check(m)
        return self.unit_distance(m, -d_hat.double() / self.radius(m.shape))

    def rho(self, shape: Sequence[int]) -> float:
        """dual_norm(v) <= rho ||v||_2 for v of this shape."""
        return self.unit_rho(*sides(shape)) * self.radius(shape)

    def radius(self, shape: Sequence[int]) -> float:
        """By what the plain ball is multiplied, from `scale` and the last two sides, of which 0 counts as 1."""
        return self.scales[self.scale](*(max(1, side) for side in sides(shape)))

    def worst(self, m: Tensor) -> Tensor:
        """The error direction of `Perturbed(direction="worst")`, norm 1, float64."""
        return self.radius(m.shape) * self.unit_worst(m.double())

    def check(self, m: Tensor) -> None:
        """Raises on input this ball is not defined for."""
        check_matrix(m)

    def __str__(self) -> str:
        return write(self)


def sides(shape: Sequence[int]) -> tuple[int, int]:
    """(out, in) of a matrix or of a batch; a vector is a column."""
    return (shape[-2], shape[-1]) if len(shape) >= 2 else (shape[0] if shape else 1, 1)


def inner(m: Tensor, z: Tensor) -> Tensor:
    """<m, z> of each matrix, kept as (..., 1, 1), in float32 or better: half precision ends at 65504."""
    wide = torch.promote_types(m.dtype, torch.float32)
    return (m.to(wide) * z.to(wide)).sum(dim=(-2, -1) if m.ndim >= 2 else None, keepdim=True)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
