"""Momenta in the oracle's precision on the wire: the update of one process, in fewer bytes, and nothing overflows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from inexact_muon import Muon
from inexact_muon.optim.ranks import shares
from ranks import on_ranks

SHAPES = {
    "equal pieces": [(48, 64)] * 5 + [(24, 24)] * 3,
    "unequal pieces": [(65, 32), (7, 5), (48, 33)],
    "empty pieces": [(1, 8), (2, 16), (64, 24)],
}
SCALES = (1.0, 1e-38, 1e-30, 1e30)
OPTIONS: dict[str, Any] = {"lr": 0.1, "weight_decay": 0.0, "polar": "polar-express(steps=8, dtype=float16)"}


def draw(seed: int, shape: tuple[int, int], zero_rows: int = 0) -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    x[:zero_rows] = 0.0
    return x


def trained(shapes: list[tuple[int, int]], scale: float, lay: Any, **options: Any) -> tuple[list[Tensor], Muon]:
    params = [nn.Parameter(lay(draw(k, shape))) for k, shape in enumerate(shapes)]
    optimizer = Muon(params, **OPTIONS, **options)
    for step in range(2):
        for k, (p, shape) in enumerate(zip(params, shapes, strict=True)):
            p.grad = lay(scale * draw(100 + 10 * step + k, shape, zero_rows=shape[0] // 3))  # a piece of zeros
        optimizer.step()
    return [p.detach().full_tensor() if hasattr(p, "device_mesh") else p.detach() for p in params], optimizer


def on_wires(rank: int, world: int) -> dict[Any, Any]:
    mesh, results = init_device_mesh("cpu", (world,)), {}

    def lay(x: Tensor) -> Any:
        return distribute_tensor(x.clone(), mesh, [Shard(0)], src_data_rank=None)

    for name, shapes in SHAPES.items():
        for scale in SCALES:
            for wire in ("state", "oracle"):
                weights, optimizer = trained(shapes, scale, lay, wire=wire)
                results[name, scale, wire] = weights, optimizer.team.wire.sent
        weights, optimizer = trained(shapes, 1.0, lay, wire="oracle", sample_every=1)
        results[name] = {key: (float(x.gap), float(x.overshoot)) for key, x in optimizer.inexactness().items()}
    return results


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_the_update_is_that_of_one_process_in_fewer_bytes(world: int) -> None:
    ranks = on_ranks(on_wires, world)
    for name, shapes in SHAPES.items():
        for scale in SCALES:
            expected, _ = trained(shapes, scale, torch.clone)
            for results in ranks:
                for wire in ("state", "oracle"):
                    for a, b in zip(expected, results[name, scale, wire][0], strict=True):
                        # Each rounding to float16 moves a direction by at most 2^-11 of its norm, here 1.
                        assert float((a - b).abs().max()) <= 0.1 * 2 * 2**-11, (name, scale, wire)
        exact, narrow = (sum(results[name, 1.0, wire][1] for results in ranks) for wire in ("state", "oracle"))
        assert narrow <= 0.9 * exact


@pytest.mark.slow
def test_inexactness_is_measured_against_the_momentum_as_it_is() -> None:
    """What is measured is what one process measures, whose momentum is not rounded before it is measured."""
    (results, *_) = on_ranks(on_wires, 2)
    for name, shapes in SHAPES.items():
        _, optimizer = trained(shapes, 1.0, torch.clone, sample_every=1)
        for key, (gap, overshoot) in results[name].items():
            one = optimizer.inexactness()[key]
            assert gap == pytest.approx(float(one.gap), abs=1e-4), (name, key)
            assert overshoot == pytest.approx(float(one.overshoot), abs=1e-3), (name, key)


def test_a_wrong_precision_is_one_sentence() -> None:
    with pytest.raises(ValueError, match="wire must be one of state, oracle, got 'half'"):
        Muon([nn.Parameter(torch.eye(2))], wire="half")


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("sizes", [[58, 16, 4, 4], [1] * 10, [100, 1, 1, 1], [1, 1, 1, 100], [3, 0, 0, 5]])
def test_shares_are_consecutive_and_none_is_empty(sizes: list[int], count: int) -> None:
    parts = shares(sizes, count)
    assert parts == sorted(parts)
    assert set(parts) == set(range(count))
