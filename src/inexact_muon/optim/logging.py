"""`optimizer.stats()` for loggers: one flat dict, and two adapters that need nothing but the logger itself."""

from __future__ import annotations

from typing import Any

from inexact_muon.optim.core import LMOOptimizer


def flat_stats(optimizer: LMOOptimizer, prefix: str = "optimizer") -> dict[str, float]:
    """{"optimizer/blocks.0.fc.weight/gap": 0.01, ...}: what any logger takes."""
    table = optimizer.stats()
    return {f"{prefix}/{name}/{key}": value for name, row in table.items() for key, value in row.items()}


def to_tensorboard(writer: Any, optimizer: LMOOptimizer, step: int) -> None:
    """Every number as a scalar of a `torch.utils.tensorboard.SummaryWriter` (extra `tracking`)."""
    for tag, value in flat_stats(optimizer).items():
        writer.add_scalar(tag, value, step)


def to_wandb(run: Any, optimizer: LMOOptimizer, step: int) -> None:
    """All numbers in one call of a wandb run (extra `tracking`)."""
    run.log(flat_stats(optimizer), step=step)
