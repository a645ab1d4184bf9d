"""Damaged checkpoints of every source: a load that is whole, or one sentence and nothing changed.

A load that is accepted is compared with that of the honest file: each parameter has its own entry of the file, the one
that it had before, or starts afresh; where a value is another one than the honest load gives and is not in the file,
there was a warning.
"""

import copy
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fuzzing import TALLY, fuzz
from inexact_muon import Muon
from inexact_muon.optim import load_foreign
from inexact_muon.optim.options import SCHEDULED, check_options
from odd_values import mutated, values
from torch_features import HAS_MUON

HIDDEN = ("0.weight", "1.weight")
BUFFERS = {"lmo": ("momentum_buffer",), "adamw": ("exp_avg", "exp_avg_sq")}


@dataclass(frozen=True)
class Source:
    """A file, the names that are given with it (None for ours), those of its entries in order, and what came before.

    Attributes:
        other: another order that its shapes may tell: KellerJordan's files do not say whether matrices were sorted.
        before: (file, names) loaded first, undamaged: the other half of a pair.
    """

    file: Any
    names: list[str] | None
    order: list[str] | None
    other: list[str] | None = None
    before: tuple[tuple[Any, list[str]], ...] = ()


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


def saved(net: nn.Module, optimizer: Any, names: list[str]) -> Source:
    """The file of another package's optimizer after one step."""
    step(net, optimizer)
    of = {id(p): name for name, p in net.named_parameters()}
    order = [of[id(p)] for group in optimizer.param_groups for p in group["params"]]
    return Source(copy.deepcopy(optimizer.state_dict()), names, order)


def torchs() -> Iterator[tuple[str, Source]]:
    net = model()
    every, hidden = dict(net.named_parameters()), [dict(net.named_parameters())[name] for name in HIDDEN]
    rest = [name for name in every if name not in HIDDEN]
    plain = saved(net, torch.optim.AdamW(every.values(), 0.01), list(every))
    yield "torch AdamW", plain
    yield "torch Adam", saved(net, torch.optim.Adam(every.values(), 0.01), list(every))
    if HAS_MUON:
        muon = saved(net, torch.optim.Muon(hidden, 0.01), list(HIDDEN))
        adamw = saved(net, torch.optim.AdamW([every[name] for name in rest], 0.03), rest)
        yield "torch Muon", muon
        yield "torch Muon of a pair", replace(muon, before=((adamw.file, rest),))
        yield "torch AdamW of a pair", replace(adamw, before=((muon.file, list(HIDDEN)),))


def kellers() -> Iterator[tuple[str, Source]]:
    """KellerJordan's classes; two of them sort their matrices by size and need a process group to step."""
    try:
        import muon
    except ImportError:
        return
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for kind in ("SingleDeviceMuonWithAuxAdam", "MuonWithAuxAdam", "SingleDeviceMuon", "Muon"):
            net = model()
            every = dict(net.named_parameters())
            hidden = [every[name] for name in HIDDEN]
            rest = [name for name in every if name not in HIDDEN] if kind.endswith("Adam") else []
            groups = [{"params": [every[n] for n in rest], "use_muon": False}, {"params": hidden, "use_muon": True}]
            made = saved(net, getattr(muon, kind)(groups if rest else hidden), [*rest, *HIDDEN])
            assert made.order is not None
            yield kind, replace(made, other=[*made.order[:-2], *made.order[:-3:-1]])
    finally:
        dist.destroy_process_group()


SOURCES = {"ours": Source(copy.deepcopy(made()[1].state_dict()), None, None), **dict(torchs()), **dict(kellers())}


def load(optimizer: Muon, file: Any, names: Any) -> list[str]:
    """Loads; the warnings."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        if names is None:
            optimizer.load_state_dict(file)
        else:
            load_foreign(optimizer, file, names)
    return [str(one.message) for one in seen]


def equal(a: Any, b: Any) -> bool:
    """Bit for bit."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.layout != torch.strided or b.layout != torch.strided or a.is_meta or b.is_meta:
            return False
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num())
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


def widened(key: str, value: Any) -> Any:
    """A second moment in float16 is kept in float32."""
    half = key == "exp_avg_sq" and isinstance(value, Tensor) and value.dtype == torch.float16
    return value.float() if half else value


def entries(file: Any, order: list[str] | None) -> dict[str, Any]:
    """Name -> the state that the file has for it; other libraries may count the steps of a group."""
    names = order or [name for group in file["param_groups"] for name in group.get("param_names") or ()]
    states = []
    for group in file["param_groups"]:
        shared = {"step": group["step"]} if order and "step" in group else {}
        states += [{**shared, **entry} if (entry := file["state"].get(key, {})) else {} for key in group["params"]]
    return dict(zip(names, states, strict=False))


def states(optimizer: Muon) -> dict[str, dict[str, Any]]:
    """Name -> what the optimizer holds for it."""
    return {name: dict(optimizer.state.get(p, {})) for name, p, _ in optimizer.named()}


