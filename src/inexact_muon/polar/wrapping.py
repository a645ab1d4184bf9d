"""Base class of methods that wrap another method: map, precision and cost are those of the inner method."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from inexact_muon.polar._base import PolarMethod
from inexact_muon.polar.polynomial import PolarExpress
from inexact_muon.schedules.operations import Operation
from inexact_muon.schedules.scalar_map import ScalarMap


@dataclass(frozen=True)
class Wrapping(PolarMethod):
    """A method that runs `method`; dtype, form and normalise are set on the inner method."""

    method: PolarMethod = field(default_factory=PolarExpress)

    def __post_init__(self) -> None:
        if self.dtype is not None or self.form != "auto" or self.normalise != "auto":
            raise ValueError(f"{self.name}: dtype, form and normalise belong inside, e.g. {self.name}({self.method})")
        super().__post_init__()

    @property
    def map(self) -> ScalarMap:
        return self.method.map

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        return self.method.dtypes

    @property
    def normaliser(self) -> str:
        return self.method.normaliser

    def compute_dtype(self, m: Tensor) -> torch.dtype:
        return self.method.compute_dtype(m)

    def computes_on(self, device: torch.device) -> torch.dtype:
        return self.method.computes_on(device)

    def dtype_on(self, device: str = "cpu") -> str:
        return self.method.dtype_on(device)

    def operations(self, n: int, m: int, device: str = "cpu") -> tuple[Operation, ...]:
        return self.method.operations(n, m, device)
