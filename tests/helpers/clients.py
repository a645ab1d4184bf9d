"""What the tests of client libraries share: a small model, its data, optimizers, schedules, and a plain loop."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR
from torch.utils.data import Dataset

from inexact_muon.integrations.transformers import MuonFactory
from models import GPT

WORDS, LENGTH, EXAMPLES = 40, 6, 24
BATCH, ACCUMULATED, STEPS, WARMUP, CLIP = 3, 2, 12, 3, 0.5
"""Examples of a micro-batch, micro-batches of a step, steps of a run (4 are an epoch) and of the warm-up, max_norm."""

Batch = dict[str, Tensor]

LIGHTNING_WARNS = [
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
]
"""Lightning uses a deprecated name of torch, and advises on workers and on folders with checkpoints in them."""


class Tokens(Dataset[Batch]):
    """Fixed random sequences, predicted one token ahead."""

    def __init__(self) -> None:
        self.ids = torch.randint(WORDS, (EXAMPLES, LENGTH), generator=torch.Generator().manual_seed(5))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Batch:
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


class Model(GPT):
    """A GPT that computes its loss, with the signature that the Trainer expects, and records its batches."""

    def __init__(self) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            super().__init__(width=16, words=WORDS)
        self.batches: list[Batch] = []

    def forward(self, input_ids: Tensor, labels: Tensor) -> Batch:  # type: ignore[override]
        self.batches.append({"input_ids": input_ids, "labels": labels})
        logits = super().forward(input_ids)
        return {"loss": nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())}


class AdamWFactory:
    """torch.optim.AdamW by the same call as `MuonFactory`."""

    def __call__(self, model: nn.Module, **options: Any) -> Optimizer:
        return torch.optim.AdamW(model.parameters(), **options)


@dataclass(frozen=True)
class Recipe:
    """A factory and its options."""

    factory: type
    options: dict[str, Any]

    def build(self, model: nn.Module) -> Optimizer:
        optimizer: Optimizer = self.factory()(model, **self.options)
        return optimizer


MUON = Recipe(MuonFactory, {"lr": 0.02, "weight_decay": 0.01, "adamw": {"lr": 3e-3}})
ADAMW = Recipe(AdamWFactory, {"lr": 3e-3, "betas": (0.9, 0.95), "weight_decay": 0.0})
ONLY_ADAMW = Recipe(MuonFactory, {"lr": 0.02, "adamw": dict(ADAMW.options), "rules": [("*", "adamw")]})


def cosine(step: int) -> float:
    """The factor of transformers' schedule "cosine"."""
    if step < WARMUP:
        return step / WARMUP
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP))))


def one_cycle(optimizer: Optimizer) -> LRScheduler:
    """Cycles every group's own lr, and momentum."""
    highest = [group["lr"] for group in optimizer.param_groups]
    return OneCycleLR(optimizer, highest, total_steps=STEPS + 1, cycle_momentum=True)


SCHEDULES = {"cosine": lambda optimizer: LambdaLR(optimizer, cosine), "one-cycle": one_cycle}


@dataclass
class Run:
    """What a run leaves: batches seen, per step the groups' rates and the gradient's norm before clipping."""

    model: nn.Module
    optimizer: Optimizer
    rates: list[list[float]] = field(default_factory=list)
    momenta: list[list[float]] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)

    def watch(self, optimizer: Optimizer) -> None:
        """Records what each step of the optimizer is about to use."""

        def before(optimizer: Optimizer, *_: Any) -> None:
            self.rates.append([float(group["lr"]) for group in optimizer.param_groups])
            self.momenta.append([_momentum(group) for group in optimizer.param_groups])

        self.optimizer = optimizer
        optimizer.register_step_pre_hook(before)

    @property
    def batches(self) -> list[Batch]:
        return self.model.batches

    @property
    def result(self) -> dict[str, Any]:
        """Weights and the optimizer's state, for `same`."""
        return {"weights": dict(self.model.named_parameters()), "optimizer": self.optimizer.state_dict()}


def _momentum(group: dict[str, Any]) -> float:
    return float(group["betas"][0] if "betas" in group else group["momentum"])


def in_groups(optimizer: Optimizer) -> list[Tensor]:
    """The parameters in the order of the optimizer's groups."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def plain(recipe: Recipe, schedule: str, batches: list[Batch], by_group: bool = False) -> Run:
    """The same run in a loop of plain torch.

    Args:
        by_group: sum the gradient's norm in the order of the optimizer's groups, not of the model.
    """
    model = Model()
    optimizer = recipe.build(model)
    scheduler = SCHEDULES[schedule](optimizer)
    run = Run(model, optimizer)
    run.watch(optimizer)
    for k, batch in enumerate(batches, 1):
        (model(**batch)["loss"] / ACCUMULATED).backward()
        if k % ACCUMULATED == 0:
            clipped = in_groups(optimizer) if by_group else list(model.parameters())
            run.norms.append(float(nn.utils.clip_grad_norm_(clipped, CLIP)))
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return run


def moved(model: nn.Module) -> set[str]:
    """Names of the parameters that are not as `Model()` makes them."""
    start = dict(Model().named_parameters())
    return {name for name, p in model.named_parameters() if not torch.equal(p, start[name])}


def same(one: Any, other: Any, where: str = "") -> None:
    """Equality bit for bit of nested state; an error says where it fails."""
    assert type(one) is type(other), f"{where}: {type(one)} and {type(other)}"
    if isinstance(one, Tensor):
        assert one.dtype == other.dtype, where
        assert torch.equal(one, other), f"{where}: off by {(one - other).abs().max()}"
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), f"{where}: {one.keys() ^ other.keys()}"
        for key in one:
            same(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for k, pair in enumerate(zip(one, other, strict=True)):
            same(*pair, f"{where}[{k}]")
    else:
        assert one == other, f"{where}: {one} and {other}"
