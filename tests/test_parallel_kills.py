"""A rank that dies or hangs in the middle of a step: the others say so, and training resumes on fewer ranks."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from inexact_muon import Muon, optim
from ranks import start

SAVED, FATAL, LAST = 5, 7, 11
TIMEOUT = 15.0


def net() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(8, 9), nn.Tanh(), nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 9)]
    return nn.Sequential(*layers, nn.Tanh(), nn.Linear(9, 3)).double()


def batch(step: int, rank: int, world: int) -> Tensor:
    whole = torch.randn(12, 8, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
    return whole[rank * 12 // world : (rank + 1) * 12 // world]


def steps(model: nn.Module, optimizer: Muon, first: int, last: int, rank: int = 0, world: int = 1) -> None:
    for step in range(first, last):
        optimizer.zero_grad()
        model(batch(step, rank, world)).square().mean().backward()
        optimizer.step()


def wrapped(kind: str) -> tuple[nn.Module, Muon]:
    model: Any = net()
    if kind == "fsdp":
        model = fully_shard(model)
    elif kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    return model, Muon.for_model(model, 0.05, strategy="auto" if kind == "one" else "owner-rank", momentum=0.8)


def inner(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model  # type: ignore[return-value]


def state(model: nn.Module, optimizer: Muon) -> dict[str, Any]:
    return {"model": inner(model).state_dict(), "optimizer": get_optimizer_state_dict(model, optimizer)}


def doomed(rank: int, world: int, folder: str, kind: str, fate: str) -> None:
    """Saves, goes on, and loses rank 1 inside the oracle of a later step; the others write down what they were told."""
    torch.set_num_threads(1)
    start(rank, world, Path(folder) / "store", TIMEOUT)
    model, optimizer = wrapped(kind)
    steps(model, optimizer, 0, SAVED, rank, world)
    dcp.save(state(model, optimizer), checkpoint_id=f"{folder}/saved")
    steps(model, optimizer, SAVED, FATAL, rank, world)
    if rank == 1:

        def die(*_: Any, **__: Any) -> Any:
            if fate == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(1000)

        optim.LMOOptimizer.solve = die  # type: ignore[method-assign]
    began = time.monotonic()
    try:
        steps(model, optimizer, FATAL, LAST, rank, world)
        said = "nothing happened"
    except RuntimeError as error:
        said = str(error)
    (Path(folder) / f"{rank}.txt").write_text(f"{time.monotonic() - began:.1f} {said}")
    os._exit(1)  # as a process that does not catch the error would


def resumed(rank: int, world: int, folder: str, kind: str) -> None:
    torch.set_num_threads(1)
    start(rank, world, Path(folder) / f"store{world}")
    model, optimizer = wrapped(kind)
    steps(model, optimizer, 50, 51, rank, world)  # makes the state that is loaded into, on another trajectory
    loaded = state(model, optimizer)
    dcp.load(loaded, checkpoint_id=f"{folder}/saved")
    inner(model).load_state_dict(loaded["model"])
    set_optimizer_state_dict(model, optimizer, loaded["optimizer"])
    steps(model, optimizer, SAVED, LAST, rank, world)
    whole = [p.detach().full_tensor() if isinstance(p, DTensor) else p.detach() for p in model.parameters()]
    torch.save(whole, f"{folder}/{kind}{world}-{rank}.pt")
    dist.destroy_process_group()


def launch(function: Any, world: int, *arguments: Any) -> list[Any]:
    context = multiprocessing.get_context("forkserver")
    processes = [context.Process(target=function, args=(rank, world, *arguments)) for rank in range(world)]
    for process in processes:
        process.start()
    return processes


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "fate"), [("ddp", "killed"), ("fsdp", "killed"), ("fsdp", "hangs")])
def test_a_lost_rank(kind: str, fate: str) -> None:
    alone, optimizer = wrapped("one")
    steps(alone, optimizer, 0, LAST)
    with tempfile.TemporaryDirectory() as folder:
        processes = launch(doomed, 3, folder, kind, fate)
        for process in (processes[0], processes[2]):
            process.join(180)
            assert process.exitcode == 1, "ended by itself"
        processes[1].kill()
        for rank in (0, 2):
            seconds, said = (Path(folder) / f"{rank}.txt").read_text().split(" ", 1)
            assert "ended or did not answer in time during optimizer.step()" in said, said
            assert "start again from the last checkpoint" in said
            assert float(seconds) < 2 * TIMEOUT
        for world, how in ((2, kind), (1, "one")):
            for process in launch(resumed, world, folder, how):
                process.join(180)
                assert process.exitcode == 0
            for rank in range(world):
                found = torch.load(f"{folder}/{how}{world}-{rank}.pt")
                for a, b in zip(alone.parameters(), found, strict=True):
                    assert float((a.detach() - b).abs().max()) <= 1e-10, (world, how)
