"""Oracles for experiments: an arbitrary map of the singular values, and deflation of the leading directions."""

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
from inexact_muon.schedules.shapes import Shape

POWERS = 4
"""Power iterations of `Deflated`; each costs two products with a matrix of `rank` columns."""

TIES = 0.1
"""Bound on their error in the spectral norm, which is of order r^9 (1-r)/(1+r) for a ratio r of singular values."""


@dataclass(frozen=True)
class Shaped(Decomposed):
    """U diag(f(sigma/sigma_1)) V^T with f a product of shapes, by a decomposition in float64.

    There is no error other than f, so that its effect on training can be studied. With f = 1 it is `ExactSVD`.

    Attributes:
        factors: factors of f, from `inexact_muon.schedules.shapes`.

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
            raise ValueError(f"shaped: factors must be shapes such as power(p=0.25), got {given!r}")
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
    """`method` after deflation of the `rank` leading singular directions, whose singular values become exactly 1.

    An orthonormal Q spans these directions, by a few power iterations that start from the rows of largest norm. The
    result is Q polar(Q^T M) + method(the rest of M, orthogonal to Q on the left and to Q^T M on the right). Without
    deflation, if one singular value dominates, the first steps of a polynomial only reduce its distance from the rest.
    If the leading singular values are close to the next ones, Q has not converged, and the error is up to `TIES`.

    Attributes:
        method: method for the rest; dtype, form and normalise are set there.
        rank: number of deflated directions; at most the short side of a matrix.
    """

    name: ClassVar[str] = "deflated"

    rank: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.method, PolarMethod) or isinstance(self.method, Deflated):
            raise ValueError(f"deflated: method must be a polar method other than deflated, got {self.method}")
        if isinstance(self.rank, bool) or not isinstance(self.rank, int) or not 1 <= self.rank <= 64:
            raise ValueError(f"deflated: rank must be 1 to 64, got {self.rank!r}")
        super().__post_init__()

    def judge(self, singular_values: ArrayLike) -> schedules.Judgement:
        given = np.sort(np.asarray(singular_values, dtype=np.float64))[::-1]
        s = given[given > 0.0]
        f, rest = np.ones_like(s), s[self.rank :]
        if rest.size:
            f[self.rank :] = self.map.scalar(rest / normaliser(rest, self.normaliser))
        return schedules.Judgement.of(s, f, given.size)

    def operations(self, n: int, m: int, device: str = "cpu") -> tuple[Operation, ...]:
        """Those of the method, products with matrices of `rank` columns, and decompositions of these matrices."""
        (n, m), rank = sorted((n, m)), min(self.rank, n, m)
        products = Operation("product", n, rank, m, 2 * POWERS + 8)
        thin = Operation("decomposition", n, rank, rank, 2 * (POWERS + 2))
        return *self.method.operations(n, m, device), products, thin

    def solve(self, xs: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
        tops, rests = zip(*(self._deflate(x) for x in xs), strict=True)
        return [top.to(z.dtype) + z for top, z in zip(tops, self.method.solve(list(rests), dtype), strict=True)]

    def _deflate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(Q polar(Q^T X), the rest of X) for X (batch, n, m), in float32 or wider."""
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
        # Rounding leaves eps sigma_1 of the leading directions, which may far exceed the smallest singular values.
        rest = rest - q @ (q.mT @ rest)
        rest = rest - (rest @ vh.mT) @ vh
        left = torch.linalg.vector_norm(rest, dim=(-2, -1)) > rounding[..., 0]  # else it is only rounding noise
        return q @ ((u * kept.unsqueeze(-2)) @ vh), rest * left[:, None, None]
