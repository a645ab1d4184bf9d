"""Answers of a fixed root mean square."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar

from inexact_muon.optim.stages.base import After
from inexact_muon.optim.stages.pieces import Pieces


@dataclass(frozen=True)
class RMS(After):
    """z value sqrt(rows columns) / ||z||_F; zero stays zero. AdamW's updates have an RMS of about 0.2."""

    name: ClassVar[str] = "rms"

    value: float = 0.2

    def __post_init__(self) -> None:
        if not 0.0 < self.value < inf:
            raise ValueError(f"rms: value must be positive and finite, got {self.value}")

    def __call__(self, z: Pieces) -> None:
        z.multiply(self.value * (z.sizes / z.squares().clamp_min_(z.tiny)).sqrt_())
