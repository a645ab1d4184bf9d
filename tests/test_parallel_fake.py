"""Several ranks on a fake process group, with tensors that have no values: nothing in a step depends on values.

A fake tensor raises where its value is read, so that a step that ends has read none.
"""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from fake_models import on_fake_cuda
from inexact_muon import Muon
from inexact_muon.optim import finite
from inexact_muon.polar import batching
from inexact_muon.polar.scaling import to_unit_entries
from inexact_muon_lab.plan.recorder import Recorder, fake_h100
from torch_features import needs_fake_collectives

fake_pg = pytest.importorskip("torch.testing._internal.distributed.fake_pg")

SHAPES = ((64, 32), (256, 32), (30, 50), (7,))


@pytest.fixture
def four_ranks() -> Iterator[None]:
    dist.init_process_group("fake", store=fake_pg.FakeStore(), rank=1, world_size=4)
    yield
    dist.destroy_process_group()


def model() -> nn.Module:
    layers = [nn.Linear(64, 64, bias=True), nn.Linear(64, 256, bias=False), nn.LayerNorm(256), nn.Linear(256, 64)]
    return nn.Sequential(nn.Embedding(100, 64), *layers)


def sharded(mesh: DeviceMesh, dim: int) -> list[tuple[str, nn.Parameter]]:
    made = []
    for i, shape in enumerate(SHAPES):
        split = Shard(min(dim, len(shape) - 1))
        p, g = (DTensor.from_local(piece, mesh, [split], run_check=False) for piece in pieces(shape, split.dim))
        made.append((f"w{i}", nn.Parameter(p)))
        made[-1][1].grad = g
    return made


def pieces(shape: tuple[int, ...], dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Parameter and gradient of one rank."""
    mine = [-(-side // 4) if i == dim else side for i, side in enumerate(shape)]
    return torch.empty(mine), torch.empty(mine)


@needs_fake_collectives
@pytest.mark.usefixtures("four_ranks")
def test_copies_on_a_gpu_are_not_waited_for() -> None:
    with fake_h100():
        optimizer = Muon.for_model(on_fake_cuda(model), lr=0.02, strategy="owner-rank")
        for _ in range(2):
            optimizer.step()
        with Recorder() as recorded:
            optimizer.step()
    assert recorded.waits == []
    flags, directions = recorded.messages
    assert flags.sent < 100 < directions.sent, "one message says whose gradient is finite"
    assert recorded.copies == []


@needs_fake_collectives
@pytest.mark.usefixtures("four_ranks")
@pytest.mark.parametrize("strategy", ["replicated", "owner-rank", "gram-reduced", "block-periodic:2"])
@pytest.mark.parametrize("dim", [0, 1])
def test_shards_are_not_looked_at(strategy: str, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finite, "HOST_READABLE", ())  # as on an accelerator, where looking would wait
    monkeypatch.setattr(batching, "_rescaled", to_unit_entries)
    mesh = init_device_mesh("cpu", (4,))
    with FakeTensorMode(allow_non_fake_inputs=True):
        named = sharded(mesh, dim)
        groups = [
            {"params": named[:-1]},
            {"params": named[-1:], "algorithm": "adamw"},
        ]
        optimizer = Muon(groups, lr=0.02, strategy=strategy)
    for _, p in named:
        optimizer.team.place(p)  # the mesh's own table of ranks is a tensor, which torch cannot read below
    with FakeTensorMode(allow_non_fake_inputs=True):
        for _ in range(3):
            optimizer.step()
    assert optimizer.team.wire.messages > 0


@pytest.mark.usefixtures("four_ranks")
def test_a_look_would_be_noticed() -> None:
    mesh = init_device_mesh("cpu", (4,))
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(DataDependentOutputException):
        Muon(sharded(mesh, 0)[:1], lr=0.02, strategy="owner-rank").step()
