"""What a step launches, sends and holds on many ranks: budgets that a launch or a message more would break.

Recorded on fake ranks by the recorder of `inexact-muon plan`, without Triton, on rank 0, which owns the most expensive
matrix; Python calls are counted on real ones.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode

from inexact_muon import Muon
from inexact_muon.optim import finite
from inexact_muon.polar.batching import ACCELERATOR_LIMIT
from inexact_muon_lab.plan.choice import Measured, measure_all
from inexact_muon_lab.plan.models import KNOWN, from_config
from inexact_muon_lab.plan.pricing import Machine
from inexact_muon_lab.plan.step import Case, Layout
from ranks import on_ranks
from torch_features import needs_fake_collectives

GPT2, LLAMA = KNOWN["gpt2-124m"].weights, KNOWN["llama3-8b"].weights
SIZES = {"hidden_size": 128, "num_hidden_layers": 64, "num_attention_heads": 2, "intermediate_size": 512}
SMALL = from_config({"model_type": "llama", "vocab_size": 4096, **SIZES}, "448 small matrices", 1, "").weights


@dataclass(frozen=True)
class Budget:
    """Most launches, calls of messages and MB sent; least share of the bytes that travel while products run."""

    launches: int | None
    calls: int = 4
    sent: float = float("inf")
    in_flight: float = 0.0


CASES: dict[str, tuple[Case, Budget]] = {
    "gpt2 alone": (Case(GPT2, Layout(1)), Budget(172, 0, 0.0)),
    "gpt2, fsdp 8": (Case(GPT2, Layout(8)), Budget(123, sent=39)),
    "gpt2, fsdp 64": (Case(GPT2, Layout(64)), Budget(130, sent=7.5)),
    "gpt2, ddp 8": (Case(GPT2, Layout(8, copies=8), "owner-rank"), Budget(151, sent=156)),
    "gpt2, hsdp 2 x 4": (Case(GPT2, Layout(8, copies=2)), Budget(124, sent=54)),
    "gpt2, fsdp 4 x tp 2": (Case(GPT2, Layout(8, tp=2)), Budget(123, sent=39)),
    "448 matrices, fsdp 8": (Case(SMALL, Layout(8)), Budget(128)),
    "llama, fsdp 8": (Case(LLAMA, Layout(8)), Budget(900, 20, in_flight=0.75)),
    "llama, fsdp 8, gram-reduced": (Case(LLAMA, Layout(8), "gram-reduced"), Budget(None, 110)),
    "llama, ddp 8": (Case(LLAMA, Layout(8, copies=8), "owner-rank"), Budget(None, 30)),
    "llama, fsdp 64": (Case(LLAMA, Layout(64)), Budget(320, 10)),
    "llama, fsdp 64, last rank": (Case(LLAMA, Layout(64), rank=63), Budget(320, 10)),
}

DISPATCHES = 120
"""Most operations of the host for matrices of one shape, however many."""

SLOW = ("gpt2, fsdp 64", "448", "llama", "hsdp", "tp 2")


@cache
def measured(name: str) -> Measured:
    ((_, found),) = measure_all({name: CASES[name][0]}, Machine())
    assert isinstance(found, Measured), found
    return found


@needs_fake_collectives
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if any(word in n for word in SLOW) else []) for n in CASES]
)
def test_a_step_stays_within_its_budget(name: str) -> None:
    cost, budget = measured(name).cost, CASES[name][1]
    assert budget.launches is None or cost.launches <= budget.launches
    assert cost.calls <= budget.calls
    assert cost.sent <= 1e6 * budget.sent
    assert cost.in_flight >= budget.in_flight * cost.sent
    assert cost.peak <= ACCELERATOR_LIMIT


@needs_fake_collectives
@pytest.mark.slow
def test_bytes_travel_while_products_run_on_most_ranks() -> None:
    """A rank that owns little waits for what it needs; the mean is over ranks of both kinds."""
    costs = [measured(name).cost for name in ("llama, fsdp 64", "llama, fsdp 64, last rank")]
    assert sum(cost.in_flight / cost.sent for cost in costs) / 2 >= 0.3


@needs_fake_collectives
@pytest.mark.slow
def test_tensor_parallelism_costs_what_fsdp_does() -> None:
    rows, both = (measured(name).cost for name in ("gpt2, fsdp 8", "gpt2, fsdp 4 x tp 2"))
    assert (both.launches, both.calls, both.sent, both.flops) == (rows.launches, rows.calls, rows.sent, rows.flops)


def stepped(world: int, counts: tuple[int, ...], sharded: bool) -> Iterator[Muon]:
    """An optimizer of so many matrices after three steps, for each number."""
    mesh = init_device_mesh("cpu", (world,))
    for count in counts:
        draws = [torch.randn(64, 64, generator=torch.Generator().manual_seed(i)) for i in range(count)]
        whole = [distribute_tensor(x, mesh, [Shard(0)], src_data_rank=None) if sharded else x for x in draws]
        ps = [nn.Parameter(x.clone()) for x in whole]
        for p, g in zip(ps, whole, strict=True):
            p.grad = g
        optimizer = Muon(ps, lr=0.02, polar="jordan:1", strategy="owner-rank")
        for _ in range(3):
            optimizer.step()
        yield optimizer


def dispatches(rank: int, world: int, counts: tuple[int, ...], sharded: bool) -> list[int]:
    """Operations of a later step that the host dispatches as on an accelerator, for each number of matrices."""
    finite.HOST_READABLE = ()
    found = []
    for optimizer in stepped(world, counts, sharded):
        with Dispatches() as seen:
            optimizer.step()
        found.append(seen.count)
    return found


class Dispatches(TorchDispatchMode):
    """Counts operations; one on a list of tensors is one."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("sharded", [True, False], ids=["fsdp", "ddp"])
def test_a_matrix_more_costs_the_host_no_dispatch(sharded: bool) -> None:
    for few, many in on_ranks(dispatches, 2, (16, 64), sharded):
        assert many <= few <= DISPATCHES


def python_calls(rank: int, world: int, counts: tuple[int, ...], sharded: bool) -> list[int]:
    """Calls of Python functions in a later step, of any package, for each number of matrices."""
    found = []
    for optimizer in stepped(world, counts, sharded):
        calls = 0

        def profile(frame: FrameType, event: str, _: Any) -> None:
            nonlocal calls
            calls += event == "call"

        sys.setprofile(profile)
        optimizer.step()
        sys.setprofile(None)
        found.append(calls)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("sharded", "most"), [(True, 2200), (False, 900)], ids=["fsdp", "ddp"])
def test_python_calls_grow_with_the_number_of_matrices_and_little(sharded: bool, most: int) -> None:
    for calls in on_ranks(python_calls, 4, (16, 64, 256), sharded):
        assert calls[2] <= most
        assert (calls[2] - calls[1]) / (256 - 64) <= 1.1 * (calls[1] - calls[0]) / (64 - 16) + 1, "linear"
