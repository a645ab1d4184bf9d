"""The spectral ball, whose LMO is the polar factor, and its dual, the nuclear ball."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import ClassVar

import torch
from torch import Tensor

from inexact_muon.lmo._base import UNIT, Ball, Radius
from inexact_muon.lmo.entries import unit
from inexact_muon.polar import ExactSVD, PolarExpress, PolarMethod
from inexact_muon.polar.batching import LIMIT
from inexact_muon.polar.exact import decompose
from inexact_muon.polar.scaling import probes, to_unit_entries

MOST_STEPS = 10_000
"""Maximum number of power iterations of `Nuclear`; an SVD is cheaper long before."""


@dataclass(frozen=True)
class Spectral(Ball):
    """Spectral norm; d = -U V^T, up to the error of `polar`; dual norm sum_i sigma_i.

    scale="rms": radius sqrt(out/in), the RMS -> RMS norm: Scion's hidden layers.
    scale="rms-max": radius max(1, sqrt(out/in)): Scion's first layer of a dense input.
    """

    name: ClassVar[str] = "spectral"
    scales: ClassVar[Mapping[str, Radius]] = {
        **UNIT,
        "rms": lambda fan_out, fan_in: sqrt(fan_out / fan_in),
        "rms-max": lambda fan_out, fan_in: max(1.0, sqrt(fan_out / fan_in)),
    }

    polar: PolarMethod = field(default_factory=PolarExpress)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.polar, PolarMethod):
            raise TypeError(f"spectral: polar must be a polar method, got {self.polar!r}")

    def unit_norm(self, x: Tensor) -> Tensor:
        return torch.linalg.matrix_norm(x, 2)

    def unit_dual(self, g: Tensor) -> Tensor:
        return torch.linalg.svdvals(g).sum(-1)

    def unit_direction(self, m: Tensor) -> Tensor:
        return self.polar.orthogonalise(m)

    def directions(self, ms: Sequence[Tensor], limit: int = LIMIT) -> list[Tensor]:
        return self.polar.orthogonalise_all(ms, limit, cast=False)

    def unit_exact(self, m: Tensor) -> Tensor:
        return ExactSVD()(m)

    def unit_rho(self, fan_out: int, fan_in: int) -> float:
        return sqrt(min(fan_out, fan_in))

    def unit_distance(self, m: Tensor, z: Tensor) -> Tensor:
        if m.shape[-2] > m.shape[-1]:
            m, z = m.mT, z.mT
        u, _, vh, nonzero = decompose(m)
        return torch.linalg.matrix_norm(polar_error(z, u, vh, nonzero), 2)


def polar_error(z: Tensor, u: Tensor, vh: Tensor, nonzero: Tensor) -> Tensor:
    """U^T (z - nearest polar factor) for z of shape (..., n, m), n <= m; its norm is delta.

    On kept rows the polar factor is v_i^T. On the other singular directions any block of norm <= 1 between the null
    spaces is a solution: the nearest one is z's own block with its singular values clipped at 1.
    """
    nonzero_rows = nonzero.unsqueeze(-1)
    rows = u.mT @ z
    error = torch.where(nonzero_rows, rows - vh, rows)
    if bool(nonzero.all()):
        return error
    v = vh * nonzero_rows
    null = torch.where(nonzero_rows, torch.zeros_like(rows), rows)
    null = null - (null @ v.mT) @ v
    w, s, wh = torch.linalg.svd(null, full_matrices=False)
    return error - (w * s.clamp(max=1.0).unsqueeze(-2)) @ wh


@dataclass(frozen=True)
class Nuclear(Ball):
    """Nuclear norm; d = -u_1 v_1^T by power iteration on m m^T, feasible by construction; dual norm sigma_1.

    Attributes:
        steps: power iterations, two matrix-vector products each.
    """

    name: ClassVar[str] = "nuclear"

    steps: int = 30

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.steps, bool) or not isinstance(self.steps, int):
            raise TypeError(f"nuclear: steps must be an integer, got {self.steps!r}")
        if not 1 <= self.steps <= MOST_STEPS:
            raise ValueError(f"nuclear: steps must be at least 1 and at most {MOST_STEPS}, got {self.steps}")

    def unit_norm(self, x: Tensor) -> Tensor:
        return torch.linalg.svdvals(x).sum(-1)

    def unit_dual(self, g: Tensor) -> Tensor:
        return torch.linalg.matrix_norm(g, 2)

    def unit_direction(self, m: Tensor) -> Tensor:
        x = to_unit_entries(m.to(torch.promote_types(m.dtype, torch.float32)))
        v = unit(x.mT @ (x @ probes(x.shape[-1], 1, x)), (-2,))
        for _ in range(self.steps):
            v = unit(x.mT @ (x @ v), (-2,))
        return unit(x @ v, (-2,)) @ v.mT

    def unit_exact(self, m: Tensor) -> Tensor:
        u, _, vh, nonzero = decompose(m)
        return (u[..., :1] * nonzero[..., None, :1]) @ vh[..., :1, :]

    def unit_distance(self, m: Tensor, z: Tensor) -> Tensor:
        """Distance from a nearest solution U_1 Z V_1^T, Z >= 0 of trace 1 (sigma_1 may be repeated).

        Z has the eigenvectors of the symmetric part of U_1^T z V_1. An upper bound, exact if that block is symmetric or
        sigma_1 is simple.
        """
        u, s, vh, nonzero = decompose(m)
        tie = s >= s[..., :1] * (1.0 - 8.0 * max(m.shape[-2:]) ** 0.5 * torch.finfo(m.dtype).eps)
        tie = (tie & nonzero).unsqueeze(-1)
        block = torch.where(tie & tie.mT, u.mT @ z @ vh.mT, 0.0)
        # Outside the block: eigenvalues so low that they get no weight.
        low = -4.0 * (1.0 + torch.linalg.matrix_norm(block)[..., None, None])
        block = block + torch.where(tie, 0.0, low) * torch.eye(block.shape[-1], dtype=z.dtype, device=z.device)
        values, vectors = torch.linalg.eigh(0.5 * (block + block.mT))
        weights = _simplex(values)
        nearest = u @ ((vectors * weights.unsqueeze(-2)) @ vectors.mT) @ vh
        outside = (self.unit_norm(z) - 1.0).clamp(min=0.0)
        return torch.where(nonzero[..., 0], self.unit_norm(z - nearest), outside)

    def unit_rho(self, fan_out: int, fan_in: int) -> float:
        return 1.0


def _simplex(x: Tensor) -> Tensor:
    """Projection of each row of x onto {w >= 0, sum w = 1}."""
    ordered = x.sort(dim=-1, descending=True).values
    count = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
    level = (ordered.cumsum(-1) - 1.0) / count
    used = (ordered > level).sum(-1, keepdim=True).clamp(min=1)
    return (x - level.gather(-1, used - 1)).clamp(min=0.0)
