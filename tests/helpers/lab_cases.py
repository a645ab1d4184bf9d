"""The table of small runs that the lab's tests train, and a problem of one's own."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch
from torch import Tensor, nn

from inexact_muon_lab.problems import Task
from inexact_muon_lab.spec.decode import decode
from inexact_muon_lab.spec.spec import RunSpec
from torch_features import HAS_MUON

GPT = {"name": "nanogpt", "layers": 1, "width": 16, "heads": 2, "context": 16}
CNN = {"name": "cnn", "widths": [4, 4, 4]}
MATRIX = {"name": "matrix", "noise": 0.5}
CUSTOM = {"name": "custom", "target": "lab_cases:linear"}
SHORT = {"steps": 12, "batch": 8, "record_every": 5, "checkpoint_every": 4, "evaluate_every": 6, "validation": 2}

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "muon": {"name": "muon", "lr": 0.05},
    "muon, plain": {"name": "muon", "lr": 0.05, "nesterov": False, "weight_decay": 0.1, "polar": "zolotarev:2"},
    "hyperball": {"name": "hyperball", "lr": 0.05},
    "staged": {"name": "muon", "before": "second-moment", "after": "row-moment", "cautious": True, "decay": 0.01},
    "scion": {"name": "scion", "lr": 0.01},
    "scion, constrained": {"name": "scion", "lr": 0.01, "constrained": True},
    "sign-sgd": {"name": "sign-sgd", "lr": 0.01},
    "sgd": {"name": "sgd", "lr": 0.1},
    **({"torch-muon": {"name": "torch-muon", "lr": 0.05}} if HAS_MUON else {}),
    "adamw": {"name": "adamw", "lr": 0.01},
}
RUNS: dict[str, dict[str, Any]] = {
    **{f"gpt, {key}": {"problem": GPT, "optimizer": value} for key, value in OPTIMIZERS.items()},
    **{f"cnn, {key}": {"problem": CNN, "optimizer": v} for key, v in OPTIMIZERS.items() if key != "torch-muon"},
    **{f"matrix, {key}": {"problem": MATRIX, "optimizer": value} for key, value in OPTIMIZERS.items()},
    "learned positions": {"problem": GPT | {"positions": "learned"}},
    "accumulated": {"problem": GPT, "accumulate": 4},
    "scheduled": {"problem": GPT, "schedule": {"warmup": 3, "cooldown": 0.5, "shape": "cosine", "floor": 0.1}},
    "measured": {"problem": GPT, "telemetry": {"every": 5}},
    "estimated": {"problem": CNN, "telemetry": {"every": 5, "exact": False}},
    "bfloat16": {"problem": GPT, "precision": "bfloat16"},
    "fast": {"problem": GPT, "optimizer": {"name": "muon", "polar": "auto:fast"}},
    "custom with dropout": {"problem": CUSTOM, "optimizer": {"name": "adamw"}},
}


def run_spec(fields: dict[str, Any], **more: Any) -> RunSpec:
    return decode({**SHORT, "problem": GPT, **fields, **more}, RunSpec, "test")


def linear(
    seed: int, batch: int, width: int = 6, fail_at: int = -1, interrupt_at: int = -1, dropout: float = 0.5
) -> Task:
    """Regression on random numbers with dropout, whose randomness must resume too."""
    model = nn.Sequential(nn.Linear(width, 8), nn.Dropout(dropout), nn.Linear(8, 1))

    def examples(step: int) -> tuple[Tensor, ...]:
        if step == fail_at:
            raise RuntimeError("the data is gone")
        if step == interrupt_at:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        generator = torch.Generator().manual_seed(1000 * seed + step)
        x = torch.randn(batch, width, generator=generator)
        return x, x.sum(dim=1, keepdim=True)

    def loss(model: nn.Module, pair: tuple[Tensor, ...]) -> Tensor:
        return (model(pair[0]) - pair[1]).square().mean()

    return Task(model=model, batch=examples, loss=loss)


def not_a_task(seed: int, batch: int) -> int:
    return 3
