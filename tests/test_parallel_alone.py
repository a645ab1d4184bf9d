"""What one rank knows alone is raised on all of them, and options that differ are, too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from inexact_muon import Muon
from ranks import on_ranks

OPTIONS: dict[str, tuple[Any, Any]] = {
    "nesterov": (True, False),
    "lr": (0.1, 0.2),
    "momentum": (0.9, 0.8),
    "weight_decay": (0.1, 0.0),
    "adjust_lr_fn": ("original", "match_rms_adamw"),
    "maximize": (False, True),
}


def beside(rank: int, world: int) -> list[str]:
    """A plain parameter beside a DTensor has a gradient that cannot be used, on the last rank."""
    mesh, said = init_device_mesh("cpu", (world,)), []
    for bad in ("nan", "sparse"):
        p = nn.Parameter(distribute_tensor(torch.eye(4), mesh, [Shard(0)], src_data_rank=None))
        q = nn.Parameter(torch.eye(4))
        optimizer = Muon([("shared", p), ("plain", q)], on_nonfinite="raise")
        p.grad = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)], src_data_rank=None)
        q.grad = torch.ones(4, 4)
        if rank == world - 1:
            q.grad = torch.eye(4).to_sparse() if bad == "sparse" else torch.full((4, 4), torch.nan)
        try:
            optimizer.step()
            said.append("nothing")
        except (TypeError, ValueError) as error:
            said.append(f"{type(error).__name__}: {error}")
        assert torch.equal(p.detach().full_tensor(), torch.eye(4))
    dist.barrier()
    return said


@pytest.mark.slow
def test_a_gradient_that_one_rank_holds() -> None:
    first, second = on_ranks(beside, 2)
    assert first == second, "one sentence"
    for said, kind, what in zip(first, ("ValueError", "TypeError"), ("is not finite", "sparse gradients"), strict=True):
        assert said.startswith(kind)
        assert what in said
        assert "nothing was changed" in said


def differing(rank: int, world: int) -> dict[str, str]:
    said = {}
    for name, values in OPTIONS.items():
        p = nn.Parameter(torch.eye(4))
        optimizer = Muon([("first", p)], strategy="owner-rank", **{name: values[rank == world - 1]})
        p.grad = torch.ones(4, 4)
        try:
            optimizer.step()
            said[name] = "nothing"
        except ValueError as error:
            said[name] = str(error)
        assert torch.equal(p, torch.eye(4))
        dist.barrier()
    return said


@pytest.mark.slow
def test_options_that_differ() -> None:
    for rank in on_ranks(differing, 2):
        for name, said in rank.items():
            assert said.startswith("parameters differ between ranks, nothing was changed"), name


def wrong(rank: int, world: int, fault: str) -> list[Tensor]:
    """Four steps on sharded matrices, with a fault in the exchange after the second one."""
    mesh = init_device_mesh("cpu", (world,))
    draws = [torch.randn(8, 6, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    params = [nn.Parameter(distribute_tensor(x, mesh, [Shard(0)], src_data_rank=None)) for x in draws]
    optimizer = Muon(params, lr=0.1)
    for step in range(4):
        for i, p in enumerate(params):
            g = torch.randn(8, 6, generator=torch.Generator().manual_seed(10 * step + i + 50))
            p.grad = distribute_tensor(g, mesh, [Shard(0)], src_data_rank=None)
        if step == 2:
            route = optimizer.plan.chunks[0][0].route  # type: ignore[union-attr]
            if fault == "a wrong owner":  # what it computes is taken for the direction of another matrix
                came = route._arrived
                route._arrived = lambda flat, came=came: came(flat)[::-1]
            elif fault == "a lost piece":
                moves = route._moves

                def lose(arrived: Tensor, *rest: Any, moves: Any = moves) -> Any:
                    arrived[: arrived.numel() // 2] = 0.0
                    return moves(arrived, *rest)

                route._moves = lose
            elif fault == "a stale plan":
                part = optimizer.plan.chunks[0][0].parts[0]  # type: ignore[union-attr]
                part.pieces[0] = part.pieces[0].clone()
        optimizer.step()
    return [p.detach().full_tensor() for p in params]


@pytest.mark.slow
def test_faults_are_seen() -> None:
    """The comparison with one process fails where an owner, a piece or the plan is wrong: it is not blind."""
    params = [nn.Parameter(torch.randn(8, 6, generator=torch.Generator().manual_seed(i))) for i in range(4)]
    optimizer = Muon(params, lr=0.1)
    for step in range(4):
        for i, p in enumerate(params):
            p.grad = torch.randn(8, 6, generator=torch.Generator().manual_seed(10 * step + i + 50))
        optimizer.step()
    for fault in ("none", "a wrong owner", "a lost piece", "a stale plan"):
        found = on_ranks(wrong, 2, fault)[0]
        error = max(float((a.detach() - b).abs().max()) for a, b in zip(params, found, strict=True))
        assert (error <= 1e-6) == (fault == "none"), (fault, error)
