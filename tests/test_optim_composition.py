"""What is stacked together decides the last bits of a step, and nothing more."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from inexact_muon import Muon

SHAPES = ((12, 20), (20, 12), (12, 20), (16, 16), (7, 31), (16, 16), (12, 20))


def draw(seed: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def trained(dtype: torch.dtype, kept: range = range(len(SHAPES)), **options: Any) -> list[Tensor]:
    params = {i: nn.Parameter(draw(i, SHAPES[i], dtype)) for i in kept}
    optimizer = Muon(list(params.values()), lr=0.05, **options)
    for step in range(5):
        for i, p in params.items():
            p.grad = draw(100 * step + 50 + i, SHAPES[i], dtype)
        optimizer.step()
    return [p.detach() for p in params.values()]


@pytest.mark.parametrize("polar", ["polar-express:5", "zolotarev:2", "jordan:5"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_compositions_agree_to_rounding(polar: str, dtype: torch.dtype) -> None:
    together = trained(dtype, polar=polar)
    assert all(torch.equal(a, b) for a, b in zip(together, trained(dtype, polar=polar), strict=True)), "the same bits"
    apart = trained(dtype, polar=polar, memory_limit=1)
    fewer = trained(dtype, range(1, 6), polar=polar)
    close = 1e-4 if dtype == torch.float32 else 1e-12
    for a, b in (*zip(together, apart, strict=True), *zip(together[1:6], fewer, strict=True)):
        assert float((a - b).abs().max()) <= close
