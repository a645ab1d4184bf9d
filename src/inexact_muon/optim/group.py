"""What a parameter group holds once it is added: plain data, so that a checkpoint is."""

from __future__ import annotations

from typing import Any, TypedDict

from torch import Tensor


class Group(TypedDict, total=False):
    """A complete group; `LMOOptimizer` describes its options.

    `lr` and `momentum` are numbers, or tensors of one element that schedulers write into.
    """

    params: list[Tensor]
    param_names: list[str]
    name: str
    algorithm: str
    lr: Any
    momentum: Any
    weight_decay: float
    beta2: float
    eps: float
    betas: tuple[float, float]
    """Of AdamW, if set after the group was added; a step makes `momentum` and `beta2` of them."""

    ball: str
    length: str
    view: str
    before: str
    after: str
    """Texts of values, which the optimizer holds."""

    radius: float
    scale: str
    decay: str
    decay_lr: float
    """The lr that independent weight decay is relative to, else 1."""

    momentum_init: str
    nesterov: bool
    constrained: bool
    maximize: bool
    fixed_norm: bool
    keep: float
    turn: int
    """Steps since the group was added."""
