"""Functions run by several gloo processes of one machine."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def on_ranks(function: Callable[..., Any], world: int, *arguments: Any) -> list[Any]:
    """What function(rank, world, *arguments) returns on each rank of a fresh process group."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank, (world, folder, function, arguments), nprocs=world)
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(world)]


def _rank(rank: int, world: int, folder: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    try:
        torch.save(function(rank, world, *arguments), Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()
