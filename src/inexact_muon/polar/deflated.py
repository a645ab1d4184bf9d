"""Deflation of the leading singular directions before another method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from inexact_muon import schedules
from inexact_muon.polar._base import PolarMethod
from inexact_muon.polar.wrapping import Wrapping
from inexact_muon.schedules.judge import normaliser
from inexact_muon.schedules.operations import Operation

POWERS = 4
"""Power iterations of `Deflated`; each costs two products with a matrix of `rank` columns."""

TIES = 0.1
"""Bound on their error in the spectral norm, which is of order r^9 (1-r)/(1+r) for a ratio r of singular values."""


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
        values = np.sort(np.asarray(singular_values, dtype=np.float64))[::-1]
        s = values[values > 0.0]
        f, rest = np.ones_like(s), s[self.rank :]
        if rest.size:
            f[self.rank :] = self.map.scalar(rest / normaliser(rest, self.normaliser))
        return schedules.Judgement.of(s, f, values.size)

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
        nonzero = s > rounding
        rest = wide - q @ thin
        # Rounding leaves eps sigma_1 of the leading directions, which may far exceed the smallest singular values.
        rest = rest - q @ (q.mT @ rest)
        rest = rest - (rest @ vh.mT) @ vh
        resolved = torch.linalg.vector_norm(rest, dim=(-2, -1)) > rounding[..., 0]  # else it is only rounding noise
        return q @ ((u * nonzero.unsqueeze(-2)) @ vh), rest * resolved[:, None, None]
