"""`optimizer.stats()` as a flat dict, with adapters for TensorBoard and wandb."""

from __future__ import annotations

from typing import Any

from inexact_muon.optim.core import LMOOptimizer


def flat_stats(optimizer: LMOOptimizer, prefix: str = "optimizer") -> dict[str, float]:
    """{"optimizer/blocks.0.fc.weight/gap": 0.01, ...}, for any logger."""
    table = optimizer.stats()
    return {f"{prefix}/{name}/{key}": value for name, row in table.items() for key, value in row.items()}


def to_tensorboard(writer: Any, optimizer: LMOOptimizer, step: int) -> None:
    """Write every number as a scalar to a `torch.utils.tensorboard.SummaryWriter` (extra `tracking`)."""
    for tag, value in flat_stats(optimizer).items():
        writer.add_scalar(tag, value, step)


def to_wandb(run: Any, optimizer: LMOOptimizer, step: int) -> None:
    """Log all numbers in one call to a wandb run (extra `tracking`)."""
    run.log(flat_stats(optimizer), step=step)
