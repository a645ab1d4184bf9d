"""The way back to torch.optim: a state that is given back continues as torch's own."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from inexact_muon import EF21Muon, Muon
from inexact_muon.optim import LMOOptimizer, load_foreign, to_torch
from torch_features import needs_torch_muon

pytestmark = needs_torch_muon
HIDDEN = ["1.weight", "3.weight"]
RATES = {"lr": 0.02, "weight_decay": 0.05, "momentum": 0.9}


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16), nn.Linear(16, 20))


def pair(net: nn.Module) -> list[Any]:
    rest = [(name, p) for name, p in net.named_parameters() if name not in HIDDEN]
    muon = torch.optim.Muon([(name, p) for name, p in net.named_parameters() if name in HIDDEN], **RATES)
    return [muon, torch.optim.AdamW(rest, lr=3e-3, betas=(0.8, 0.9), eps=1e-9, weight_decay=0.01)]


def trained(net: nn.Module, optimizers: list[Any], first: int, last: int) -> list[torch.Tensor]:
    for step in range(first, last):
        net.zero_grad()
        tokens = torch.randint(20, (8,), generator=torch.Generator().manual_seed(step))
        nn.functional.cross_entropy(net(tokens), (tokens + 1) % 20).backward()
        for optimizer in optimizers:
            optimizer.step()
    return [p.detach().clone() for p in net.parameters()]


def ours(net: nn.Module, **options: Any) -> Muon:
    return Muon.for_model(net, **RATES, adamw={"lr": 3e-3, "betas": (0.8, 0.9), "weight_decay": 0.01}, **options)


def from_torch(net: nn.Module, optimizer: LMOOptimizer) -> list[Any]:
    """torch's optimizers with the groups and states that `to_torch` gives."""
    parameters, made = dict(net.named_parameters()), []
    for kind, states in zip((torch.optim.Muon, torch.optim.AdamW), to_torch(optimizer), strict=True):
        names = [group["param_names"] for group in states["param_groups"]]
        made.append(kind([{"params": [(n, parameters[n]) for n in some]} for some in names]))
        made[-1].load_state_dict(states)
    return made


def test_there_and_back_continues_as_torch_does_bit_for_bit() -> None:
    net = model()
    optimizers = pair(net)
    trained(net, optimizers, 0, 3)
    other = copy.deepcopy(net)
    through = ours(other, ns_steps=5)
    for optimizer in optimizers:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # biases are in a group of their own here, and torch's has one decay
            load_foreign(through, optimizer.state_dict())
    again = from_torch(other, through)
    for group in again[1].param_groups:
        group["weight_decay"] = 0.01
    for mine, theirs in zip(trained(other, again, 3, 6), trained(net, optimizers, 3, 6), strict=True):
        assert torch.equal(mine, theirs)


def test_torch_continues_what_was_trained_here() -> None:
    """AdamW to the rounding of float32. Muon to that of bfloat16 in the polynomial, which is steep at 0; without the
    momentum a step goes elsewhere."""
    net = model()
    optimizer = ours(net, ns_steps=5)
    start = trained(net, [optimizer], 0, 3)
    others = [copy.deepcopy(net) for _ in range(2)]
    there = trained(others[0], from_torch(others[0], optimizer), 3, 4)
    fresh = trained(others[1], from_torch(others[1], ours(others[1], ns_steps=5)), 3, 4)
    names, here = dict(net.named_parameters()), trained(net, [optimizer], 3, 4)
    for name, before, *ends in zip(names, start, here, there, fresh, strict=True):
        moved, continued, lost = (float((x - ends[0]).norm()) for x in (before, *ends[1:]))
        assert continued <= (0.1 if name in HIDDEN else 1e-4) * moved, name
        assert lost > 0.3 * moved, name


def test_groups_have_the_options_and_names_of_their_parameters() -> None:
    optimizer = ours(model(), ns_steps=3, adjust_lr_fn="match_rms_adamw", nesterov=False)
    muon, adamw = to_torch(optimizer)
    (group,) = muon["param_groups"]
    assert group["param_names"] == HIDDEN
    assert (group["ns_steps"], group["adjust_lr_fn"], group["nesterov"]) == (3, "match_rms_adamw", False)
    assert muon["state"] == adamw["state"] == {}, "no step was made"
    assert {group["betas"] for group in adamw["param_groups"]} == {(0.8, 0.9)}
    assert sorted(k for group in adamw["param_groups"] for k in group["params"]) == list(range(5))


def test_another_oracle_is_named() -> None:
    with pytest.warns(UserWarning, match=r"torch's five steps replace polar-express"):
        muon, _ = to_torch(ours(model(), polar="polar-express:5"))
    assert muon["param_groups"][0]["ns_steps"] == 5


def test_another_librarys_optimizer_is_refused() -> None:
    with pytest.raises(TypeError, match="to_torch needs an optimizer of this library, got SGD"):
        to_torch(torch.optim.SGD(model().parameters(), lr=0.1))  # type: ignore[arg-type]


@pytest.mark.parametrize("step", [1e-7, 2.5])
def test_a_count_of_steps_is_whole(step: float) -> None:
    net = model()
    optimizer = pair(net)[0]
    trained(net, [optimizer], 0, 1)
    state = optimizer.state_dict()
    state["state"][0]["step"] = torch.tensor(step)
    with pytest.raises(ValueError, match="step of a parameter in the checkpoint must be a count of steps"):
        load_foreign(ours(net, ns_steps=5), state)


@pytest.mark.parametrize(
    ("optimizer", "reason"),
    [
        (
            lambda: Muon.for_model(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Linear(8, 2)), 0.1),
            "view flatten",
        ),
        (lambda: ours(model(), adjust_lr_fn="spectral"), "it has original and match_rms_adamw"),
        (lambda: ours(model(), maximize=True), "maximize=True"),
        (lambda: LMOOptimizer([nn.Parameter(torch.eye(2))], 0.1, 0.9, ball="sign"), "ball sign"),
        (lambda: EF21Muon([nn.Parameter(torch.eye(2))]), "momenta of their own"),
    ],
)
def test_what_torch_cannot_continue_is_refused(optimizer: Any, reason: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = optimizer()
    with pytest.raises(ValueError, match=reason):
        to_torch(made)
