"""Functions run by several gloo processes of one machine."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

# Ranks are forked from a server that has imported everything once; importing takes longer than most tests. DTensors
# import torch._dynamo when they are first used, a second in every rank.
multiprocessing.set_forkserver_preload(
    [
        "hypothesis",
        "pytest",
        "torch._dynamo",
        "torch.distributed.tensor.parallel",
        "torch.distributed.fsdp",
        "torch.distributed.checkpoint",
        "inexact_muon.optim.ef21",
        "inexact_muon.optim.stages",
        "inexact_muon.routing.routes",
    ]
)


def on_ranks(function: Callable[..., Any], world: int, *arguments: Any) -> list[Any]:
    """What function(rank, world, *arguments) returns on each rank of a fresh process group."""
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_rank, (world, folder, function, arguments), nprocs=world, start_method="forkserver")
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(world)]


def _rank(rank: int, world: int, folder: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    start(rank, world, Path(folder) / "store")
    try:
        torch.save(function(rank, world, *arguments), Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


def start(rank: int, world: int, store: Path, seconds: float = 300.0) -> None:
    """Joins the process group whose ranks meet at a file."""
    timeout = timedelta(seconds=seconds)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timeout)
