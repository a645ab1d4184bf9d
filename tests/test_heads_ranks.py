"""Heads on ranks and on an accelerator: a head that lies whole on its rank is not sent, and heads cost no launches."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from attention_models import Fused, Rotated
from inexact_muon import Muon
from inexact_muon.optim.ranks import holds_whole
from inexact_muon.views import Interleaved, Split, Stacked, Transposed, View
from inexact_muon_lab.plan.recorder import fake_h100
from inexact_muon_lab.plan.step import second_step
from ranks import on_ranks

VIEWS: dict[str, tuple[tuple[int, int], str, bool]] = {
    "heads": ((48, 20), "stacked:6", True),
    "keys and values": ((60, 20), "interleaved(rows=(4, 6), groups=6)", True),
    "heads across ranks": ((40, 20), "stacked:5", False),
    "transposed": ((20, 48), "transposed(inner=stacked(count=6))", False),
    "thirds": ((48, 20), "split:3", False),
}
"""Name -> (shape, view, whether pieces of rows on two ranks and on three are whole matrices)."""

FLAGS = 100
"""Bytes in which ranks agree on finite gradients in three steps; a weight has 6400 or more."""


def trained(p: nn.Parameter, view: str, gradients: list[Tensor], stages: dict[str, Any]) -> Muon:
    options = {"lr": 0.1, "polar": "exact-svd", "adjust_lr_fn": "spectral", **stages}
    optimizer = Muon([{"params": [p], "view": view}], **options)  # type: ignore[arg-type]
    for g in gradients:
        p.grad = g
        optimizer.step()
    return optimizer


def steps(
    rank: int, world: int, shape: tuple[int, int], view: str, stages: dict[str, Any]
) -> tuple[Tensor, Tensor, int]:
    """(the weight by ranks, by this process alone, bytes sent)"""
    torch.manual_seed(0)
    x, *gradients = torch.randn(4, *shape, dtype=torch.float64)
    mesh = init_device_mesh("cpu", (world,))
    sharded = [distribute_tensor(y, mesh, [Shard(0)], src_data_rank=None) for y in (x, *gradients)]
    p = nn.Parameter(sharded[0].clone())
    optimizer = trained(p, view, sharded[1:], stages)
    sent, alone = optimizer.team.wire.sent, nn.Parameter(x.clone())
    trained(alone, view, gradients, stages)
    return p.full_tensor().detach(), alone.detach(), sent  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("name", VIEWS)
def test_heads_that_lie_whole_on_a_rank_are_not_sent(name: str, world: int) -> None:
    shape, view, whole = VIEWS[name]
    for by_ranks, alone, sent in on_ranks(steps, world, shape, view, {}):
        torch.testing.assert_close(by_ranks, alone, rtol=0.0, atol=1e-12)
        assert (sent < FLAGS) == whole


@pytest.mark.slow
@pytest.mark.parametrize("name", ["heads", "keys and values", "heads across ranks"])
@pytest.mark.parametrize(
    "stages",
    [
        {"before": "second-moment", "after": "row-moment + rms:0.2"},
        {"after": "entry-moment", "decay": "cautious"},
        {"fixed_norm": True, "weight_decay": 0.0},
    ],
    ids=["moments", "cautious", "sphere"],
)
def test_heads_have_stages(name: str, stages: dict[str, Any]) -> None:
    """Norms and moments are those of each head, wherever it lies."""
    shape, view, _ = VIEWS[name]
    for by_ranks, alone, _ in on_ranks(steps, 3, shape, view, stages):
        torch.testing.assert_close(by_ranks, alone, rtol=0.0, atol=1e-12)


@pytest.mark.parametrize(
    ("view", "shape", "edges", "whole"),
    [
        (Stacked(4), (8, 3), [0, 4, 8], True),
        (Stacked(4), (8, 3), [0, 2, 8], True),
        (Stacked(4), (8, 3), [0, 3, 8], False),
        (Stacked(4), (8, 3), [0, 8, 8], False),
        (Interleaved((1, 3), 2), (8, 3), [0, 4, 8], True),
        (Interleaved((1, 3), 2), (8, 3), [0, 1, 8], True),
        (Interleaved((1, 3), 2), (8, 3), [0, 2, 8], False),
        (Split(2), (8, 3), [0, 4, 8], False),
        (Transposed(Stacked(4)), (3, 8), [0, 1, 3], False),
    ],
    ids=str,
)
def test_which_pieces_hold_whole_matrices(view: View, shape: tuple[int, int], edges: list[int], whole: bool) -> None:
    pieces = tuple(((low, high), (0, shape[1])) for low, high in pairwise(edges))
    assert holds_whole(view, shape, pieces) == whole


class Layers(nn.Module):
    """Layers of attention, fused and not."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Fused() if i % 2 else Rotated() for i in range(count)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


def launches(count: int, heads: bool) -> int:
    """Of a step of this many layers on a fake accelerator."""
    with torch.device("meta"):
        model = Layers(count)
    with fake_h100(False):
        for layer in [module for module in model.modules() if isinstance(module, nn.Linear)]:
            layer.weight = nn.Parameter(torch.empty(layer.weight.shape, device="cuda"))
            layer.weight.grad = torch.empty_like(layer.weight)
        rules = [("layers.*", "lmo")]  # also the last layer's output projection
        optimizer = Muon.for_model(model, 0.02, rules=rules, heads=heads, polar="polar-express:5")
        return second_step(optimizer).launches


def test_heads_add_no_launches_for_each_parameter() -> None:
    few, many = launches(8, True), launches(32, True)
    assert few == many
    assert few <= launches(8, False)
