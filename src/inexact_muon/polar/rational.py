"""Zolotarev's rational function in Gram space: few products, good accuracy, any condition number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from inexact_muon import schedules
from inexact_muon.polar._base import PolarMethod
from inexact_muon.polar.iteration import normalised

SMALLEST_SHIFT = 16.0
"""Below this many eps of the compute dtype a shift drowns in the rounding of X X^T: use float64 then.

Rounding moves the answer by about eps/(8 shift); see tests/test_accuracy.py.
"""


@dataclass(frozen=True)
class Zolotarev(PolarMethod):
    """X -> scale * (I + sum_j a_j (X X^T + c_j I)^-1) X with the best poles for [lower, 1].

    Two rectangular products, and per pole a Cholesky factor and its inverse. The smallest shift is of the
    size of lower^2; where float32 cannot resolve it in the Gram matrix, the method runs in float64.
    """

    name: ClassVar[str] = "zolotarev"
    forms: ClassVar[tuple[str, ...]] = ("auto", "gram")
    auto_normalise: ClassVar[str] = "schatten4"
    why_not_half: ClassVar[str] = ": there is no half precision factorisation"

    poles: int = 3
    lower: float = 1e-3

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        return (torch.float64, torch.float32)

    @property
    def map(self) -> schedules.Rational:
        return schedules.zolotarev(self.poles, self.lower)

    def flops(self, n: int, m: int) -> int:
        extra = 2 * min(n, m) ** 3 if self.normaliser == "schatten8" else 0
        return extra + schedules.rational_flops(n, m, self.poles)

    def _solve(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        if min(self.map.poles) < SMALLEST_SHIFT * torch.finfo(dtype).eps:
            dtype = torch.float64
        x, gram = normalised(x.to(dtype), dtype, self.normaliser)
        total = self.inverses(x @ x.mT if gram is None else gram)
        total.diagonal(dim1=-2, dim2=-1).add_(1.0)
        return torch.bmm(total, x).mul_(self.map.scale)

    def inverses(self, gram: Tensor) -> Tensor:
        """sum_j a_j (gram + c_j I)^-1."""
        total = torch.zeros_like(gram)
        for shift, residue in zip(self.map.poles, self.map.residues, strict=True):
            shifted = gram.clone()
            shifted.diagonal(dim1=-2, dim2=-1).add_(shift)
            factor, failed = torch.linalg.cholesky_ex(shifted)
            # A failed factorisation must be seen and not used; NaN says so without a host synchronisation.
            factor.masked_fill_((failed != 0)[..., None, None], torch.nan)
            total.add_(torch.cholesky_inverse(factor), alpha=residue)
        return total
