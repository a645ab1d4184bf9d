"""The update does not depend on how parameters are laid out over ranks."""

from __future__ import annotations

import tempfile
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from inexact_muon import Muon
from ranks import on_ranks

SHAPES = ((12, 8), (7, 5), (2, 9), (5, 3), (1, 4))
"""Even, uneven and, with three ranks, empty shards of rows."""


def gradients(step: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]


def trained(params: list[Any], place: Any, bad: bool = False, adamw: bool = False) -> list[Any]:
    """Parameters after four steps; `place` lays a whole tensor out."""
    groups = [{"params": params[:-1]}, {"params": params[-1:], "algorithm": "adamw" if adamw else "lmo"}]
    optimizer = Muon(groups, lr=0.1, sample_every=1)
    for step in range(4):
        whole = gradients(step)
        if bad and step == 1:
            whole[0][-1, -1] = torch.nan  # known to the last rank alone
        for p, g in zip(params, whole, strict=True):
            p.grad = place(g)
        optimizer.step()
    assert set(optimizer.inexactness()) >= {"0", "1", "2", "3"}
    return params


def alone(bad: bool, adamw: bool) -> list[torch.Tensor]:
    params = [nn.Parameter(p.clone()) for p in gradients(100)]
    return [p.detach() for p in trained(params, torch.clone, bad, adamw)]


def sharded(rank: int, world: int, dims: tuple[int | None, ...], bad: bool, adamw: bool) -> list[torch.Tensor]:
    shape = (world,) if len(dims) == 1 else (2, world // 2)
    mesh = init_device_mesh("cpu", shape)
    placements = [Replicate() if dim is None else Shard(dim) for dim in dims]

    def place(whole: torch.Tensor) -> DTensor:
        return distribute_tensor(whole.clone(), mesh, placements)

    params = [nn.Parameter(place(p)) for p in gradients(100)]
    return [p.detach().full_tensor() for p in trained(params, place, bad, adamw)]


@pytest.mark.slow
@pytest.mark.parametrize(("world", "dims"), [(2, (0,)), (3, (0,)), (3, (1,)), (2, (None,)), (4, (0, 1)), (4, (0, 0))])
def test_shards_get_the_whole_update(world: int, dims: tuple[int | None, ...]) -> None:
    for bad, adamw in ((False, False), (True, True)):
        expected = alone(bad, adamw)
        for found in on_ranks(sharded, world, dims, bad, adamw):
            for a, b in zip(expected, found, strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def in_one_process(function: Any, *arguments: Any) -> Any:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        return function(0, 1, *arguments)
    finally:
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:DTensor random operators")  # torch 2.6, of any tensor on a CPU mesh
@pytest.mark.parametrize("dim", [0, 1, None])
def test_one_rank_is_no_rank(dim: int | None) -> None:
    for a, b in zip(alone(False, True), in_one_process(sharded, (dim,), False, True), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 7), nn.Tanh(), nn.Linear(7, 4)).double()


def steps(net: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    for step in range(first, last):
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()


def with_fsdp(rank: int, world: int, folder: str) -> list[torch.Tensor]:
    """Three steps, a checkpoint by torch.distributed.checkpoint, a fresh model from it, three more."""
    net = model()
    fully_shard(net)
    optimizer = Muon.for_model(net, 0.05)
    steps(net, optimizer, 0, 3)
    state = {"model": net.state_dict(), "optimizer": get_optimizer_state_dict(net, optimizer)}
    dcp.save(state, checkpoint_id=folder)

    other = model()
    fully_shard(other)
    again = Muon.for_model(other, 0.05)
    steps(other, again, 50, 51)  # makes the state that is loaded into, and another trajectory
    state = {"model": other.state_dict(), "optimizer": get_optimizer_state_dict(other, again)}
    dcp.load(state, checkpoint_id=folder)
    other.load_state_dict(state["model"])
    set_optimizer_state_dict(other, again, state["optimizer"])
    steps(other, again, 3, 6)
    return [p.detach().full_tensor() for p in other.parameters()]


def without() -> list[torch.Tensor]:
    net = model()
    steps(net, Muon.for_model(net, 0.05), 0, 6)
    return [p.detach() for p in net.parameters()]


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_fsdp2_and_distributed_checkpoints(world: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for found in on_ranks(with_fsdp, world, folder):
            for a, b in zip(without(), found, strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
