"""Constructors declare every option: an editor completes them, a misspelt one is an error, mypy sees it."""

import inspect
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from inexact_muon import EF21Muon, Muon, Scion
from inexact_muon.optim import AdaMuon, LMOOptimizer, arguments
from inexact_muon.optim.group import Group
from inexact_muon.parallel.compressors import Natural
from pages import ROOT

OPTIONS = {
    "LMOOptimizer": (
        *("params", "lr", "momentum", "ball", "length", "radius", "weight_decay", "nesterov", "scale", "constrained"),
        *("momentum_init", "state_dtype", "maximize", "sample_every", "sample_share", "on_nonfinite", "memory_limit"),
        *("strategy", "wire", "process_group", *arguments.StageOptions.__annotations__),
    ),
}
CONSTRUCTORS: dict[str, Callable[..., Any]] = {
    "LMOOptimizer": LMOOptimizer,
    "Muon": Muon,
    "Muon.for_model": Muon.for_model,
    "EF21Muon": EF21Muon,
    "EF21Muon.for_model": EF21Muon.for_model,
    "Scion": Scion,
}


DECLARED = {kind.__name__: kind for kind in (arguments.Common, arguments.MuonOptions, arguments.EF21Common)}
DECLARED["EF21Options"] = arguments.EF21Options


def options(call: Callable[..., Any]) -> dict[str, inspect.Parameter | None]:
    """Name of every option -> its parameter, or None where a TypedDict declares it."""
    names: dict[str, inspect.Parameter | None] = {}
    for name, p in inspect.signature(call).parameters.items():
        if p.kind is p.VAR_KEYWORD:
            kind = str(p.annotation).removeprefix("Unpack[").removesuffix("]")
            names |= dict.fromkeys(DECLARED[kind].__annotations__)
        else:
            names[name] = p
    return names


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_every_option_has_a_name_and_a_type(name: str) -> None:
    declared = options(CONSTRUCTORS[name])
    assert all(p is None or p.kind is not p.VAR_POSITIONAL for p in declared.values())
    assert all(p is None or p.annotation is not p.empty for p in declared.values())
    assert set(declared) == set(OPTIONS.get(name, declared))


def test_what_is_declared_once_is_what_the_core_takes() -> None:
    core = options(LMOOptimizer)
    assert set(arguments.Common.__annotations__) <= set(core)
    assert set(arguments.Steps.__annotations__) | set(arguments.Numbers.__annotations__) <= set(options(Muon))


def test_torchs_names_come_first_in_torchs_order() -> None:
    if not hasattr(torch.optim, "Muon"):  # since torch 2.9
        pytest.skip("this torch has no Muon")
    theirs, ours = options(torch.optim.Muon), options(Muon)
    assert set(theirs) <= set(ours)
    positional = [name for name, p in ours.items() if p is not None and p.kind == p.POSITIONAL_OR_KEYWORD]
    assert positional == list(theirs)[: len(positional)]


@pytest.mark.parametrize("cls", [Muon, EF21Muon])
def test_for_model_takes_what_the_constructor_takes(cls: type[Muon]) -> None:
    ours, model = options(cls), options(cls.for_model)
    assert set(model) - set(ours) == {"model", "adamw", "rules", "split", "heads"}
    assert set(ours) - set(model) == {"params"}


@pytest.mark.parametrize("word", ["nestrov", "keep", "view", "algorithm", "betas", "policy", "reference", "look_every"])
@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_a_misspelt_option_and_one_of_groups_only_is_a_type_error(name: str, word: str) -> None:
    layer = nn.Linear(3, 3)
    given: list[Any] = [layer] if "for_model" in name else [[layer.weight]]
    options = {"ball": "sign", "momentum": 0.9} if name == "LMOOptimizer" else {}
    with pytest.raises(TypeError, match=word):
        CONSTRUCTORS[name](*given, lr=0.1, **options, **{word: True})


def test_ef21_takes_what_muon_takes_but_for_the_strategy() -> None:
    muon, ef21 = options(Muon), options(EF21Muon)
    assert set(ef21) - set(muon) == {"up", "down"}
    assert set(muon) - set(ef21) == {"strategy", "wire", *arguments.StageOptions.__annotations__}
    pairs = [(muon[name], ef21[name]) for name in set(muon) & set(ef21)]
    assert all(a.default == b.default for a, b in pairs if a is not None and b is not None)
    for option in ({"strategy": "owner-rank"}, {"wire": "state"}):
        with pytest.raises(TypeError, match="EF21Muon has compressors instead"):
            EF21Muon([nn.Parameter(torch.eye(2))], **option)
    assert EF21Muon.for_model(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), 0.1, up="natural").up == Natural()


def test_a_group_has_them() -> None:
    first, second = (nn.Parameter(torch.ones(4, 4)) for _ in range(2))
    groups = [
        {"params": [first], "view": "split(rows=2)", "keep": 0.5},
        {"params": [second], "algorithm": "adamw", "betas": (0.8, 0.9), "eps": 1e-6},
    ]
    lmo, adamw = Muon(groups).param_groups
    assert (lmo["view"], lmo["keep"], lmo["momentum"]) == ("split(rows=2, groups=1)", 0.5, 0.95)
    assert (adamw["momentum"], adamw["beta2"], adamw["eps"]) == (0.8, 0.9, 1e-6)
    defaults = {"algorithm": "lmo", "view": "whole()", "beta2": 0.95, "eps": 1e-8, "keep": 1.0}
    assert defaults.items() <= Muon([first]).defaults.items()


def test_for_model_says_what_is_missing() -> None:
    model = nn.Linear(3, 3)
    with pytest.raises(TypeError, match=r"for_model needs the model itself, got generator"):
        Muon.for_model(model.parameters())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"for_model needs a learning rate: write Muon.for_model\(model, lr=0.02\)"):
        Muon.for_model(model)


@pytest.mark.slow
def test_mypy_sees_it(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    lines = (
        "Muon([], lr=0.1, nesterov=True)",
        "Muon([], lr=0.1, nestrov=True)",
        "Muon.for_model(nn.Linear(2, 2), 0.1, nestrov=True)",
        "Scion([], lr=0.1, momentun=0.9)",
        "Muon([], weight_decay='no')",
    )
    source = "\n".join(("from torch import nn", "from inexact_muon import Muon, Scion", *lines))
    (tmp_path / "snippet.py").write_text(source)
    command = [sys.executable, "-m", "mypy", str(tmp_path / "snippet.py")]  # with the cache of `make types`
    shown = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "MYPYPATH": "src"}, capture_output=True, text=True, check=False
    ).stdout
    assert [int(line.split(":")[1]) for line in shown.splitlines() if ": error:" in line] == [4, 5, 6, 7], shown


@pytest.mark.parametrize("cls", [Muon, EF21Muon, AdaMuon])
def test_warnings_are_at_the_line_of_the_caller(cls: type[Muon]) -> None:
    """Through the constructors of presets, and through torch's own."""
    groups = [{"params": [nn.Parameter(torch.ones(4, 5))], "weight_decy": 0.1}]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cls(groups, eps=1e-3)
    assert ["eps=0.001 has no effect" in str(w.message) for w in caught] == [True, False]
    assert "is it 'weight_decay'?" in str(caught[1].message)
    assert {w.filename for w in caught} == {__file__}


def test_groups_hold_what_their_type_says() -> None:
    optimizer = Muon.for_model(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), 0.1)
    for group in optimizer.param_groups:
        assert {*group, "betas"} == set(Group.__annotations__)
