"""A controller chooses the same on every rank, and what one process chooses."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from inexact_muon import Muon
from inexact_muon.polar import PolarExpress
from inexact_muon.tune import Adaptive, Control
from matrices import matrix
from ranks import on_ranks

LADDER = (PolarExpress(1), PolarExpress(2), PolarExpress(3), PolarExpress(5), PolarExpress(8))
GRADIENTS = [
    [matrix(12, 16, spectrum, seed=step, dtype=torch.float64) for spectrum in ("orthonormal", "log-uniform-1e-3")]
    for step in range(4)
]
CASES = (("ddp", "owner-rank"), ("rows", "owner-rank"), ("rows", "gram-reduced"))


def run(rank: int, layout: str, strategy: str) -> tuple[list[Tensor], Any, Any]:
    """Four steps with a look at every one; on the last rank a gradient of the second step is not finite."""

    def place(whole: Tensor) -> Any:
        mesh = init_device_mesh("cpu", (2,)) if layout == "rows" else None
        return whole.clone() if mesh is None else distribute_tensor(whole.clone(), mesh, [Shard(0)], src_data_rank=None)

    params = [nn.Parameter(place(torch.zeros(12, 16, dtype=torch.float64))) for _ in range(2)]
    optimizer = Muon(params, lr=0.1, momentum=0.5, strategy=strategy)
    control = Control(optimizer, Adaptive(target=1.1, every=1, candidates=LADDER), reference="polar-express:8")
    for step, given in enumerate(GRADIENTS):
        for p, g in zip(params, given, strict=True):
            p.grad = place(g)
        if step == 1 and (layout, rank) in (("ddp", 1), ("rows", 1), ("alone", 0)):
            params[1].grad.mul_(torch.nan)  # type: ignore[union-attr]
        optimizer.step()
    whole = [p.detach().full_tensor() if layout == "rows" else p.detach() for p in params]
    return whole, control.state_dict(), control.history


def on_rank(rank: int, world: int) -> list[Any]:
    return [run(rank, layout, strategy) for layout, strategy in CASES]


@pytest.mark.slow
def test_every_rank_chooses_what_one_process_chooses() -> None:
    expected, settings, history = run(0, "alone", "auto")
    assert len({oracle for *_, oracle in history}) > 1
    for rank in on_ranks(on_rank, 2):
        for whole, state, changes in rank:
            assert state["layers"].keys() == settings["layers"].keys()
            for name, row in settings["layers"].items():
                assert state["layers"][name]["oracle"] == row["oracle"]
                assert state["layers"][name]["lr"] == pytest.approx(row["lr"], rel=1e-9)
            assert changes == history
            for mine, plain in zip(whole, expected, strict=True):
                torch.testing.assert_close(mine, plain, rtol=0, atol=1e-10)
