"""Lengths that need <m, z>, and factors that differ by matrix, are those of one process on every layout and view."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from inexact_muon import lmo
from inexact_muon.optim import LMOOptimizer
from ranks import on_ranks

SHAPES = {
    "whole": (5, 7),
    "whole()": (3, 4, 6),
    "split(rows=(2, 1), groups=4)": (12, 5),
    "split(rows=(6, 2, 2))": (10, 8),
    "transposed(inner=split(rows=(8, 2, 2)))": (7, 12),
    "stacked(count=3, transposed=True)": (12, 5),
    "flatten(groups=2)": (4, 3, 2),
}
LENGTHS = ("fixed", "steepest", "smooth(l0=1.0, l1=0.5)")
LAYOUTS: tuple[tuple[int | None, ...], ...] = ((0,), (1,), (None,))
STRATEGIES = ("auto", "replicated", "gram-reduced", "block-periodic:1")


def draw(seed: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def trained(length: str, lay: Any, dtype: torch.dtype, **options: Any) -> list[Tensor]:
    params = [nn.Parameter(lay(draw(i, shape, dtype))) for i, shape in enumerate(SHAPES.values())]
    groups = [{"params": [p], "view": view, "scale": "original"} for p, view in zip(params, SHAPES, strict=True)]
    optimizer = LMOOptimizer(groups, 0.05, 0.6, ball=lmo.Spectral(), length=length, **options)
    for step in range(3):
        for i, (p, shape) in enumerate(zip(params, SHAPES.values(), strict=True)):
            p.grad = lay(draw(100 * step + 50 + i, shape, dtype))
        optimizer.step()
    return [p.detach().full_tensor() if hasattr(p, "device_mesh") else p.detach() for p in params]


def on_layouts(rank: int, world: int) -> dict[Any, list[Tensor]]:
    mesh, found = init_device_mesh("cpu", (world,)), {}
    for dims in LAYOUTS:
        placements = [Replicate() if dim is None else Shard(dim) for dim in dims]

        def lay(x: Tensor, placements: Any = placements) -> Any:
            return distribute_tensor(x.clone(), mesh, placements, src_data_rank=None)

        for strategy in STRATEGIES:
            for length in LENGTHS:
                found[dims, strategy, length] = trained(length, lay, torch.float64, strategy=strategy)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_lengths_of_pieces_are_those_of_the_whole(world: int) -> None:
    for rank in on_ranks(on_layouts, world):
        for (dims, strategy, length), params in rank.items():
            for view, a, b in zip(SHAPES, trained(length, torch.clone, torch.float64), params, strict=True):
                assert float((a - b).abs().max()) <= 1e-10, (dims, strategy, length, view)
