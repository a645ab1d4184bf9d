"""Checkpoints of pytorch_optimizer, timm and heavyball: momentum and moments are what the gradients make them, or the
file is refused with its reason.

Each class is there twice: as a record of what it saves, and as itself if its package is installed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from inexact_muon import Muon
from inexact_muon.optim import load_foreign, structure
from torchvision_stub import import_timm

STEPS, G = 3, {"w": torch.full((4, 6), 0.25), "b": torch.full((4,), -0.5)}
"""Steps, each with these gradients."""

State = dict[str, Any]
NEWTON = {"ns_steps": 5, "ns_coeffs": [(3.4445, -4.775, 2.0315)]}
PLAIN = {"weight_decay": 0.0, "weight_decouple": True, "foreach": None, "step": STEPS}


def ema(beta: float, name: str, power: int = 1) -> Tensor:
    """The average of the gradients, or of their squares, from zero on."""
    return (1.0 - beta**STEPS) * G[name] ** power


def total(momentum: float) -> Tensor:
    """The sum b <- mu b + g."""
    return sum(momentum**k for k in range(STEPS)) * G["w"]


def pair(first: State, entry: State, betas: tuple[float, float] = (0.9, 0.95)) -> State:
    """As pytorch_optimizer saves it: a group of matrices, and one of AdamW whose steps are counted in the group."""
    adamw = {"use_muon": False, "lr": 3e-4, "betas": betas, "eps": 1e-10, **PLAIN, "params": [1]}
    moments = {"exp_avg": ema(betas[0], "b"), "exp_avg_sq": ema(betas[1], "b", 2)}
    return {
        "state": {0: entry, 1: moments},
        "param_groups": [{"use_muon": True, "lr": 0.02, **PLAIN, **first, "params": [0]}, adamw],
    }


def muon() -> State:
    first = {"momentum": 0.95, "nesterov": True, **NEWTON, "ns_method": "newton_schulz", "use_adjusted_lr": False}
    return pair(first, {"momentum_buffer": ema(0.95, "w")})


def muon_clip() -> State:
    first = {"momentum": 0.95, "nesterov": False, **NEWTON, "qk_clip_threshold": 100.0, "qk_clip_alpha": 0.5}
    return pair(first, {"momentum_buffer": total(0.95)})


def nor_muon() -> State:
    first = {"momentum": 0.95, "beta2": 0.95, "nesterov": True, **NEWTON, "update_scale": "preserve_norm"}
    return pair(first, {"momentum_buffer": ema(0.95, "w"), "second_momentum_buffer": torch.ones(4, 1)})


def ada_muon() -> State:
    return pair({"betas": (0.9, 0.95), **NEWTON, "eps": 1e-10}, {"m": ema(0.9, "w"), "v": torch.ones(24)})


def ada_go() -> State:
    first = {"momentum": 0.95, "nesterov": False, **NEWTON, "gamma": 10.0, "v": 1e-6}
    return pair(first, {"momentum_buffer": ema(0.95, "w"), "v": torch.tensor(0.1)})


def scion(state: bool = True) -> State:
    """`momentum` is the weight of the new gradient."""
    group = {"lr": 1e-3, "momentum": 0.1, "constraint": False, "norm_type": 1, "norm_kwargs": {}, "scale": 1.0, **PLAIN}
    entries = {0: {"d": ema(0.9, "w")}, 1: {"d": ema(0.9, "b")}} if state else {}
    return {"state": entries, "param_groups": [{**group, "params": [0, 1]}]}


def timm(algo: str = "muon") -> State:
    group = {"lr": 0.02, "weight_decay": 0, "momentum": 0.95, "nesterov": False, "ns_steps": 5, "eps": 1e-7}
    group |= {"ns_coefficients": "quintic", "adjust_lr_fn": "match_rms_adamw", "fallback_lr_scale": 1.0, "algo": algo}
    moments = {"step": torch.tensor(float(STEPS)), "exp_avg": ema(0.9, "b"), "exp_avg_sq": ema(0.95, "b", 2)}
    entries = {0: {"use_muon": True, "momentum_buffer": ema(0.95, "w")}, 1: {"use_muon": False, **moments}}
    return {"state": entries, "param_groups": [{**group, "betas": (0.9, 0.95), "params": [0, 1]}]}


def heavyball() -> State:
    group = {"lr": 0.0025, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0, "storage_dtype": "float32"}
    entries = {i: {0: {"nesterov_ema_momentum_2": ema(0.9, name)}} for i, name in enumerate(G)}
    return {"state": entries, "param_groups": [{**group, "step_count": torch.tensor(STEPS), "params": [0, 1]}]}


NOT_OURS = "which neither Muon nor AdamW has"
RECORDS: dict[str, tuple[Callable[[], State], str | None]] = {
    "pytorch_optimizer.Muon": (muon, None),
    "pytorch_optimizer.MuonClip": (muon_clip, None),
    "pytorch_optimizer.SCION": (scion, None),
    "pytorch_optimizer.SCIONLight": (lambda: scion(state=False), "is in the gradients"),
    "pytorch_optimizer.NorMuon": (nor_muon, f"second_momentum_buffer, {NOT_OURS}"),
    "pytorch_optimizer.AdaMuon": (ada_muon, "AdaMuon's"),
    "pytorch_optimizer.AdaGO": (ada_go, f"v, {NOT_OURS}"),
    "timm.optim.muon.Muon": (timm, None),
    "timm.optim.muon.Muon(algo='adamuon')": (lambda: timm("adamuon"), "AdaMuon's"),
    "heavyball.Muon": (heavyball, "heavyball's"),
    "heavyball.MuonAdamW": (heavyball, "heavyball's"),
}
"""Class -> what it saves, and words of the refusal or None."""


def real(name: str) -> State:
    """What the class itself saves after these steps."""
    package, _, kind = name.partition("(")[0].rpartition(".")
    if find_spec(package.partition(".")[0]) is None:
        pytest.skip(f"{package} is not installed: python -m pip install --no-deps {package.partition('.')[0]}")
    if package.startswith("timm"):
        import_timm()
    ps = {"w": nn.Parameter(torch.ones(4, 6)), "b": nn.Parameter(torch.ones(4))}
    split = package == "pytorch_optimizer" and "SCION" not in kind
    groups = [{"params": [p], "use_muon": p.ndim == 2} for p in ps.values()] if split else list(ps.values())
    optimizer = getattr(import_module(package), kind)(groups, **({"algo": "adamuon"} if "algo=" in name else {}))
    for _ in range(STEPS):
        for key, p in ps.items():
            p.grad = G[key].clone()
        with torch.compiler.set_stance("force_eager"):  # heavyball compiles its steps
            optimizer.step()
    saved: State = optimizer.state_dict()
    return saved


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("origin", ["recorded", "real"])
@pytest.mark.parametrize("name", RECORDS)
def test_what_is_loaded_is_what_the_gradients_make(name: str, origin: str) -> None:
    record, refusal = RECORDS[name]
    saved = record() if origin == "recorded" else real(name)
    w, b = nn.Parameter(torch.ones(4, 6)), nn.Parameter(torch.ones(4))
    optimizer = Muon([{"params": [("w", w)]}, {"params": [("b", b)], "algorithm": "adamw"}], lr=0.5)
    if refusal is not None:
        before = str(optimizer.state_dict())
        with pytest.raises(ValueError, match=refusal) as error:
            load_foreign(optimizer, saved, list(G))
        assert "\n" not in str(error.value)
        assert str(optimizer.state_dict()) == before
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load_foreign(optimizer, saved, list(G))
    momentum = optimizer.param_groups[0]["momentum"]
    assert momentum == pytest.approx(0.9 if "SCION" in name else 0.95)
    torch.testing.assert_close(optimizer.state[w]["momentum_buffer"], ema(momentum, "w"))
    assert optimizer.param_groups[0]["lr"] == saved["param_groups"][0]["lr"]
    if "SCION" in name:  # its vectors have an LMO too
        assert optimizer.state[b] == {}
        return
    one, two = optimizer.param_groups[1]["momentum"], optimizer.param_groups[1]["beta2"]
    torch.testing.assert_close(optimizer.state[b]["exp_avg"], ema(one, "b"))
    torch.testing.assert_close(optimizer.state[b]["exp_avg_sq"], ema(two, "b", 2))
    assert int(optimizer.state[b]["step"]) == STEPS


def test_a_clip_that_is_not_done_here_is_said() -> None:
    ps = {"w": nn.Parameter(torch.ones(4, 6)), "b": nn.Parameter(torch.ones(4))}
    groups = [{"params": [("w", ps["w"])]}, {"params": [("b", ps["b"])], "algorithm": "adamw"}]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load_foreign(Muon(groups), muon_clip(), list(G))
    assert any("without a counterpart here: qk_clip_threshold" in str(warning.message) for warning in caught)


@pytest.mark.parametrize(("norm_type", "said"), [(0, 1), (1, 0), (2, 0), (4, 1), (7, 1)])
def test_another_ball_of_scion_is_said(norm_type: int, said: int) -> None:
    """norm_type 4 is the sign ball, of which nothing else in the file speaks."""
    file = scion()
    file["param_groups"][0]["norm_type"] = norm_type
    file["state"][1] = file["state"][0]
    optimizer = Muon([("w", nn.Parameter(torch.ones(4, 6))), ("b", nn.Parameter(torch.ones(4, 6)))])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load_foreign(optimizer, file, list(G))
    assert sum("without a counterpart here: norm_type" in str(warning.message) for warning in caught) == said


def test_a_momentum_that_is_a_sum_is_not_loaded_by_position() -> None:
    with pytest.raises(ValueError, match="is a sum, or may be one"):
        Muon([nn.Parameter(torch.ones(4, 6)), nn.Parameter(torch.ones(4, 6))]).load_state_dict(muon_clip())


def test_momentum_for_a_parameter_that_has_adamw_here_is_said() -> None:
    """By position too: it is not called moments without a count."""
    p, q = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(4, 4))
    source = torch.optim.Muon([p], lr=0.02)
    p.grad = torch.ones(4, 4)
    source.step()
    target = Muon([{"params": [q], "algorithm": "adamw"}])
    with pytest.warns(UserWarning, match="another algorithm in the checkpoint start with empty state"):
        target.load_state_dict(source.state_dict())
    assert not target.state[q]


@pytest.mark.parametrize("key", ["weight_decay", "amsgrad", "use_muon", "step", "ns_coeffs", "lr"])
def test_options_are_one_value(key: str) -> None:
    file = muon()
    for group in file["param_groups"]:
        group[key] = torch.ones(3, 4)
    w, b = nn.Parameter(torch.ones(4, 6)), nn.Parameter(torch.ones(4))
    optimizer = Muon([{"params": [("w", w)]}, {"params": [("b", b)], "algorithm": "adamw"}])
    with pytest.raises(ValueError, match=f"{key} of the checkpoint's groups must be one value"):
        load_foreign(optimizer, file, ["w", "b"])
    assert not optimizer.state


def test_warnings_about_a_file_point_at_the_line_that_loads_it() -> None:
    """Also through torch's own load_state_dict, whose frames lie between."""
    weight = torch.nn.Parameter(torch.randn(4, 6))
    saved = Muon([("w", weight)], lr=0.1, polar="jordan:5").state_dict()
    theirs = {"state": {}, "param_groups": [{"params": [0], "momentum": 0.9, "ns_steps": 5, "odd": "x"}]}
    theirs["param_groups"][0]["ns_coefficients"] = (3.4445, -4.7750, 2.0315)
    for load in (
        lambda: Muon([("w", weight)], lr=0.1, polar="you:6").load_state_dict(saved),
        lambda: load_foreign(Muon([("w", weight)], lr=0.1), theirs, ["w"]),
    ):
        with pytest.warns(UserWarning, match="checkpoint") as caught:
            load()
        assert {warning.filename for warning in caught} == {__file__}


def test_a_file_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[int] = []
    monkeypatch.setattr(structure, "check_group", lambda i, _: checked.append(i))
    optimizer = Muon.for_model(nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 6)), 0.02)
    adamw = {"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0, "params": [0, 1]}
    load_foreign(optimizer, {"state": {}, "param_groups": [adamw]}, names=["0.bias", "2.bias"])
    assert checked == [0]


def test_steps_that_a_group_counts_are_those_of_its_parameters_by_position_too() -> None:
    w, b = nn.Parameter(torch.ones(4, 6)), nn.Parameter(torch.ones(4))
    optimizer = Muon([{"params": [w]}, {"params": [b], "algorithm": "adamw"}])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the oracle
        optimizer.load_state_dict(muon())
    assert [int(optimizer.state[p]["step"]) for p in (w, b)] == [STEPS, STEPS]
