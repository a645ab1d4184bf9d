"""An oracle without tensors is the oracle: one map, precision, text and price, whoever asks; also of plug-ins."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from inspect import signature
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from cases import POLARS
from inexact_muon import polar, schedules
from inexact_muon.polar.choice import choose
from inexact_muon.schedules import Operation, ScalarMap, oracles
from inexact_muon.schedules.operations import dtype_name
from inexact_muon.schedules.prices import ACCELERATOR, CPU

SHAPES = [(16, 16), (16, 24), (16, 25), (64, 16)]
DESCRIBED = {name: method for name, method in POLARS.items() if method.name in oracles.FAMILIES}


def variants(method: polar.PolarMethod) -> list[polar.PolarMethod]:
    wide = [replace(method, dtype=dtype) for dtype in method.dtypes]
    forms = [replace(method, form=form) for form in method.forms if form != "gram" or method.map.gram_dtypes]
    exact = isinstance(method, polar.ExactSVD)
    return [method, *wide, *forms, *(() if exact else (replace(method, normalise="schatten8"),))]


@pytest.mark.parametrize("name", DESCRIBED)
def test_without_torch_it_is_the_same(name: str) -> None:
    for method in variants(DESCRIBED[name]):
        found = oracles.parse(str(method))
        assert str(found) == str(method)
        assert found.map == method.map
        assert found.normaliser == method.normaliser
        assert found.forms == method.forms
        assert found.from_gram == method.from_gram
        assert list(found.dtypes) == [dtype_name(dtype) for dtype in method.dtypes]
        for device in ("cpu", "accelerator"):
            assert found.dtype_on(device) == method.dtype_on(device)
            for shape in SHAPES:
                assert found.operations(*shape, device) == method.operations(*shape, device)


def test_every_description_is_of_a_method() -> None:
    assert {method.name for method in POLARS.values()} >= set(oracles.FAMILIES), "each is under test here"
    for name, described in oracles.FAMILIES.items():
        assert signature(described).parameters.keys() == signature(polar.POLARS[name]).parameters.keys()


@pytest.mark.parametrize("name", DESCRIBED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_dtype_is_the_one_that_is_computed_in(name: str, dtype: torch.dtype) -> None:
    """Products of every shape are made in the dtype and number that the description says."""
    method = DESCRIBED[name]
    if dtype not in method.dtypes or isinstance(method, polar.ExactSVD):
        return
    method, seen = replace(method, dtype=dtype), set[str]()

    class Seen(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if "mm" in str(function):
                seen.add(dtype_name(args[-1].dtype))
            return function(*args, **(kwargs or {}))

    with Seen():
        method(torch.randn(16, 40))
    assert seen == {o.dtype for o in method.operations(16, 40)}


@dataclass(frozen=True)
class Halved(ScalarMap):
    """s/2 + s^3/2."""

    def scalar(self, s):  # type: ignore[no-untyped-def]
        return 0.5 * s + 0.5 * s**3

    def image(self, low: float, high: float) -> tuple[float, float]:
        return float(self.scalar(low)), float(self.scalar(high))


@dataclass(frozen=True)
class Counted(polar.PolarMethod):
    """A plug-in that says its flops."""

    name: ClassVar[str] = "counted"

    @cached_property
    def map(self) -> Halved:
        return Halved(0.0, "here")

    def flops(self, n: int, m: int) -> int:
        return 4 * min(n, m) ** 2 * max(n, m)

    def solve(self, xs: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
        return [0.5 * x + 0.5 * (x @ x.mT) @ x for x in xs]


@dataclass(frozen=True)
class Itemised(Counted):
    """A plug-in that says its operations."""

    name: ClassVar[str] = "itemised"
    flops = schedules.Oracle.flops  # type: ignore[assignment]

    def operations(self, n: int, m: int, device: str = "cpu") -> tuple[Operation, ...]:
        (n, m), dtype = sorted((n, m)), self.dtype_on(device)
        return Operation("symmetric", n, n, m, 1, dtype), Operation("product", n, m, n, 1, dtype)


def test_a_plug_in_is_priced_by_what_it_says() -> None:
    assert CPU.of(Counted(), 1536, 3072) == pytest.approx(4.0)
    assert CPU.of(Itemised(), 3072, 1536) == pytest.approx(2.0 + 2.0 * 0.6), "symmetric products cost less"
    assert Itemised().flops(8, 24) == Counted().flops(8, 24)
    assert CPU.of(Counted(), 64, 64) < CPU.of(polar.PolarExpress(2), 64, 64) < CPU.of(polar.ExactSVD(), 64, 64)
    assert CPU.of(Counted(dtype=torch.float64), 64, 64) == pytest.approx(2.2 * CPU.of(Counted(), 64, 64))
    large = replace(ACCELERATOR, launch=0.0)
    assert large.of(Counted(dtype=torch.float32), 64, 64) == pytest.approx(16 * large.of(Counted(), 64, 64))
    more = ACCELERATOR.of(Counted(), 64, 64) - large.of(Counted(), 64, 64)
    assert more == pytest.approx(sum(o.count for o in Counted().operations(64, 64)) * ACCELERATOR.launch / 64**3)


def test_one_that_says_nothing_is_told_what_is_missing() -> None:
    class Silent(Counted):
        flops = schedules.Oracle.flops  # type: ignore[assignment]

    with pytest.raises(
        NotImplementedError, match="Halved has no operation count: define operations or flops of its oracle"
    ):
        Silent().flops(4, 4)


@pytest.mark.parametrize("device", ["cpu", "accelerator"])
def test_compiled_is_priced_as_what_it_compiles(device: str) -> None:
    table = {"cpu": CPU, "accelerator": ACCELERATOR}[device]
    for inner in (polar.PolarExpress(5), polar.PolarExpress(5, dtype=torch.float32), polar.Zolotarev(8), Counted()):
        made = polar.Compiled(inner)
        assert table.of(made, 64, 256) == table.of(inner, 64, 256)
        assert made.flops(64, 256) == inner.flops(64, 256)
        assert made.dtype_on(device) == inner.dtype_on(device)
        assert not made.from_gram, "it has no multiplier"


def test_what_is_chosen_is_priced_in_the_dtype_of_the_device() -> None:
    """The direct form in bfloat16 on an accelerator, although float32 would take the Gram form for this shape."""
    choice = choose(64, 256, dtype=torch.bfloat16, device="cuda")
    assert isinstance(choice.method, polar.PolarExpress)
    steps = choice.method.steps
    assert choice.cost == pytest.approx(steps * (2 * 4 + 1) + 3 * steps * ACCELERATOR.launch / 64**3)
    assert choose(64, 256, dtype=torch.float64).cost == pytest.approx(
        CPU.of(polar.cheapest(64, 256, dtype=torch.float64), 256, 64)
    )
