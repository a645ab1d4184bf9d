"""An oracle for experiments: an arbitrary map of the singular values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from inexact_muon import schedules
from inexact_muon.polar.exact import Decomposed, decompose
from inexact_muon.schedules.shapes import Shape


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
        factors = (self.factors,) if isinstance(self.factors, Shape) else self.factors
        if not isinstance(factors, tuple | list) or not all(isinstance(factor, Shape) for factor in factors):
            raise ValueError(f"shaped: factors must be shapes such as power(p=0.25), got {factors!r}")
        object.__setattr__(self, "factors", tuple(factors))
        super().__post_init__()

    @cached_property
    def map(self) -> schedules.ShapedMap:
        return schedules.ShapedMap(0.0, "product of shapes", self.factors)

    def solve_one(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        u, s, vh, nonzero = decompose(x, dtype)
        top = torch.where(s[..., :1] > 0, s[..., :1], torch.ones_like(s[..., :1]))
        f = torch.from_numpy(self.map.scalar((s / top).cpu().double().numpy())).to(s)
        return (u * (f * nonzero).unsqueeze(-2)) @ vh
