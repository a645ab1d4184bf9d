"""What a step launches on an accelerator, recorded on fake CUDA tensors: nothing waits, and stacks do not grow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from inexact_muon import Muon

FREE = {"view", "_unsafe_view", "reshape", "transpose", "t", "permute", "expand", "slice", "select", "split", "unbind"}
FREE |= {"split_with_sizes", "unsqueeze", "squeeze", "detach", "alias", "as_strided", "diagonal", "narrow", "empty"}
FREE |= {"empty_like", "new_empty", "empty_strided", "new_empty_strided", "lift_fresh"}
WAITS = {"_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal"}


class Indexing(TorchFunctionMode):
    """`~x` and x[...] of a fake CUDA tensor want a device guard that a CPU build of torch lacks."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__invert__:
            return torch.ops.aten.bitwise_not(args[0])
        return func(*args, **(kwargs or {}))


class Recorder(TorchDispatchMode):
    """Names of kernels, what waits for the device and what is copied to it."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[str] = []
        self.waits: list[str] = []
        self.copies: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.split("::")[1]
        devices = {t.device.type for t in tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor)}
        if "cuda" in devices and func.namespace != "prim" and not {name, name.rstrip("_")} & FREE:
            self.kernels.append(name)
            self.waits += [name] * (name in WAITS)
            self.copies += [name] * (name in ("_to_copy", "copy_") and "cpu" in devices)
        return out


class Block(nn.Module):
    """Fused attention weights, a projection, and two matrices that are transposed to each other."""

    def __init__(self, width: int, bias: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, bias=bias)
        self.c_attn, self.proj = nn.Linear(width, 3 * width, bias=bias), nn.Linear(width, width, bias=bias)
        self.up, self.down = nn.Linear(width, 4 * width, bias=bias), nn.Linear(4 * width, width, bias=bias)


def model(layers: int, bias: bool) -> nn.Module:
    made = nn.ModuleDict({"tokens": nn.Embedding(1000, 768), "head": nn.Linear(768, 1000, bias=bias)})
    made["blocks"] = nn.ModuleList(Block(768, bias) for _ in range(layers))
    return made


@contextmanager
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    with FakeTensorMode(allow_non_fake_inputs=True), Indexing():
        yield


def recorded(layers: int, bias: bool, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    with torch.device("meta"):
        net = model(layers, bias)
    with fake_cuda(monkeypatch):
        for module in net.modules():
            for name, p in list(module._parameters.items()):
                if p is not None:
                    q = nn.Parameter(torch.empty(p.shape, device="cuda"))
                    q.grad = torch.empty(p.shape, device="cuda")
                    module._parameters[name] = q
        optimizer = Muon.for_model(net, lr=0.02)
        optimizer.step()
        with Recorder() as recorder:
            optimizer.step()
    return recorder


@pytest.mark.parametrize("bias", [False, True])
def test_nothing_waits_and_nothing_is_copied_to_the_device(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found = recorded(2, bias, monkeypatch)
    assert found.waits == []
    assert found.copies == []


def test_a_matrix_more_is_two_launches_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for its flag and one for its update; everything else is done on stacks by shape."""
    few, many = (recorded(layers, False, monkeypatch) for layers in (2, 6))
    assert len(many.kernels) - len(few.kernels) == 2 * 4 * 4


def test_biases_add_launches_by_kinds_and_not_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = [len(recorded(layers, False, monkeypatch).kernels) for layers in (2, 6)]
    biased = [len(recorded(layers, True, monkeypatch).kernels) for layers in (2, 6)]
    assert biased[1] - biased[0] == plain[1] - plain[0]


def test_a_small_gpt_stays_within_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch more than this has to be argued for. baddbmm, which is a copy and a product, counts once here."""
    assert len(recorded(2, True, monkeypatch).kernels) <= 132
