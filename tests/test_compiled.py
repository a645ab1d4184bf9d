"""`Compiled` is the method inside up to rounding, once per set of shapes, and leaves torch's settings alone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from inexact_muon import Muon, polar
from inexact_muon.polar import compiled

METHODS = (
    polar.PolarExpress(5),
    polar.PolarExpress(4, form="gram"),
    polar.PolarExpress(5, dtype=torch.bfloat16),
    polar.Jordan(5, dtype=torch.bfloat16),
    polar.Jordan(5, dtype=torch.float16),
    polar.Cans(4),
    polar.Zolotarev(2),
    polar.Zolotarev(1, polish=9),
)
SHAPES = ((12, 12), (12, 40), (40, 12), (3, 12, 20))
TOLERANCE = {torch.bfloat16: 0.1, torch.float16: 0.02, None: 1e-4}


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A backend that runs what dynamo captured as it is, and counts."""
    counted: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        counted.append(len(inputs))
        return graph.forward

    monkeypatch.setattr(compiled, "BACKEND", backend)
    yield counted
    compiled._compiled.cache_clear()


def captures_as_written() -> bool:
    """torch 2.6 captures x.add_(y, alpha=a) as a product and a sum: one rounding more."""
    options: list[Any] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        options.extend(node.kwargs for node in graph.graph.nodes)
        return graph.forward

    torch.compile(lambda x: x.add_(x, alpha=0.5), backend=backend)(torch.ones(2))
    return {"alpha": 0.5} in options


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_what_is_captured_is_the_method(compiles: list[int], method: polar.PolarMethod) -> None:
    ms = [torch.randn(shape, generator=torch.Generator().manual_seed(k)) for k, shape in enumerate(SHAPES)]
    wanted, found = method.orthogonalise_all(ms), polar.Compiled(method).orthogonalise_all(ms)
    assert compiles
    for a, b in zip(wanted, found, strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=0.0 if captures_as_written() else 1e-5)


def test_more_shapes_than_dynamo_recompiles_and_each_only_once(compiles: list[int]) -> None:
    oracle = polar.Compiled(polar.PolarExpress(3))
    settings = torch._dynamo.config
    before = settings.get_config_copy()
    limit = settings.recompile_limit if hasattr(settings, "recompile_limit") else settings.cache_size_limit  # torch 2.6
    matrices = [torch.randn(4 + k, 30) for k in range(limit + 4)]
    for m in matrices:
        oracle(m)
    assert len(compiles) == limit + 4
    for m in matrices:
        oracle(2.5 * m)
    assert len(compiles) == limit + 4
    assert settings.get_config_copy() == before


def test_an_optimizer_steps_with_it_as_without(compiles: list[int]) -> None:
    start = torch.randn(16, 8)
    ends = []
    for oracle in ("polar-express(steps=5)", "compiled(polar-express(steps=5))"):
        w = torch.nn.Parameter(start.clone())
        optimizer = Muon([w], lr=0.1, polar=oracle)
        for _ in range(3):
            w.grad = w.detach() ** 3
            optimizer.step()
        ends.append(w.detach())
    assert len(compiles) == 1
    assert torch.equal(*ends)


def test_it_is_judged_as_the_method_inside() -> None:
    inner = polar.PolarExpress(3, lower=0.1)
    oracle = polar.Compiled(inner)
    assert oracle.flops(5, 9) == inner.flops(5, 9)
    assert oracle.error_bound(0.1) == inner.error_bound(0.1)
    assert polar.parse(str(oracle)) == oracle
    with pytest.raises(ValueError, match="belong inside"):
        polar.Compiled(inner, dtype=torch.float32)
    with pytest.raises(ValueError, match="polynomial or rational"):
        polar.Compiled(polar.ExactSVD())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.filterwarnings(
    "ignore:`torch._prims_common.check` is deprecated:FutureWarning"
)  # torch's own, of a diagonal
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler here: install g++")
@pytest.mark.parametrize("method", METHODS[2:4] + METHODS[6:7], ids=str)
def test_compiled_for_real_it_is_the_method_up_to_rounding(method: polar.PolarMethod) -> None:
    m = torch.randn(2, 24, 40, generator=torch.Generator().manual_seed(0))
    found = polar.Compiled(method)(m)
    assert (found - method(m)).abs().max() < TOLERANCE[method.dtype]
