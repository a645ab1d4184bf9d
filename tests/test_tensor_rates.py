"""lr and momentum as tensors on the device: the same operations at each step, and the numbers of a step with floats.

Operations are those on fake CUDA tensors.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from inexact_muon.optim import AgnosticSchedule, LMOOptimizer, MomentumSchedule, finite
from inexact_muon_lab.plan.recorder import Recorder, fake_h100
from test_optim_equations import problem

SHAPES = ((6, 9), (9, 6), (6, 9), (5,))

OPTIONS: dict[str, dict[str, Any]] = {
    "muon": {"nesterov": True, "momentum_init": "zero", "weight_decay": 0.1},
    "first gradient": {"nesterov": True, "momentum_init": "first-gradient"},
    "heavy ball, first gradient": {"momentum_init": "first-gradient", "weight_decay": 0.1},
    "steepest": {"length": "steepest"},
    "maximize": {"maximize": True, "scale": "original"},
    "constrained": {"constrained": True},
}


def groups(params: list[nn.Parameter], lr: Any, momentum: Any) -> list[dict[str, Any]]:
    """Matrices for the LMO in two groups, and AdamW for the vector."""
    adamw = {"params": params[3:], "algorithm": "adamw", "lr": 0.003, "weight_decay": 0.0, "constrained": False}
    adamw |= {"length": "fixed", "scale": "none", "momentum": 0.9}
    return [
        {"params": params[:2], "lr": lr, "momentum": momentum},
        {"params": params[2:3], "lr": 0.01, "momentum": 0.8},
        adamw,
    ]


def made(params: list[nn.Parameter], lr: Any = 0.02, momentum: Any = 0.9, **options: Any) -> LMOOptimizer:
    ball = options.pop("ball", "spectral(polar-express:5)")
    return LMOOptimizer(groups(params, lr, momentum), 0.02, 0.9, ball=ball, **options)


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_consecutive_steps_are_the_same_operations(name: str, tensors: bool) -> None:
    """Names, shapes and numbers; nothing waits for the device. The first step also makes the states."""
    steps = []
    with fake_h100():
        params = [nn.Parameter(torch.empty(shape, device="cuda")) for shape in SHAPES]
        optimizer = made(params, **OPTIONS[name])
        if tensors:  # not at construction, where values are checked
            for group in optimizer.param_groups:
                group["lr"], group["momentum"] = (torch.empty((), device="cuda") for _ in range(2))
        for _ in range(4):
            for p in params:
                p.grad = torch.empty_like(p)
            with Recorder() as recorder:
                optimizer.step()
            steps.append(recorder)
    assert steps[1].operations == steps[2].operations == steps[3].operations
    assert len(steps[1].operations) > 50
    assert all(step.waits == [] for step in steps)
    assert all(step.copies == [] for step in steps[1:])


@pytest.mark.filterwarnings("ignore:all groups now have lr")
@pytest.mark.parametrize("name", OPTIONS)
def test_tensors_move_as_numbers_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """lr and momentum as tensors and as floats that change, with flags; a gradient is not finite now and then."""
    monkeypatch.setattr(finite, "HOST_READABLE", ())
    ends = []
    for tensors in (False, True):
        params, gradients = problem(list(SHAPES), 6, torch.float64)
        gradients[0][0][0, 0], gradients[3][1][2, 2], gradients[4][3][0] = torch.nan, torch.inf, torch.nan
        optimizer = made(params, **OPTIONS[name])
        if tensors:
            for group in optimizer.param_groups:
                group["lr"], group["momentum"] = (
                    torch.tensor(group[k], dtype=torch.float64) for k in ("lr", "momentum")
                )
        for k, step in enumerate(gradients):
            for group in optimizer.param_groups:
                for key, value in (("lr", 0.02 / (k + 1)), ("momentum", 0.9 - 0.1 / (k + 1))):
                    group[key] = group[key].fill_(value) if tensors else value
            for p, g in zip(params, step, strict=True):
                p.grad = g.clone()
            optimizer.step()
        ends.append([*params, *(value for p in params for value in optimizer.state[p].values())])
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("schedule", [lambda o: MomentumSchedule(o, lambda k: 0.9 - 0.1 / (k + 1)), AgnosticSchedule])
def test_schedules_write_into_the_tensors(schedule: Any) -> None:
    """The tensors stay the same ones, and the weights are those of schedules of floats."""
    ends = []
    for tensors in (False, True):
        params, gradients = problem(list(SHAPES), 7, torch.float64)
        optimizer = made(params, weight_decay=0.1)
        if tensors:
            for group in optimizer.param_groups:
                for key in ("lr", "momentum"):
                    group[key] = torch.tensor(group[key], dtype=torch.float64)
        before = [group["momentum"] for group in optimizer.param_groups]
        scheduler = schedule(optimizer)
        for step in gradients:
            for p, g in zip(params, step, strict=True):
                p.grad = g.clone()
            optimizer.step()
            scheduler.step()
        if tensors:
            assert all(group["momentum"] is x for group, x in zip(optimizer.param_groups, before, strict=True))
        ends.append([p.detach() for p in params])
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
