"""An oracle without tensors is the oracle: one map, precision, text and price, whoever asks; also of plug-ins."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields, replace
from functools import cached_property
from inspect import Parameter, signature
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from cases import POLARS
from inexact_muon import polar
from inexact_muon.polar._base import NAMES
from inexact_muon.polar.choice import choose
from inexact_muon.schedules import Operation, ScalarMap
from inexact_muon.schedules.prices import ACCELERATOR, CPU
from inexact_muon_lab.spec.oracle_text import BY_GRAM, DESIGNS

DESCRIBED = {name: method for name, method in POLARS.items() if method.name in DESIGNS}


def test_texts_are_read_without_torch_as_the_methods_read_them() -> None:
    """Options, their order and defaults, the count of iterations and the normaliser of each named method."""
    assert {method.name for method in POLARS.values()} >= set(DESIGNS), "each is under test here"
    for name, design in DESIGNS.items():
        method = polar.POLARS[name]
        own = [f for f in fields(method) if f.name not in ("dtype", "form", "normalise")]
        parameters = signature(design).parameters
        assert [f.name for f in own] == list(parameters)
        for f in own:
            assert f.kw_only == (parameters[f.name].kind is Parameter.KEYWORD_ONLY)
            assert f.default is MISSING or f.default == parameters[f.name].default
        assert method.auto_normalise == ("schatten4" if name in BY_GRAM else "frobenius")


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
                seen.add(NAMES[args[-1].dtype])
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
    flops = polar.PolarMethod.flops  # type: ignore[assignment]

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
        flops = polar.PolarMethod.flops  # type: ignore[assignment]

    with pytest.raises(
        NotImplementedError, match="Halved has no operation count: define operations or flops of its oracle"
    ):
        Silent().flops(4, 4)


def test_what_is_chosen_is_priced_in_the_dtype_of_the_device() -> None:
    """The direct form in bfloat16 on an accelerator, although float32 would take the Gram form for this shape."""
    choice = choose(64, 256, dtype=torch.bfloat16, device="cuda")
    assert isinstance(choice.method, polar.PolarExpress)
    steps = choice.method.steps
    assert choice.cost == pytest.approx(steps * (2 * 4 + 1) + 3 * steps * ACCELERATOR.launch / 64**3)
    assert choose(64, 256, dtype=torch.float64).cost == pytest.approx(
        CPU.of(polar.cheapest(64, 256, dtype=torch.float64), 256, 64)
    )
