"""Bytes are counted: against the kernel's count of the sockets, by shapes, and against a plan on fake ranks."""

from __future__ import annotations

import os
import socket
import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.utils.flop_counter import FlopCounterMode

from inexact_muon import EF21Muon, Muon
from inexact_muon_lab.plan.choice import Measured, measure_all
from inexact_muon_lab.plan.models import Weight
from inexact_muon_lab.plan.pricing import Machine
from inexact_muon_lab.plan.step import Case, Layout
from ranks import on_ranks
from torch_features import needs_fake_collectives

SHAPES = ((256, 64),) * 4 + ((128, 128),) * 4
"""The long side is that of the rows, which FSDP divides; below the size from which symmetric products save flops."""

ORACLE = "polar-express(5, dtype=float32)"
FLAGS = 3 * len(SHAPES)
"""Bytes in which ranks agree on gradients."""

LISTS = 16
"""Bytes by which they compare what they share, once."""

PLANS: dict[str, tuple[str, bool]] = {
    "replicated": ("replicated", True),
    "owner-rank, fsdp": ("owner-rank", True),
    "owner-rank, ddp": ("owner-rank", False),
    "gram-reduced": ("gram-reduced", True),
    "block-periodic": ("block-periodic:2", True),
    "compressed, rank 8": ("low-rank:8", False),
    "compressed, top": ("top-k:0.05", False),
    "compressed, natural": ("natural", False),
}
"""Name -> (strategy, or compressor of EF21Muon; whether parameters are sharded)."""

BYTES_SENT = 200
"""Offset of tcpi_bytes_sent in Linux's struct tcp_info."""


def sockets() -> dict[str, int]:
    """Payload bytes that each TCP socket of this process has sent, as Linux counts them."""
    found = {}
    for link in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):  # one that is closed meanwhile, or not of TCP
            name = str(link.readlink())
            if name.startswith("socket:"):
                with socket.socket(fileno=os.dup(int(link.name))) as opened:
                    info = opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                    found[name] = struct.unpack_from("Q", info, BYTES_SENT)[0]
    return found


def sent_since(before: dict[str, int]) -> int:
    """What sockets that are still open have sent."""
    return sum(max(0, value - before.get(name, 0)) for name, value in sockets().items())


@dataclass
class Seen:
    """Of one rank in two steps."""

    counted: int
    kernel: int
    flops: int


def measured(rank: int, world: int, shapes: tuple[tuple[int, int], ...], names: list[str]) -> dict[str, Seen]:
    mesh = init_device_mesh("cpu", (world,))
    results = {}
    for name in names:
        text, sharded = PLANS[name]
        draws = [torch.randn(shape, generator=torch.Generator().manual_seed(i)) for i, shape in enumerate(shapes)]
        whole = [distribute_tensor(x, mesh, [Shard(0)], src_data_rank=None) if sharded else x for x in draws]
        params = [nn.Parameter(x.clone()) for x in whole]
        given: dict[str, Any] = {"up": text} if name.startswith("compressed") else {"strategy": text}
        optimizer = (EF21Muon if "up" in given else Muon)(params, polar=ORACLE, **given)
        for p, g in zip(params, whole, strict=True):
            p.grad = g
        dist.barrier()
        before = sockets()
        with FlopCounterMode(display=False) as counter:
            for _ in range(2):
                optimizer.step()
        time.sleep(0.2)
        dist.barrier()
        results[name] = Seen(optimizer.team.wire.sent, sent_since(before), counter.get_total_flops())
    return results


def planned(world: int) -> dict[str, Measured]:
    """Name -> what the recorder counts on rank 0."""
    weights = [Weight(f"layers.{i}.up_proj.weight", shape) for i, shape in enumerate(SHAPES)]
    layouts = {True: Layout(world), False: Layout(world, copies=world)}
    cases = {name: Case(weights, layouts[sharded], text, ORACLE) for name, (text, sharded) in PLANS.items()}
    found = dict(measure_all(cases, Machine()))
    assert all(isinstance(some, Measured) for some in found.values()), found
    return found  # type: ignore[return-value]


@cache
def all_of_them(world: int) -> list[dict[str, Seen]]:
    return on_ranks(measured, world, SHAPES, list(PLANS))


@pytest.mark.slow
@needs_fake_collectives
@pytest.mark.parametrize("world", [2, 4])
def test_a_plan_on_fake_ranks_counts_what_real_ones_send(world: int) -> None:
    ranks, plans = all_of_them(world), planned(world)
    for name, plan in plans.items():
        assert plan.matrices == len(SHAPES)
        seen = [rank[name] for rank in ranks]
        lists = 2 * (world - 1) / world * LISTS  # compared at the first step alone
        assert seen[0].counted - lists == pytest.approx(2 * plan.cost.sent, abs=8), name
        assert seen[0].flops == pytest.approx(2 * plan.cost.flops, rel=0.01), name
        # The kernel also counts gloo's headers and the barriers.
        assert sum(s.counted for s in seen) <= sum(s.kernel for s in seen) * 1.01, name
        assert sum(s.kernel for s in seen) <= sum(s.counted for s in seen) * 1.05 + 5e4, name


@pytest.mark.slow
def test_each_matrix_once_and_no_more() -> None:
    """By shapes alone, on two ranks, two steps."""
    ranks = all_of_them(2)
    numbers, squares = 4 * 256 * 64 + 4 * 128 * 128, 4 * 64**2 + 4 * 128**2
    totals = {name: sum(rank[name].counted for rank in ranks) // 2 - 2 * FLAGS - LISTS for name in PLANS}
    assert totals["owner-rank, ddp"] == 4 * numbers  # each answer reaches the one other rank
    assert totals["owner-rank, fsdp"] == 2 * 4 * numbers // 2  # half of each matrix travels there and back
    assert totals["replicated"] == 4 * numbers
    assert totals["gram-reduced"] == 8 * (2 * squares + len(SHAPES) * 3)  # n^2 there and back, and three numbers
    assert totals["block-periodic"] == totals["owner-rank, fsdp"] // 2
    assert totals["compressed, rank 8"] == 2 * 4 * 8 * sum(n + m for n, m in SHAPES)
    assert totals["compressed, natural"] == 2 * numbers * 9 // 8


@pytest.mark.slow
def test_rank_8_sends_less_than_a_tenth_of_owner_rank() -> None:
    shapes = ((768, 768), (3072, 768))
    ranks = on_ranks(measured, 2, shapes, ["owner-rank, ddp", "compressed, rank 8"])
    owner, compressed = (
        sum(rank[name].counted for rank in ranks) for name in ("owner-rank, ddp", "compressed, rank 8")
    )
    assert compressed < 0.1 * owner
    assert compressed / owner == pytest.approx(2 * 8 * (1536 + 3840) / (768 * 3840), rel=0.01)


def test_the_fields_of_the_kernel_are_where_we_look() -> None:
    """A socket pair that has sent a megabyte says so."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        other, _ = server.accept()
        before = sockets()
        client.sendall(bytes(100_000))
        with other:
            received = 0
            while received < 100_000:
                received += len(other.recv(65536))
        assert sent_since(before) == pytest.approx(100_000, rel=0.01)
