"""Base class of LMOs: a unit ball with its norm, dual norm and argmin, as a frozen value."""

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
UNIT: Mapping[str, Radius] = {"unit": lambda fan_out, fan_in: 1.0}


@dataclass(frozen=True)
class Ball(ABC):
    """{d : norm(d) <= 1}. Calling it on m gives d_hat, an approximation of d = argmin <m, d> over the ball.

    Tensors are (..., out, in) with leading batch dimensions; norms have the batch's shape. With `scale` other than
    "unit" the ball is `radius(shape)` times the plain one: the dimension-normalised balls of Scion (arXiv 2502.07529).
    """

    name: ClassVar[str]
    scales: ClassVar[Mapping[str, Radius]] = UNIT
    of_vectors: ClassVar[bool] = False
    """Whether the ball is defined for vectors, too: a vector is one column."""

    scale: str = field(default="unit", kw_only=True)

    def __post_init__(self) -> None:
        if self.scale not in self.scales:
            raise ValueError(f"{self.name}: unknown scale {self.scale!r}: {nearest(self.scale, self.scales)}")

    # Defined by subclasses, for the plain ball of radius 1.

    @abstractmethod
    def unit_norm(self, x: Tensor) -> Tensor:
        """Norm of x."""

    @abstractmethod
    def unit_dual(self, g: Tensor) -> Tensor:
        """max <g, d> over norm(d) <= 1."""

    @abstractmethod
    def unit_direction(self, m: Tensor) -> Tensor:
        """z with norm(z) = 1 and <m, z> = dual_norm(m), up to the ball's inexactness; zero for zero."""

    @abstractmethod
    def unit_rho(self, fan_out: int, fan_in: int) -> float:
        """Smallest rho with dual_norm(v) <= rho ||v||_2."""

    def unit_exact(self, m: Tensor) -> Tensor:
        """The exact `unit_direction`; the default is for balls with a closed form."""
        return self.unit_direction(m)

    def unit_distance(self, m: Tensor, z: Tensor) -> Tensor:
        """Distance of z from the set of exact directions."""
        return self.unit_norm(z - self.unit_exact(m))

    # Public interface, for the scaled ball.

    def __call__(self, m: Tensor) -> Tensor:
        """d_hat: same shape, dtype and device as m; a descent direction; zero for zero."""
        self.check(m)
        check_finite(m)
        return self.answer(m)

    def answer(self, m: Tensor) -> Tensor:
        """`__call__` without validation, hence without a host synchronisation on an accelerator."""
        return -self.radius(m.shape) * self.directions([m])[0].to(m.dtype)

    def directions(self, ms: Sequence[Tensor], limit: int = LIMIT) -> list[Tensor]:
        """z with `answer(m)` = -radius z for each of ms; a ball may process them together.

        The result has the dtype of m or a narrower compute dtype.

        Args:
            limit: bytes of work space, if several are processed at once.
        """
        if not ms:
            return []
        with no_autocast(ms[0]):
            return [self.unit_direction(m).to(m.dtype) if m.numel() else m.clone() for m in ms]

    def exact(self, m: Tensor) -> Tensor:
        """The exact solution d, in float64. If it is not unique, the one with zeros."""
        self.check(m)
        return -self.radius(m.shape) * self.unit_exact(m.double())

    def norm(self, x: Tensor) -> Tensor:
        """The norm whose unit ball this is."""
        self.check(x)
        return self.unit_norm(_wide(x)) / self.radius(x.shape)

    def dual_norm(self, g: Tensor) -> Tensor:
        """max <g, d> over norm(d) <= 1."""
        self.check(g)
        return self.unit_dual(_wide(g)) * self.radius(g.shape)

    def distance(self, m: Tensor, d_hat: Tensor) -> Tensor:
        """delta: distance of d_hat, in this norm, from the set of exact solutions; float64."""
        self.check(m)
        return self.unit_distance(m, -d_hat.double() / self.radius(m.shape))

    def rho(self, shape: Sequence[int]) -> float:
        """rho with dual_norm(v) <= rho ||v||_2 for v of this shape."""
        return self.unit_rho(*sides(shape)) * self.radius(shape)

    def radius(self, shape: Sequence[int]) -> float:
        """Factor of the plain ball, from `scale` and the last two sides; a side of 0 counts as 1."""
        return self.scales[self.scale](*(max(1, side) for side in sides(shape)))

    def check(self, m: Tensor) -> None:
        """Validate that the ball is defined for m."""
        check_matrix(m.reshape(-1, 1) if self.of_vectors and m.ndim < 2 else m)

    __str__ = write


def sides(shape: Sequence[int]) -> tuple[int, int]:
    """(out, in) of a matrix or batch of matrices; a vector is a column."""
    return (shape[-2], shape[-1]) if len(shape) >= 2 else (shape[0] if shape else 1, 1)


def inner(m: Tensor, z: Tensor) -> Tensor:
    """<m, z> of each matrix as (..., 1, 1), in float32 or wider: float16 overflows at 65504."""
    wide = torch.promote_types(m.dtype, torch.float32)
    return (m.to(wide) * z.to(wide)).sum(dim=(-2, -1) if m.ndim >= 2 else None, keepdim=True)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
