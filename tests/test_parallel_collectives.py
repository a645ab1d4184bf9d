"""Where ranks cannot send to each other, as in torch's threaded process group, collectives give the same update."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from inexact_muon import EF21Muon, Muon
from inexact_muon.optim import finite

threaded = pytest.importorskip("torch.testing._internal.distributed.multi_threaded_pg")

pytestmark = pytest.mark.filterwarnings("ignore:DTensor random operators")  # torch 2.6, on a CPU

SHAPES = ((6, 4), (4, 9), (1, 5), (7, 7))
"""On three ranks: even pieces, uneven ones, and two ranks without any."""


def on_threads(world: int, function: Callable[[], Any]) -> list[Any]:
    """What function() returns on each rank of a process group of threads."""
    found: list[Any] = [None] * world
    failures: list[BaseException] = []
    installed, store = threaded._install_threaded_pg(), dist.HashStore()

    def rank(number: int) -> None:
        dist.init_process_group(backend="threaded", rank=number, world_size=world, store=store)
        try:
            found[number] = function()
        except BaseException as error:
            failures.append(error)
            threaded.ProcessLocalGroup.exception_handle(error)
        finally:
            if installed == dist.distributed_c10d._world:
                dist.destroy_process_group()

    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    try:
        threads = [threading.Thread(target=rank, args=(number,)) for number in range(world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    finally:
        torch._C._distributed_c10d._set_thread_isolation_mode(False)
        threaded._uninstall_threaded_pg()
    if failures:
        raise failures[0]
    return found


def draw(seed: int, shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def trained(lay: Callable[[Tensor], Any], **options: Any) -> list[Tensor]:
    params = [nn.Parameter(lay(draw(i, shape))) for i, shape in enumerate(SHAPES)]
    groups = [{"params": params[:3]}, {"params": params[3:], "algorithm": "adamw"}]
    optimizer = Muon(groups, lr=0.05, **options)
    for step in range(4):
        for i, (p, shape) in enumerate(zip(params, SHAPES, strict=True)):
            p.grad = lay(draw(100 * step + 50 + i, shape))
        optimizer.step()
    return [p.detach().full_tensor() if hasattr(p, "device_mesh") else p.detach() for p in params]


@pytest.mark.parametrize("strategy", ["auto", "owner-rank", "gram-reduced", "replicated", "block-periodic:1"])
@pytest.mark.parametrize("dim", [0, 1, None, "plain"])
def test_the_update_is_that_of_one_process(strategy: str, dim: Any) -> None:
    def rank() -> list[Tensor]:
        if dim == "plain":
            return trained(torch.clone, strategy=strategy)
        mesh = init_device_mesh("cpu", (3,))
        placements = [Replicate() if dim is None else Shard(dim)]
        return trained(lambda x: distribute_tensor(x.clone(), mesh, placements), strategy=strategy)

    expected = trained(torch.clone)
    for found in on_threads(3, rank):
        for a, b in zip(expected, found, strict=True):
            assert float((a - b).abs().max()) <= 1e-12


@pytest.mark.parametrize("dim", [0, 1])
def test_flags_that_stay_on_an_accelerator_give_the_same_update(dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arithmetic of accelerators on a CPU; on one rank a gradient is not finite, and all skip it."""
    expected = trained(torch.clone)
    monkeypatch.setattr(finite, "HOST_READABLE", ())

    def rank() -> tuple[list[Tensor], bool, float]:
        mesh = init_device_mesh("cpu", (3,))

        def lay(x: Tensor) -> Any:
            return distribute_tensor(x.clone(), mesh, [Shard(dim)])

        p = nn.Parameter(lay(draw(1, (6, 6))))
        optimizer = Muon([p], lr=0.05)
        p.grad = lay(draw(2, (6, 6)))
        if dist.get_rank() == 1:
            p.grad._local_tensor[0, 0] = torch.nan
        optimizer.step()
        same = torch.equal(p.detach().full_tensor(), draw(1, (6, 6)))
        return trained(lay), same, optimizer.stats()["0"]["skipped"]

    for found, same, skipped in on_threads(3, rank):
        assert (same, skipped) == (True, 1.0)
        for a, b in zip(expected, found, strict=True):
            assert float((a - b).abs().max()) <= 1e-12


def test_what_cannot_be_done_is_refused() -> None:
    def rank() -> str:
        p = nn.Parameter(torch.eye(3))
        p.grad = torch.eye(3)
        optimizer = EF21Muon([p])
        with pytest.raises(ValueError, match="EF21Muon needs an all-to-all, which backend") as told:
            optimizer.step()
        return str(told.value)

    assert len(on_threads(2, rank)) == 2
