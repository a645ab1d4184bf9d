"""The optimizer section of a run: one table for each kind."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from inexact_muon.defaults import ADAMW_LR
from inexact_muon_lab.spec.decode import Decay, Named, NotNegative, Positive


class _Hidden(Named, frozen=True):
    """Momentum of the hidden matrices, and AdamW of the rest."""

    lr: Positive = 0.02
    momentum: Decay = 0.95
    nesterov: bool = True
    adamw_lr: Positive = ADAMW_LR
    betas: tuple[Decay, Decay] = (0.9, 0.95)


class MuonSpec(_Hidden, frozen=True, tag="muon"):
    """Muon on the hidden matrices, AdamW on the rest. Defaults are those of `Muon.for_model`, with the README's lr."""

    weight_decay: NotNegative = 0.1
    decay: Decay | UnsetType = UNSET  # unset, it is no part of a run's id
    """For the matrices, in place of `weight_decay`, and independent of lr: W <- (1 - decay lr_k/lr) W."""
    cautious: bool | UnsetType = UNSET
    """Decay the matrices only where a step moves them towards zero."""
    before: str | UnsetType = UNSET
    """Stages before the oracle, as text: "second-moment"."""
    after: str | UnsetType = UNSET
    """Stages after it: "row-moment + rms:0.2"."""
    polar: str = "auto"
    scale: Literal["original", "match_rms_adamw", "spectral", "none"] = "original"


class HyperballSpec(_Hidden, frozen=True, tag="hyperball"):
    """Muon on the hidden matrices, with weights and updates of fixed Frobenius norm; AdamW on the rest."""

    lr: Positive = 0.05
    """Frobenius norm of an update over that of its weight."""
    polar: str = "auto"


class TorchMuonSpec(_Hidden, frozen=True, tag="torch-muon"):
    """torch.optim.Muon on the hidden matrices, whole, and torch.optim.AdamW on the rest: a baseline."""

    weight_decay: NotNegative = 0.1


class ScionSpec(Named, frozen=True, tag="scion"):
    """Scion: spectral balls for hidden layers, the sign ball for the output, both scaled by shape."""

    lr: Positive = 0.0009765625
    momentum: Decay = 0.9
    polar: str = "jordan(steps=5)"
    radius: Positive = 8.0
    head_radius: Positive = 16.0
    constrained: bool = False


class SignSGD(Named, frozen=True, tag="sign-sgd"):
    """W <- W - lr sign(m)."""

    lr: Positive = 0.001
    momentum: Decay = 0.9


class SGD(Named, frozen=True, tag="sgd"):
    """W <- W - lr m, with PyTorch's momentum."""

    lr: Positive = 0.1
    momentum: Decay = 0.9
    nesterov: bool = False
    weight_decay: NotNegative = 0.0


class AdamW(Named, frozen=True, tag="adamw"):
    """The baseline."""

    lr: Positive = 0.003
    betas: tuple[Decay, Decay] = (0.9, 0.95)
    weight_decay: NotNegative = 0.0


Optimizer = MuonSpec | HyperballSpec | TorchMuonSpec | ScionSpec | SignSGD | SGD | AdamW
