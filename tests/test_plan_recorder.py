"""The recorder against what is known: bytes counted by hand, pieces, work space, and the model of its times."""

from __future__ import annotations

from math import prod

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from inexact_muon_lab.plan.models import Weight
from inexact_muon_lab.plan.pricing import (
    CALL,
    FLOOR,
    HOST,
    HOST_CALL,
    Machine,
    in_flight,
    price,
    product,
    seconds,
    timeline,
)
from inexact_muon_lab.plan.recorder import Launch, Messages, Recorder, Waited, fake_h100
from inexact_muon_lab.plan.step import Case, Layout, fake_ranks, module, record
from torch_features import needs_fake_collectives

pytestmark = needs_fake_collectives
WEIGHTS = (Weight("layers.#.up_proj.weight", (64, 64), 8),)
ORACLE = "polar-express(5, dtype=float32)"
HALF = torch.float16


def step(layout: Layout, strategy: str = "auto", rank: int = 0, oracle: str = ORACLE) -> Recorder:
    ((share, recorded),) = record(Case(WEIGHTS, layout, strategy, oracle, rank)).steps
    assert share == 1.0
    return recorded


@pytest.mark.parametrize("rank", [0, 3])
def test_bytes_of_fsdp_by_hand(rank: int) -> None:
    """Eight matrices on four ranks: 16 rows of six go to their owners, three times 16 rows of two come from here."""
    flags, pieces, directions = step(Layout(4), rank=rank).messages
    assert pieces.sent == 6 * 16 * 64 * 4 == directions.received
    assert directions.sent == 2 * 3 * 16 * 64 * 4 == pieces.received
    assert flags.sent < 100


def test_bytes_of_ddp_by_hand() -> None:
    """Each rank sends two directions to three others; pieces are there already."""
    flags, directions = step(Layout(4, copies=4), "owner-rank").messages
    assert directions.sent == 3 * 2 * 64 * 64 * 4
    assert flags.sent < 100


def test_bytes_of_tensor_parallelism_are_those_of_fsdp() -> None:
    both, rows = (step(layout).messages for layout in (Layout(4, tp=2), Layout(4)))
    assert [m.sent for m in both] == [m.sent for m in rows]


def test_flops_by_hand() -> None:
    """Five quintics of two 64 x 64 matrices: three products of 2 n^3 each."""
    assert sum(done.flops for done in step(Layout(4)).operations) == 5 * 2 * 3 * 2 * 64**3


def test_nothing_is_sent_by_one_rank() -> None:
    recorded = step(Layout(1))
    assert recorded.messages == []
    assert sum(done.flops for done in recorded.operations) == 5 * 8 * 3 * 2 * 64**3


@pytest.mark.parametrize("oracle", ["auto", "cans:5", "jordan:5", "zolotarev:3", "exact-svd"])
def test_any_oracle_can_be_recorded(oracle: str) -> None:
    assert len(step(Layout(2), oracle=oracle).messages) == 3


@pytest.mark.parametrize("strategy", ["replicated", "gram-reduced", "block-periodic:4", "low-rank:8", "natural"])
def test_any_strategy_can_be_recorded(strategy: str) -> None:
    found = record(Case(WEIGHTS, Layout(4), strategy, ORACLE))
    assert sum(share for share, _ in found.steps) == 1.0
    assert found.matrices == 8
    assert found.lmo_parameters == 8 * 64 * 64
    assert all(recorded.waits == [] for _, recorded in found.steps)
    if strategy.startswith("block"):
        (_, whole), (_, blocks) = found.steps
        assert len(whole.messages) == 3
        assert len(blocks.messages) == 1


LAYOUTS = [Layout(6), Layout(6, tp=2), Layout(6, copies=2), Layout(8, tp=2, copies=2)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_ranks_hold_each_matrix_once_for_each_copy(layout: Layout) -> None:
    weights = [Weight("a.up_proj.weight", (40, 24)), Weight("b.down_proj.weight", (24, 40))]
    held = 0
    for rank in range(layout.gpus):
        with fake_ranks(rank, layout.gpus):
            mesh = init_device_mesh("cuda", tuple(layout.mesh.values()), mesh_dim_names=tuple(layout.mesh))
            with fake_h100():
                ps = dict(module(weights, mesh).named_parameters())
            held += sum(p._local_tensor.numel() for p in ps.values())  # type: ignore[attr-defined]
            assert all(isinstance(p.grad, DTensor) and p.grad.placements == p.placements for p in ps.values())
    assert held == layout.copies * sum(prod(w.shape) for w in weights)


def test_work_space_is_what_lives_at_once() -> None:
    with fake_h100(), Recorder() as recorded:
        for _ in range(3):
            x = torch.empty(1000, device="cuda")
            y = x + 1
            del x
        del y
    assert recorded.peak == 3 * 4000  # x, its sum, and the sum of the round before
    assert recorded.launches == 3
    assert recorded.bytes == 3 * 8000


def test_views_of_what_was_there_before_are_no_work_space() -> None:
    with fake_h100():
        x = torch.empty(1000, device="cuda")
        with Recorder() as recorded:
            x.view(10, 100).narrow(0, 1, 2).add_(1)
    assert recorded.peak == 0


def launch(name: str = "bmm", side: int = 4096) -> Launch:
    return Launch(name, ((((1, side, side), HALF),) * 2, ()), 1, 0)


def test_messages_overlap_with_what_is_launched_before_they_are_waited_for() -> None:
    machine, sent = Machine(link=1.0), 1e6
    apart = [Messages(1, sent, sent), Waited(1), launch()]
    together = [Messages(1, sent, sent), launch(), Waited(1)]
    time = seconds(launch(), machine)
    assert timeline(apart, machine)[0] == pytest.approx(HOST_CALL + CALL + sent / 1e9 + time)
    assert timeline(together, machine)[0] == pytest.approx(HOST_CALL + CALL + sent / 1e9)
    assert (in_flight(apart), in_flight(together)) == (0, sent)
    assert timeline(apart, machine)[1] == HOST_CALL + HOST


def test_a_slower_machine_never_takes_less() -> None:
    recorded = step(Layout(4))
    fast, slow, far = (price(recorded, m) for m in (Machine(), Machine(flops=1.0), Machine(link=0.1)))
    assert fast.seconds < min(slow.seconds, far.seconds)
    assert fast.sent == slow.sent == far.sent
    assert fast.host == slow.host


@pytest.mark.parametrize("strategy", ["owner-rank", "gram-reduced", "replicated"])
def test_a_rank_without_rows_has_a_price(strategy: str) -> None:
    recorded = step(Layout(96), strategy, rank=95)
    assert price(recorded, Machine()).seconds > 0


def test_products_are_priced_by_their_dtype_and_their_tiles() -> None:
    assert product(1, 4096, 4096, 4096, 4) / product(1, 4096, 4096, 4096, 2) == pytest.approx(989 / 67)
    assert product(1, 8, 8, 8, 2) == product(1, 0, 8, 8, 2) == FLOOR
    into, new = (Launch(name, ((((1, 4096, 4096), HALF),) * 3, ()), 1, 0) for name in ("baddbmm_", "baddbmm"))
    assert seconds(launch()) == seconds(into) < seconds(new)
    assert seconds(launch("symmetric_product"), symmetric=lambda n: 2.0) == seconds(launch()) / 2
