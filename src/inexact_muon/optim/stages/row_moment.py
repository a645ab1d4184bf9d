"""NorMuon's stage: rows of the oracle's answer divided by the root of their running mean squares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from inexact_muon.optim.stages.base import After, Extent, check_beta
from inexact_muon.optim.stages.pieces import Pieces


@dataclass(frozen=True)
class RowMoment(After):
    """v_i <- beta2 v_i + (1 - beta2) mean_j z_ij^2, then z_ij / (sqrt(v_i) + eps), rescaled to the norm ||z||_F it had.

    NorMuon (arXiv 2510.05491) divides in this way and then has a fixed RMS: follow it by `RMS(0.2)`, which overrides
    this norm. dion and nanochat have this norm; nanochat takes the longer side for the rows.
    """

    name: ClassVar[str] = "row-moment"
    state: ClassVar[Mapping[str, Extent]] = {"row_moment": "rows"}

    beta2: float = 0.95
    eps: float = 1e-8

    def __post_init__(self) -> None:
        check_beta(self, self.beta2, self.eps)

    def __call__(self, z: Pieces) -> None:
        squares = z.row_squares()
        v = torch.lerp(z.old_rows("row_moment"), squares / z.columns, 1.0 - self.beta2)
        z.new_rows("row_moment", v)
        divided = v.sqrt().add_(self.eps or z.tiny)
        norms = squares.sqrt()  # of rows; not by a product of matrices, which TF32 would round
        before, after = (torch.linalg.vector_norm(x, dim=1, keepdim=True) for x in (norms, norms / divided))
        z.multiply(before / after.clamp_min_(z.tiny) / divided)