def check_states(optimizer: Muon, source: Source, before: Any, honest: Any, said: list[str]) -> None:
    """Every parameter has the tensors of its own entry, those that it had, or none."""
    try:
        check_entries(optimizer, entries(source.file, source.order), before, honest, said)
    except AssertionError:
        if source.other is None:
            raise
        check_entries(optimizer, entries(source.file, source.other), before, honest, said)


def check_entries(optimizer: Muon, told: dict[str, Any], before: Any, honest: Any, said: list[str]) -> None:
    after = states(optimizer)
    for name, p, group in optimizer.named():
        entry, found = told.get(name, {}), after[name]
        keys = BUFFERS[group["algorithm"]]
        if all(key in entry for key in keys):
            assert all(equal(found[key], widened(key, entry[key])) for key in keys), f"{name}: not its own entry"
            count = entry.get("step", 1.0 if group["algorithm"] == "lmo" else None)
            assert float(found["step"]) == pytest.approx(float(count), rel=1e-7), f"{name}: another count of steps"
        else:
            kept = all(equal(found.get(key), before[name].get(key)) for key in keys)
            assert kept or not any(key in found for key in keys), f"{name}: from nowhere"
            # An empty entry says that there was no step yet; of what is there, nothing is lost without a word.
            if entry and all(key in honest[name] for key in keys):
                assert said, f"{name}: the rest of its entry is dropped, and nothing says so"
        assert all(found[key].shape == p.shape for key in keys if key in found)


def check_groups(optimizer: Muon, source: Source, before: Any, honest: Any, said: list[str]) -> None:
    """Options are those of the honest load, of the file, or with a warning as they were; the algorithm never moves."""
    for group, old, wanted in zip(optimizer.param_groups, before, honest, strict=True):
        check_options(group)
        assert group["params"] == old["params"]
        for key in group.keys() - {"params", "param_names"}:
            file = [g.get(key) for g in source.file["param_groups"] if isinstance(g, dict)]
            betas = [g.get("betas") for g in source.file["param_groups"] if isinstance(g, dict)]
            file += [part for pair in betas if isinstance(pair, list | tuple) for part in pair]
            if equal(group[key], wanted.get(key)) or (key in SCHEDULED and any(group[key] == v for v in file)):
                continue
            if key == "ball" or key not in old:
                assert any(equal(group[key], value) for value in file), key
                continue
            assert equal(group[key], old[key]), f"{key} of {group['name']}: {group[key]}"
            assert said, f"{key} of {group['name']} is not that of the honest load, and nothing says so"


def check(source: Source, honest: Source) -> str | None:
    """The sentence of a refusal."""
    TALLY["checkpoints"] += 1
    net, optimizer = made(lr=0.5)
    twin = made(lr=0.5)[1]
    for one in (optimizer, twin):
        for file, names in source.before:
            load(one, copy.deepcopy(file), names)
    load(twin, copy.deepcopy(honest.file), honest.names)
    before, known = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(states(optimizer))
    groups, untouched = [dict(group) for group in optimizer.param_groups], copy.deepcopy(source)
    try:
        said = load(optimizer, source.file, source.names)
    except (ValueError, TypeError) as error:
        sentence = str(error)
    else:
        assert not any("\n" in text for text in said)
        check_states(optimizer, untouched, known, states(twin), said)
        check_groups(optimizer, untouched, groups, twin.param_groups, said)
        step(net, optimizer)
        load(made()[1], optimizer.state_dict(), None)
        return None
    assert sentence
    assert "\n" not in sentence
    assert equal(optimizer.state_dict(), before), "refused and changed"
    step(net, optimizer)
    return sentence


@pytest.mark.parametrize("name", SOURCES)
def test_honest_files_load(name: str) -> None:
    assert check(SOURCES[name], SOURCES[name]) is None


@pytest.mark.parametrize("name", SOURCES)
@fuzz(15)
@given(data=st.data())
def test_damaged_files(name: str, data: st.DataObject) -> None:
    honest = SOURCES[name]
    check(replace(honest, file=data.draw(mutated(honest.file))), honest)


@fuzz(10)
@given(file=values(), foreign=st.booleans())
def test_anything_else(file: Any, foreign: bool) -> None:
    given = Source(file, ["0.weight"] if foreign else None, ["0.weight"] if foreign else None)
    assert check(given, SOURCES["ours"]) is not None


def test_an_entry_of_another_parameter_is_noticed() -> None:
    """That the comparison can fail: two matrices of one shape whose states are exchanged."""
    source = SOURCES["torch AdamW"]
    net, optimizer = made(lr=0.5)
    said = load(optimizer, copy.deepcopy(source.file), source.names)
    biases = [p for name, p in net.named_parameters() if name in ("0.bias", "1.bias")]
    first, second = (optimizer.state[p] for p in biases)
    first["exp_avg"], second["exp_avg"] = second["exp_avg"], first["exp_avg"]
    with pytest.raises(AssertionError, match="not its own entry"):
        check_states(optimizer, source, states(made()[1]), states(optimizer), said)
