"""Oracles for experiments: any map on the singular values, and the leading directions taken out first."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from inexact_muon import schedules
from inexact_muon.polar._base import PolarMethod
from inexact_muon.polar.exact import Decomposed, decompose
from inexact_muon.polar.wrapping import Wrapping
from inexact_muon.schedules.judge import normaliser
from inexact_muon.schedules.operations import Operation
from inexact_muon.schedules.scalar_map import Array
from inexact_muon.schedules.shapes import Shape

POWERS = 4
"""Power iterations of `Deflated`; each costs two products with a matrix of `rank` columns."""

TIES = 0.1
"""What they may leave, in the spectral norm: (1-r)/(1+r) for a ratio r of singular values, times r^9."""


@dataclass(frozen=True)
class Shaped(Decomposed):
    """U diag(f(sigma/sigma_1)) V^T with f a product of shapes, by a decomposition in float64.

    Answers are exact, so that a training run sees f and nothing else. With f = 1 it is `ExactSVD`.

    Attributes:
        factors: of f, from `inexact_muon.schedules.shapes`.

    Example:
        >>> str(Shaped((schedules.shapes.Power(0.25),)))
        'shaped(factors=(power(p=0.25),))'
    """

    name: ClassVar[str] = "shaped"
    auto_normalise: ClassVar[str] = "spectral"

    factors: tuple[Shape, ...] = ()

    def __post_init__(self) -> None:
        given = (self.factors,) if isinstance(self.factors, Shape) else self.factors
        if not isinstance(given, tuple | list) or not all(isinstance(factor, Shape) for factor in given):
            raise ValueError(f"shaped: factors are shapes such as power(p=0.25), got {given!r}")
        object.__setattr__(self, "factors", tuple(given))
        super().__post_init__()

    @cached_property
    def map(self) -> schedules.ShapedMap:
        return schedules.ShapedMap(0.0, "product of shapes", self.factors)

    def solve_one(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        u, s, vh, kept = decompose(x, dtype)
        top = torch.where(s[..., :1] > 0, s[..., :1], torch.ones_like(s[..., :1]))
        f = torch.from_numpy(self.map.scalar((s / top).cpu().double().numpy())).to(s)
        return (u * (f * kept).unsqueeze(-2)) @ vh


@dataclass(frozen=True)
class Deflated(Wrapping):
    """`method` after the `rank` leading directions have been taken out, whose answer is 1.

    Q spans these by a few power iterations from the rows of the matrix with the largest norms; the answer is
    Q polar(Q^T M) + method(the rest of M, orthogonal to Q on the left and to Q^T M on the right). Where one singular
    value dominates, a polynomial spends its first steps on the distance between that one and the rest. Where the
    leading ones nearly tie with the next, Q has not converged, and the answer is off by up to `TIES`.

    Attributes:
        method: for the rest; dtype, form and normalise are its own.
        rank: directions that are taken out; at most the short side of a matrix.
    """

    name: ClassVar[str] = "deflated"

    rank: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.method, PolarMethod) or isinstance(self.method, Deflated):
            raise ValueError(f"deflated: another polar method is wanted, got {self.method}")
        if isinstance(self.rank, bool) or not isinstance(self.rank, int) or not 1 <= self.rank <= 64:
            raise ValueError(f"deflated: rank must be 1 to 64, got {self.rank!r}")
        super().__post_init__()

    def judge(self, singular_values: ArrayLike) -> schedules.Judgement:
        s = np.sort(np.asarray(singular_values, dtype=np.float64))[::-1]
        rest = s[self.rank :][s[self.rank :] > 0.0]
        top = s[: self.rank][s[: self.rank] > 0.0]
        f = np.concatenate((np.ones_like(top), self._map(rest)))
        return schedules.Judgement.of(np.concatenate((top, rest)), f)

    def _map(self, rest: Array) -> Array:
        return self.map.scalar(rest / normaliser(rest, self.normaliser)) if rest.size else rest

    def operations(self, n: int, m: int, device: str = "cpu") -> tuple[Operation, ...]:
        """Those of the method; products with `rank` columns, and as many orthogonalisations of these."""
        (n, m), rank = sorted((n, m)), min(self.rank, n, m)
        products = Operation("product", n, rank, m, 2 * POWERS + 8)
        thin = Operation("decomposition", n, rank, rank, 2 * (POWERS + 2))
        return *self.method.operations(n, m, device), products, thin

    def solve(self, xs: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
        tops, rests = zip(*(self._divide(x) for x in xs), strict=True)
        return [top.to(z.dtype) + z for top, z in zip(tops, self.method.solve(list(rests), dtype), strict=True)]

    def _divide(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(Q polar(Q^T X), the rest of X) of (batch, n, m), in float32 or wider."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        rank = min(self.rank, x.shape[-2])
        size = torch.linalg.vector_norm(wide, dim=-1)
        rows = size.argsort(dim=-1, descending=True, stable=True)[:, :rank]
        q = wide.gather(-2, rows.unsqueeze(-1).expand(-1, -1, x.shape[-1])).mT
        scale = size.amax(-1)[:, None, None].clamp_min(torch.finfo(wide.dtype).tiny)
        for _ in range(POWERS):
            q = torch.linalg.qr(wide @ (q / scale)).Q
            q = wide.mT @ q
        q = torch.linalg.qr(wide @ (q / scale)).Q
        thin = q.mT @ wide
        u, s, vh = torch.linalg.svd(thin, full_matrices=False)
        rounding = torch.finfo(wide.dtype).eps * x.shape[-1] * s[..., :1]
        kept = s > rounding
        rest = wide - q @ thin
        # Rounding leaves eps sigma_1 of the leading directions, which may be far above the smallest of the rest.
        rest = rest - q @ (q.mT @ rest)
        rest = rest - (rest @ vh.mT) @ vh
        left = torch.linalg.vector_norm(rest, dim=(-2, -1)) > rounding[..., 0]  # else the rest would be noise alone
        return q @ ((u * kept.unsqueeze(-2)) @ vh), rest * left[:, None, None]
