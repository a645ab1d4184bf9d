"""Keyword arguments that optimizers share, declared once: editors complete them and mypy checks them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

import torch

from inexact_muon.optim.stages import Given
from inexact_muon.polar import PolarMethod

if TYPE_CHECKING:
    from inexact_muon.strategies import Strategy


class Alone(TypedDict, total=False):
    """Arguments of `LMOOptimizer` that every optimizer takes."""

    state_dtype: torch.dtype | None
    maximize: bool
    sample_every: int
    sample_share: float
    on_nonfinite: str
    memory_limit: int | None
    process_group: Any


class StageOptions(TypedDict, total=False):
    """Arguments of `LMOOptimizer` for stages around the oracle."""

    before: Given
    after: Given
    decay: str
    fixed_norm: bool


class Common(Alone, StageOptions, total=False):
    """The same, with how ranks share the work, and stages."""

    strategy: Strategy | str
    wire: str


class Steps(TypedDict, total=False):
    """Arguments of `torch.optim.Muon` that choose its oracle and scale."""

    ns_coefficients: tuple[float, float, float] | None
    eps: float
    ns_steps: int | None
    adjust_lr_fn: str | None
    foreach: bool | None
    fused: bool | None


class Numbers(TypedDict, total=False):
    """Arguments that `torch.optim.Muon` takes by position."""

    weight_decay: float
    momentum: float
    nesterov: bool


class Keywords(Steps, Common, total=False):
    """Keyword arguments of `Muon`."""

    polar: PolarMethod | str | None


class MuonOptions(Numbers, Steps, Common, total=False):
    """Keyword arguments of `Muon.for_model` beside those of routing."""


class EF21Common(Steps, Alone, total=False):
    """Keyword arguments of `EF21Muon` beside its compressors."""

    polar: PolarMethod | str | None


class EF21Options(Numbers, EF21Common, total=False):
    """Those of `EF21Muon.for_model`."""
