"""A factory for transformers' `Trainer(optimizer_cls_and_kwargs=...)`. Does not import transformers."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from inexact_muon.optim import Muon

REPLACED = {"learning_rate": "lr", "adam_beta1": "adamw", "adam_beta2": "adamw", "adam_epsilon": "adamw"}
"""TrainingArguments -> the corresponding option here."""


class MuonFactory:
    """Builds `Muon.for_model(model, **options)` for a Trainer.

        Trainer(..., optimizer_cls_and_kwargs=(MuonFactory, {"lr": 0.02, "adamw": {"lr": 3e-3}}))

    The Trainer calls `MuonFactory()(model, **options)` and does not pass its TrainingArguments: `learning_rate`,
    `weight_decay`, `optim` and the `adam_*` fields have no effect. The schedule (`lr_scheduler_type`, `warmup_steps`),
    `max_grad_norm` and `gradient_accumulation_steps` are handled by the Trainer as usual.
    """

    def __call__(self, model: nn.Module, lr: float | Tensor | None = None, **options: Any) -> Muon:
        """The optimizer of a model; lr and options are those of `Muon.for_model`."""
        for name, ours in REPLACED.items():
            if name in options:
                raise TypeError(
                    f"MuonFactory has no option {name!r}: give {ours!r} in optimizer_cls_and_kwargs instead"
                )
        if lr is None:
            raise TypeError(
                "MuonFactory needs 'lr' in the options of optimizer_cls_and_kwargs, such as {'lr': 0.02}: "
                "TrainingArguments.learning_rate is not passed to it"
            )
        return Muon.for_model(model, lr, **options)
