"""Damaged checkpoints of every source: a load that is whole, or one sentence and nothing changed."""

import copy
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fuzzing import fuzz
from inexact_muon import Muon
from inexact_muon.optim import load_foreign
from inexact_muon.optim.options import check_options
from odd_values import mutated, values


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3))


def step(net: nn.Module, *optimizers: Any) -> None:
    for p in net.parameters():
        p.grad = torch.ones_like(p) + p.detach()
    for optimizer in optimizers:
        optimizer.step()


def made(lr: float = 0.02) -> tuple[nn.Module, Muon]:
    net = model()
    optimizer = Muon.for_model(net, lr, polar="jordan:5")
    step(net, optimizer)
    return net, optimizer


def sources() -> dict[str, tuple[dict[str, Any], list[str] | None]]:
    """Name -> (a file, names of its parameters); None for ours, which has them."""
    net, ours = made()
    hidden = [(n, p) for n, p in net.named_parameters() if n in ("0.weight", "1.weight")]
    rest = [(n, p) for n, p in net.named_parameters() if n not in ("0.weight", "1.weight")]
    muon = torch.optim.Muon([p for _, p in hidden])
    adamw = torch.optim.AdamW([p for _, p in rest])
    found: dict[str, Any] = {"ours": (ours, None)}
    found |= {"torch Muon": (muon, [n for n, _ in hidden]), "torch AdamW": (adamw, [n for n, _ in rest])}
    step(net, muon, adamw)
    try:
        from muon import SingleDeviceMuonWithAuxAdam
    except ImportError:
        pass
    else:
        keller = SingleDeviceMuonWithAuxAdam(
            [
                {"params": [p for _, p in rest], "use_muon": False},
                {"params": [p for _, p in hidden], "use_muon": True},
            ]
        )
        step(net, keller)
        found["keller"] = (keller, [n for n, _ in (*rest, *hidden)])
    return {name: (copy.deepcopy(o.state_dict()), names) for name, (o, names) in found.items()}


SOURCES = sources()


def load(optimizer: Muon, file: Any, names: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what differs is named
        if names is None:
            optimizer.load_state_dict(file)
        else:
            load_foreign(optimizer, file, names)


def tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [t for v in inner for t in tensors(v)]


def equal(a: Any, b: Any) -> bool:
    """Bit for bit."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num())
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


def check(file: Any, names: Any) -> str | None:
    """The sentence of a refusal."""
    net, optimizer = made(lr=0.5)
    before, untouched = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(file)
    try:
        load(optimizer, file, names)
    except (ValueError, TypeError) as error:
        sentence = str(error)
    else:
        sentence = None
    if sentence is not None:
        assert sentence
        assert "\n" not in sentence
        assert equal(optimizer.state_dict(), before), "refused and changed"
        step(net, optimizer)
        return sentence
    after = optimizer.state_dict()
    known = [t for t in tensors(before) + tensors(untouched) if t.layout == torch.strided and not t.is_meta]
    for group in optimizer.param_groups:
        check_options(group)
        for p in group["params"]:
            for key in ("momentum_buffer", "exp_avg", "exp_avg_sq"):
                if key in optimizer.state[p]:
                    found = optimizer.state[p][key]
                    assert found.shape == p.shape
                    assert any(equal(found, t) for t in known), "neither of the file nor as it was"
    assert [g["params"] for g in after["param_groups"]] == [g["params"] for g in before["param_groups"]]
    step(net, optimizer)
    load(made()[1], optimizer.state_dict(), None)
    return None


@pytest.mark.parametrize("source", SOURCES)
def test_honest_files_load(source: str) -> None:
    assert check(*SOURCES[source]) is None


@pytest.mark.parametrize("source", SOURCES)
@fuzz(25)
@given(data=st.data())
def test_damaged_files(source: str, data: st.DataObject) -> None:
    file, names = SOURCES[source]
    check(data.draw(mutated(file)), names)


@fuzz(10)
@given(file=values(), foreign=st.booleans())
def test_anything_else(file: Any, foreign: bool) -> None:
    assert check(file, ["0.weight"] if foreign else None) is not None
