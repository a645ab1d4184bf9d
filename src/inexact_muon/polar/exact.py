"""The exact polar factor, by singular value decomposition."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from inexact_muon import schedules
from inexact_muon.polar._base import PolarMethod


@dataclass(frozen=True)
class Decomposed(PolarMethod):
    """A method that uses a singular value decomposition, in float64 unless dtype is float32, and no normaliser."""

    forms: ClassVar[tuple[str, ...]] = ("auto",)
    why_not_half: ClassVar[str] = ": there is no half precision factorisation"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.normalise != "auto":
            raise ValueError(f"{self.name}: normalise has no effect on a decomposition; leave it out")

    def compute_dtype(self, m: Tensor) -> torch.dtype:
        return self.dtype or torch.float64

    def solve(self, xs: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
        return [self.solve_one(x, dtype) for x in xs]

    @abstractmethod
    def solve_one(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """The result for one stack (batch, n, m)."""


@dataclass(frozen=True)
class ExactSVD(Decomposed):
    """U_r V_r^T over the singular values above the rank threshold: the canonical partial isometry.

    The zero matrix maps to zero, unlike U V^T from a library's decomposition.
    """

    name: ClassVar[str] = "exact-svd"

    @property
    def map(self) -> schedules.Exact:
        return schedules.Exact()

    def solve_one(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        u, _, vh, nonzero = decompose(x, dtype)
        return (u * nonzero.unsqueeze(-2)) @ vh


def decompose(m: Tensor, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(U, sigma, V^T, nonzero) of (..., n, m), where `nonzero` marks the singular values that are above rounding.

    These exceed `rank_threshold` and max(n, m) eps sigma_1, the resolution of a decomposition.
    """
    wide = m.to(dtype)
    scale = wide.abs().amax(dim=(-2, -1), keepdim=True)
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    x = wide / scale
    if tall := x.shape[-1] >= 2 * x.shape[-2]:  # a QR decomposition first takes half the time
        q, r = torch.linalg.qr(x.mT)
        x = r.mT
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    vh = vh @ q.mT if tall else vh
    resolved = max(m.shape[-2:]) * torch.finfo(dtype).eps * s[..., :1]
    nonzero = s > torch.maximum(rank_threshold(wide / scale, m.dtype).unsqueeze(-1), resolved)
    return u, s * scale.squeeze(-1), vh, nonzero


def rank_threshold(m: Tensor, stored: torch.dtype) -> Tensor:
    """Largest singular value of (..., n, m) that rounding its entries to the dtype `stored` may cause.

    Rounding each entry to relative precision eps adds noise whose spectral norm is about
    eps ||M||_F (n^-1/2 + m^-1/2) if entries are of similar size, and eps max|M_ij| if one entry dominates.
    """
    n, k = m.shape[-2:]
    spread = torch.linalg.vector_norm(m, dim=(-2, -1)) * (n**-0.5 + k**-0.5)
    return torch.finfo(stored).eps * torch.maximum(spread, m.abs().amax(dim=(-2, -1)))
