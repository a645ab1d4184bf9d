"""What docs/use-with.md says of other packages' arguments: translated so, the steps are theirs."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from math import sqrt
from typing import Any

import pytest
import torch
from torch import Tensor

from inexact_muon import Muon, polar
from torchvision_stub import import_timm

SHAPES = [(24, 16), (16, 40)]
STEPS = 5
SAME = {"lr": 0.02, "momentum": 0.9}


def walked(make: Callable[[list[torch.nn.Parameter]], Any]) -> list[Tensor]:
    """How far each matrix is from its start after a few steps with the same gradients."""
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=generator) for shape in SHAPES]
    weights = [torch.nn.Parameter(w.clone()) for w in start]
    optimizer = make(weights)
    for _ in range(STEPS):
        for w in weights:
            w.grad = torch.randn(w.shape, generator=generator)
        optimizer.step()
    return [w.detach() - w0 for w, w0 in zip(weights, start, strict=True)]


def agree(theirs: list[Tensor], ours: list[Tensor], tolerance: float) -> None:
    for one, other in zip(theirs, ours, strict=True):
        assert (one - other).norm() < tolerance * one.norm()


class Dion:
    """dion's Muon in equations: M = mu M + G; W -= lr sqrt(out/in) polar(M), or of mu M + G with Nesterov."""

    def __init__(self, weights: list[torch.nn.Parameter], nesterov: bool, adjust: Callable[[int, int], float]) -> None:
        self.weights, self.nesterov, self.adjust = weights, nesterov, adjust
        self.sums = [torch.zeros_like(w) for w in weights]

    @torch.no_grad()
    def step(self) -> None:
        for w, m in zip(self.weights, self.sums, strict=True):
            m.mul_(SAME["momentum"]).add_(w.grad)
            seen = SAME["momentum"] * m + w.grad if self.nesterov else m
            w.mul_(1.0 - SAME["lr"] * 0.01)
            w.sub_(SAME["lr"] * self.adjust(*w.shape) * polar.PolarExpress(5)(seen))


ADJUST: dict[str, tuple[str, Callable[[int, int], float]]] = {
    "spectral_norm": ("spectral", lambda out, into: sqrt(out / into)),
    "rms_norm": ("match_rms_adamw", lambda out, into: 0.2 * sqrt(max(out, into))),
    "None": ("none", lambda out, into: 1.0),
}
"""dion's adjust_lr -> our adjust_lr_fn, and the factor."""


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("adjust", ADJUST)
def test_dion(adjust: str, nesterov: bool) -> None:
    name, factor = ADJUST[adjust]
    options = {"weight_decay": 0.01, "nesterov": nesterov, "adjust_lr_fn": name, **SAME}
    ours = walked(lambda weights: Muon(weights, polar=polar.PolarExpress(5), **options))
    agree(walked(lambda weights: Dion(weights, nesterov, factor)), ours, 1e-4)


TIMM: dict[str, tuple[dict[str, Any], dict[str, Any], float]] = {
    "as it comes": ({}, {"nesterov": False, "polar": polar.You(5), "adjust_lr_fn": "match_rms_adamw"}, 0.02),
    "nesterov, original": (
        {"nesterov": True, "ns_coefficients": "original", "adjust_lr_fn": "original"},
        {"nesterov": True, "polar": polar.Jordan(5), "adjust_lr_fn": "original"},
        0.02,
    ),
    "polar express, rms to rms": (
        {"ns_coefficients": "polar_express", "adjust_lr_fn": "rms_to_rms", "weight_decay": 0.5},
        {"nesterov": False, "polar": polar.PolarExpress(5), "adjust_lr_fn": "spectral", "weight_decay": 0.5},
        0.05,
    ),
}
"""timm's options, ours, and how near they are: theirs iterates in bfloat16, and cuts a list made for eight steps."""


@pytest.mark.slow
@pytest.mark.parametrize("case", TIMM)
def test_timm(case: str) -> None:
    if find_spec("timm") is None:
        pytest.skip("timm is not installed: the set-up of the Makefile brings it")
    import_timm()
    given, here, tolerance = TIMM[case]
    theirs = walked(lambda weights: import_module("timm.optim.muon").Muon(weights, **SAME, **given))
    ours = walked(lambda weights: Muon(weights, **{"weight_decay": 0.0, **SAME, **here}))
    agree(theirs, ours, tolerance)


def test_kellerjordan() -> None:
    muon = pytest.importorskip("muon", reason="muon-optimizer is not installed: the extra `peers` brings it")
    theirs = walked(lambda weights: muon.SingleDeviceMuon(weights, weight_decay=0.1, **SAME))
    agree(theirs, walked(lambda weights: Muon(weights, weight_decay=0.1, ns_steps=5, **SAME)), 0.02)
