"""Presets are the published formulas, written out for one parameter; the options of torch's optimizers are accepted."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from inexact_muon import Muon, lmo
from inexact_muon.optim import AdaMuon, Hyperball, Muon2, NorMuon

ORACLE = "polar-express(dtype=float64)"
polar: Callable[[Tensor], Tensor] = lmo.parse(f"spectral(polar={ORACLE})").polar  # type: ignore[attr-defined]
LR, DECAY, MU, STEPS = 0.03, 0.2, 0.9, 5


def problem(shape: tuple[int, int]) -> tuple[Tensor, list[Tensor]]:
    generator = torch.Generator().manual_seed(sum(shape))
    draw = lambda: torch.randn(shape, generator=generator, dtype=torch.float64)  # noqa: E731
    return draw(), [draw() for _ in range(STEPS)]


def normuon_paper(w: Tensor, gradients: list[Tensor]) -> Tensor:
    """arXiv 2510.05491, Algorithm 1."""
    m, v = torch.zeros_like(w), torch.zeros(len(w), 1, dtype=w.dtype)
    for g in gradients:
        m = MU * m + (1 - MU) * g
        o = polar(m)
        v = 0.95 * v + 0.05 * (o * o).mean(1, keepdim=True)
        hat = o / (v.sqrt() + 1e-8)
        w = w - LR * DECAY * w - LR * 0.2 * sqrt(w.numel()) * hat / hat.norm()
    return w


def normuon_dion(w: Tensor, gradients: list[Tensor]) -> Tensor:
    """microsoft/dion: the norm of the answer is kept, and the rate is scaled by sqrt(out / in)."""
    m, v = torch.zeros_like(w), torch.zeros(len(w), 1, dtype=w.dtype)
    for g in gradients:
        m = MU * m + (1 - MU) * g
        u = polar(m)
        v = torch.lerp(v, (u * u).mean(-1, keepdim=True), 1 - 0.95)
        hat = u / (v.sqrt() + 1e-8)
        hat = hat * (u.norm() / hat.norm())
        w = w * (1 - LR * DECAY) - LR * sqrt(w.shape[0] / w.shape[1]) * hat
    return w


def normuon_nanochat(w: Tensor, gradients: list[Tensor]) -> Tensor:
    """karpathy/nanochat without its equilibration and renormalisation of the answer, which are around the oracle.

    Nesterov, beta2 = 0.9 along the longer side, cautious decay; sqrt(max(1, out / in)) scales the decay, too.
    """
    dim = -1 if w.shape[0] >= w.shape[1] else -2
    m, v = torch.zeros_like(w), torch.zeros_like(w).mean(dim, keepdim=True)
    for g in gradients:
        m = torch.lerp(m, g, 1 - MU)
        u = polar(torch.lerp(g, m, MU))
        mean = u.square().mean(dim, keepdim=True)
        v = torch.lerp(v, mean, 0.1)
        size = v.rsqrt()
        u = u * size * (mean.sum().sqrt() / (mean * size.square()).sum().sqrt())
        rate = LR * sqrt(max(1.0, w.shape[0] / w.shape[1]))
        w = w - rate * u - rate * DECAY * w * (u * w >= 0).to(w)
    return w


def adamuon(w: Tensor, gradients: list[Tensor]) -> Tensor:
    """arXiv 2507.11005: momentum is a sum there, which sign does not see."""
    m, v = torch.zeros_like(w), torch.zeros_like(w)
    for g in gradients:
        m = MU * m + g
        o = polar(m.sign())
        v = 0.95 * v + 0.05 * o * o
        hat = o / (v.sqrt() + 1e-8)
        w = w - LR * (0.2 * sqrt(w.numel()) / hat.norm() * hat + DECAY * w)
    return w


def muon2(w: Tensor, gradients: list[Tensor]) -> Tensor:
    """arXiv 2604.09967."""
    m, v = torch.zeros_like(w), torch.zeros_like(w)
    for g in gradients:
        m, v = MU * m + (1 - MU) * g, 0.95 * v + 0.05 * g * g
        o = polar(m / (v.sqrt() + 1e-8))
        w = (1 - LR * DECAY) * w - LR * sqrt(max(1.0, w.shape[0] / w.shape[1])) * o
    return w


def hyperball(w: Tensor, gradients: list[Tensor]) -> Tensor:
    """arXiv 2606.16899."""
    radius, m = w.norm(), torch.zeros_like(w)
    for g in gradients:
        m = MU * m + (1 - MU) * g
        o = polar(m)
        moved = w - LR * radius * o / o.norm()
        w = radius * moved / moved.norm()
    return w


PLAIN: dict[str, Any] = {"lr": LR, "momentum": MU, "polar": ORACLE, "nesterov": False}
FORMULAS: dict[str, tuple[Callable[..., Tensor], Callable[[Any], Muon]]] = {
    "normuon, paper": (
        normuon_paper,
        lambda p: NorMuon(p, **PLAIN, weight_decay=DECAY, after="row-moment + rms:0.2", adjust_lr_fn="none"),
    ),
    "normuon, dion": (normuon_dion, lambda p: NorMuon(p, **PLAIN, weight_decay=DECAY, adjust_lr_fn="spectral")),
    "normuon, nanochat": (
        normuon_nanochat,
        lambda p: NorMuon(
            p,
            **PLAIN | {"nesterov": True},
            weight_decay=DECAY * sqrt(max(1.0, p[0].shape[0] / p[0].shape[1])),
            after="row-moment(beta2=0.9, eps=0.0, side=longer)",
            decay="cautious",
        ),
    ),
    "adamuon": (adamuon, lambda p: AdaMuon(p, **PLAIN, weight_decay=DECAY)),
    "muon2": (muon2, lambda p: Muon2(p, **PLAIN, weight_decay=DECAY)),
    "hyperball": (hyperball, lambda p: Hyperball(p, **PLAIN)),
}


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("shape", [(9, 5), (5, 9)])
def test_a_preset_is_the_published_formula(name: str, shape: tuple[int, int]) -> None:
    formula, make = FORMULAS[name]
    start, gradients = problem(shape)
    weight = nn.Parameter(start.clone())
    optimizer = make([weight])
    for g in gradients:
        weight.grad = g.clone()
        optimizer.step()
    assert float((weight.detach() - formula(start, gradients)).abs().max()) <= 1e-12


def test_defaults_of_the_presets() -> None:
    weight = nn.Parameter(torch.eye(3))
    groups = {cls: cls([weight]).param_groups[0] for cls in (NorMuon, AdaMuon, Muon2, Hyperball)}
    assert groups[NorMuon]["after"] == "row-moment(beta2=0.95, eps=1e-08, side=rows)"
    assert groups[AdaMuon]["before"] == "sign()"
    assert groups[AdaMuon]["after"] == "entry-moment(beta2=0.95, eps=1e-08) + rms(value=0.2)"
    assert (groups[AdaMuon]["scale"], groups[AdaMuon]["nesterov"]) == ("none", False)
    assert groups[Muon2]["before"] == "second-moment(beta2=0.95, eps=1e-08)"
    assert (groups[Hyperball]["fixed_norm"], groups[Hyperball]["weight_decay"]) == (True, 0.0)


@pytest.mark.parametrize("cls", [NorMuon, AdaMuon, Muon2, Hyperball])
def test_presets_route_a_model(cls: type[Muon]) -> None:
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 3))
    optimizer = cls.for_model(model, 0.02)
    model(torch.randn(4, 6)).square().mean().backward()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.step()
    assert all(not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    stages = {group["algorithm"]: (group["before"], group["after"]) for group in optimizer.param_groups}
    assert stages["adamw"] == ("none", "none")


@pytest.mark.parametrize("options", [{"foreach": True}, {"foreach": False}, {"fused": True}, {"fused": None}])
def test_the_implementation_that_torch_would_use_has_no_effect(options: dict[str, Any]) -> None:
    start, (g, *_) = problem((4, 6))
    weights = [nn.Parameter(start.clone()) for _ in range(2)]
    for weight, more in zip(weights, ({}, options), strict=True):
        weight.grad = g.clone()
        Muon([weight], LR, **more).step()
    assert torch.equal(*weights)


def test_both_implementations_raise_as_in_torch() -> None:
    weight = nn.Parameter(torch.eye(3))
    with pytest.raises(RuntimeError) as theirs:
        torch.optim.AdamW([weight], foreach=True, fused=True)
    with pytest.raises(RuntimeError) as ours:
        Muon([weight], foreach=True, fused=True)
    assert str(ours.value) == str(theirs.value)
