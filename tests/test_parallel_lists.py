"""Ranks that do not share the same parameters say so on all of them, before anything has changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from inexact_muon import Muon
from ranks import on_ranks

Case = Callable[[bool, Callable[[Tensor], Any]], Muon]


def made(params: dict[str, Any], **options: Any) -> Muon:
    return Muon([{"params": list(params.items()), **options.pop("group", {})}], strategy="owner-rank", **options)


def eye(lay: Callable[[Tensor], Any], *shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(lay(torch.ones(shape or (4, 4), dtype=dtype)))


def order(odd: bool, lay: Callable[[Tensor], Any]) -> Muon:
    names = ("b", "a") if odd else ("a", "b")
    return made({name: eye(lay) for name in names})


CASES: dict[str, tuple[Case, str]] = {
    "order": (order, "number 1 is a of shape (4, 4)"),
    "shape": (lambda odd, lay: made({"a": eye(lay, 4, 6 if odd else 4)}), "shape (4, 6)"),
    "dtype": (lambda odd, lay: made({"a": eye(lay, dtype=torch.float64 if odd else torch.float32)}), "float64"),
    "state dtype": (
        lambda odd, lay: made({"a": eye(lay)}, state_dtype=torch.float64 if odd else None),
        "state float64",
    ),
    "ball": (lambda odd, lay: made({"a": eye(lay)}, polar="jordan:5" if odd else "polar-express:5"), "jordan"),
    "view": (lambda odd, lay: made({"a": eye(lay)}, group={"view": "split:2" if odd else "whole"}), "split"),
    "algorithm": (lambda odd, lay: made({"a": eye(lay)}, group={"algorithm": "adamw" if odd else "lmo"}), "adamw"),
    "nesterov": (lambda odd, lay: made({"a": eye(lay)}, nesterov=odd), "nesterov=True"),
    "weight decay": (lambda odd, lay: made({"a": eye(lay)}, weight_decay=0.3 if odd else 0.0), "weight_decay=0.3"),
    "sampling": (lambda odd, lay: made({"a": eye(lay)}, sample_every=int(odd)), "sample_every 1"),
    "not finite": (
        lambda odd, lay: made({"a": eye(lay)}, on_nonfinite="raise" if odd else "skip"),
        "on_nonfinite raise",
    ),
    "memory": (lambda odd, lay: made({"a": eye(lay)}, memory_limit=1 if odd else None), "memory_limit 1"),
    "count": (lambda odd, lay: made({name: eye(lay) for name in ("a", "b")[: 1 if odd else 2]}), "nothing"),
}


def told(rank: int, world: int) -> dict[str, tuple[str, bool]]:
    mesh, found = init_device_mesh("cpu", (world,)), {}

    def sharded(x: Tensor) -> Any:
        return distribute_tensor(x, mesh, [Shard(0)], src_data_rank=None)

    for layout, lay in (("copies", torch.clone), ("shards", sharded)):
        for name, (case, _) in CASES.items():
            optimizer = case(rank == world - 1, lay)
            (group,) = optimizer.param_groups
            before = [p.detach().clone() for p in group["params"]]
            for p in group["params"]:
                p.grad = p.detach().clone()
            try:
                optimizer.step()
                said = "nothing"
            except ValueError as error:
                said = str(error)
            after = [p.detach() for p in group["params"]]
            same = all(
                torch.equal(getattr(a, "_local_tensor", a), getattr(b, "_local_tensor", b))
                for a, b in zip(before, after, strict=True)
            )
            found[f"{name}, {layout}"] = (said, same)
            dist.barrier()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_lists_that_differ_are_named_on_all_ranks(world: int) -> None:
    ranks = on_ranks(told, world)
    for rank in ranks:
        for name, (said, same) in rank.items():
            assert said.startswith("parameters differ between ranks, nothing was changed: number"), name
            assert CASES[name.partition(",")[0]][1] in said, said
            assert "on rank 0 and" in said
            assert f"on rank {world - 1}; build the same model" in said
            assert same, name
        assert rank == ranks[0], "all ranks say the same"


def sparse(rank: int, world: int) -> str:
    p = nn.Parameter(torch.eye(4))
    optimizer = Muon([("first", p)], strategy="owner-rank")
    p.grad = torch.eye(4).to_sparse() if rank == 0 else torch.eye(4)
    with pytest.raises(TypeError) as error:
        optimizer.step()
    assert torch.equal(p, torch.eye(4))
    return str(error.value)


@pytest.mark.slow
def test_a_sparse_gradient_on_one_rank() -> None:
    for said in on_ranks(sparse, 2):
        assert said.startswith(
            "sparse gradients are not supported, got one for parameter first of shape (4, 4) on some"
        )


def with_notes(rank: int, world: int) -> Tensor:
    """Options that are not used, as people keep them in groups, may differ."""
    optimizer = made({"a": eye(torch.clone)}, group={"rank": rank, "layer": object()})
    (p,) = optimizer.param_groups[0]["params"]
    p.grad = torch.eye(4)
    optimizer.step()
    return p.detach()


@pytest.mark.slow
def test_options_that_are_not_used_may_differ() -> None:
    first, second = on_ranks(with_notes, 2)
    assert torch.equal(first, second)
    assert not torch.equal(first, torch.ones(4, 4))
