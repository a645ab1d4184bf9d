"""Stages before the oracle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from inexact_muon.optim.stages.base import Before, Extent, check_beta


@dataclass(frozen=True)
class SecondMoment(Before):
    """Muon^2 (arXiv 2604.09967): v <- beta2 v + (1 - beta2) g^2, and m / (sqrt(v) + eps) goes to the oracle.

    v starts at zero. Its correction is a factor, which an LMO does not see.
    """

    name: ClassVar[str] = "second-moment"
    state: ClassVar[Mapping[str, Extent]] = {"second_moment": "entries"}

    beta2: float = 0.95
    eps: float = 1e-8

    def __post_init__(self) -> None:
        check_beta(self, self.beta2, self.eps)

    def __call__(self, m: Tensor, g: Tensor, old: Tensor | None) -> tuple[Tensor, Tensor | None]:
        assert old is not None
        v = torch.lerp(old, g.square(), 1.0 - self.beta2)
        # With eps = 0 an entry that never had a gradient is 0/0.
        return m / v.sqrt().add_(self.eps or torch.finfo(v.dtype).tiny), v


@dataclass(frozen=True)
class Signed(Before):
    """AdaMuon (arXiv 2507.11005): sign(m) goes to the oracle."""

    name: ClassVar[str] = "sign"

    def __call__(self, m: Tensor, g: Tensor, old: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return m.sign(), None
