"""AdaMuon's stage: entries of the oracle's answer divided by the root of their running squares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from inexact_muon.optim.stages.base import After, Extent, check_beta
from inexact_muon.optim.stages.pieces import Pieces


@dataclass(frozen=True)
class EntryMoment(After):
    """v <- beta2 v + (1 - beta2) z^2, then z / (sqrt(v) + eps), entry by entry.

    v starts at zero, and the first answer becomes about sign(z) / sqrt(1 - beta2): AdaMuon (arXiv 2507.11005) follows
    this by `RMS(0.2)`.
    """

    name: ClassVar[str] = "entry-moment"
    state: ClassVar[Mapping[str, Extent]] = {"entry_moment": "entries"}

    beta2: float = 0.95
    eps: float = 1e-8

    def __post_init__(self) -> None:
        check_beta(self, self.beta2, self.eps)

    def __call__(self, z: Pieces) -> None:
        old = z.old_entries("entry_moment")
        new = [torch.lerp(v, x.square(), 1.0 - self.beta2) for v, x in zip(old, z.stacks, strict=True)]
        z.new_entries("entry_moment", new)
        z.stacks = [x / v.sqrt().add_(self.eps or z.tiny) for v, x in zip(new, z.stacks, strict=True)]
