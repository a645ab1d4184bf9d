"""Zolotarev's rational function in Gram space: few products, good accuracy, any condition number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from inexact_muon import schedules
from inexact_muon.polar._base import DTYPES, PolarMethod
from inexact_muon.polar.iteration import multiplier, polynomial, run
from inexact_muon.polar.kernel import spd_inverse, symmetric_product


@dataclass(frozen=True)
class Zolotarev(PolarMethod):
    """X -> scale * (I + sum_j a_j (X X^T + c_j I)^-1) X with the best poles for [lower, 1].

    Two rectangular products, and per pole a Cholesky factor and its inverse. The smallest shift is of the
    size of lower^2; where float32 cannot resolve it in the Gram matrix, the method runs in float64.

    Attributes:
        polish: degree of a minimax polynomial after the rational function, in Gram space; 0 for none. Products
            are faster than factorisations when n is small: there poles=1, polish=9 replaces three poles.
        power: approximate U diag(s^power) V^T instead of the polar factor, s being the normalised singular values; for
            experiments (docs/which-oracle.md).
    """

    name: ClassVar[str] = "zolotarev"
    forms: ClassVar[tuple[str, ...]] = ("auto", "gram")
    auto_normalise: ClassVar[str] = "schatten4"
    why_not_half: ClassVar[str] = ": there is no half precision factorisation"
    from_gram: ClassVar[bool] = True

    poles: int = 3
    lower: float = 1e-3
    polish: int = field(default=0, kw_only=True)
    power: float = field(default=0.0, kw_only=True)

    @cached_property
    def map(self) -> schedules.Rational:
        return schedules.zolotarev(self.poles, self.lower, polish=self.polish, power=self.power)

    def multiplier(self, gram: Tensor) -> Tensor:
        return multiplier(gram, self._factor, self.normaliser)

    @cached_property
    def computing(self) -> dict[torch.dtype, torch.dtype]:
        """Requested dtype -> the one in which the smallest shift can be resolved."""
        return {DTYPES[name]: DTYPES[self.map.computes_in(name)] for name in self.map.dtypes}

    def solve(self, xs: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
        return run(xs, [self._factor], self.computing[dtype], self.normaliser)

    def _factor(self, gram: Tensor) -> tuple[float, Tensor]:
        scale, poles, residues = self.map.scale, self.map.poles, self.map.residues
        if not self.polish:
            return scale, _inverses(gram, poles, [scale * a for a in residues])
        # V = (G + c)^-1, Q = s (I + a V): since G V = I - c V, Q G Q = s^2 (G + 2a I + (a^2 - 2ac) V - a^2 c V^2),
        # whose terms are all of size 1; multiplying Q by G Q would lose two digits more.
        (c,), (a,) = poles, residues
        v = _inverses(gram, poles, [a])
        square = scale * scale
        moved = symmetric_product(v, v, add=v, beta=square * (a - 2.0 * c), alpha=-square * c).add_(gram, alpha=square)
        moved.diagonal(dim1=-2, dim2=-1).add_(2.0 * a * square)
        lead, rest = polynomial(moved, self.map.polish, 1.0)
        v.diagonal(dim1=-2, dim2=-1).add_(1.0)
        return 0.0, symmetric_product(v, rest, add=v, beta=lead * scale, alpha=scale)


def _inverses(gram: Tensor, shifts: Sequence[float], weights: Sequence[float]) -> Tensor:
    """sum_j weight_j (gram + shift_j I)^-1. The diagonal of gram is changed and put back."""
    total: Tensor | None = None
    failures = torch.zeros(len(gram), dtype=torch.bool, device=gram.device)
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    plain = diagonal.clone()
    for shift, weight in zip(shifts, weights, strict=True):
        torch.add(plain, shift, out=diagonal)
        inverse, failed = spd_inverse(gram)
        failures |= failed
        total = inverse.mul_(weight) if total is None else total.add_(inverse, alpha=weight)
    diagonal.copy_(plain)
    assert total is not None
    if gram.device.type != "cpu" or bool(failures.any()):
        # A failed factorisation must be seen and not used; NaN says so without waiting for an accelerator.
        total.masked_fill_(failures[:, None, None], torch.nan)
    return total
