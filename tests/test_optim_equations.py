"""Every optimizer does what its equations say: against the slow twin, torch.optim.Muon, and hand-written updates."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from cases import BALLS
from inexact_muon import Muon, Scion, lmo, polar
from inexact_muon.optim import (
    SCALES,
    AgnosticSchedule,
    Clipped,
    LMOOptimizer,
    Smooth,
    Steepest,
    gluon,
    normalised_sgd,
    sign_sgd,
    spectral_descent,
)
from reference_step import reference_step
from torch_features import needs_torch_muon

Problem = tuple[list[torch.nn.Parameter], list[list[torch.Tensor]]]


def problem(shapes: list[tuple[int, ...]], steps: int, dtype: torch.dtype = torch.float64) -> Problem:
    generator = torch.Generator().manual_seed(0)
    draw = lambda shape: torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)  # noqa: E731
    params = [torch.nn.Parameter(draw(shape)) for shape in shapes]
    return params, [[draw(shape) for shape in shapes] for _ in range(steps)]


def train(
    optimizer: torch.optim.Optimizer, params: list[torch.nn.Parameter], gradients: list[list[torch.Tensor]]
) -> None:
    for step in gradients:
        for p, g in zip(params, step, strict=True):
            p.grad = g.clone()
        optimizer.step()


PRESETS: dict[str, tuple[Callable[..., LMOOptimizer], dict[str, Any]]] = {
    "muon": (
        lambda p: Muon(p, lr=0.02),
        {"lr": 0.02, "momentum": 0.95, "nesterov": True, "weight_decay": 0.1, "scale": "original", "zero": True},
    ),
    "muon-plain": (
        lambda p: Muon(p, 0.1, 0.0, 0.8, False, adjust_lr_fn="match_rms_adamw"),
        {"lr": 0.1, "momentum": 0.8, "scale": "match_rms_adamw", "zero": True},
    ),
    "scion": (
        lambda p: Scion(p, lr=0.05, momentum=0.9, radius=3.0),
        {"lr": 0.05, "momentum": 0.9, "radius": 3.0, "ball": lmo.Spectral(scale="rms")},
    ),
    "scion-constrained": (
        lambda p: Scion(p, lr=0.05, momentum=0.5, ball=lmo.ColNorm(scale="rms"), radius=2.0, constrained=True),
        {"lr": 0.05, "momentum": 0.5, "radius": 2.0, "ball": lmo.ColNorm(scale="rms"), "constrained": True},
    ),
    "scion-clipped": (
        lambda p: Scion(p, lr=0.05, momentum=0.9, radius=8.0, length="clipped"),
        {"lr": 0.05, "momentum": 0.9, "radius": 8.0, "ball": lmo.Spectral(scale="rms"), "length": Clipped()},
    ),
    "spectral-descent": (
        lambda p: spectral_descent(p, 0.01, 0.9),
        {"lr": 0.01, "momentum": 0.9, "length": Steepest()},
    ),
    "gluon": (lambda p: gluon(p, 0.3, 2.0), {"lr": 1.0, "momentum": 0.0, "length": Smooth(0.3, 2.0)}),
    "core-spectral": (
        lambda p: LMOOptimizer(p, 0.1, 0.7, ball="spectral", scale="spectral"),
        {"lr": 0.1, "momentum": 0.7, "scale": "spectral"},
    ),
}


@pytest.mark.parametrize("name", PRESETS)
def test_equals_the_slow_twin(name: str) -> None:
    make, options = PRESETS[name]
    options = {"ball": lmo.Spectral(), **options}
    zero = options.pop("zero", False)
    params, gradients = problem([(6, 9), (9, 6), (5, 5)], 10)
    states = [(p.detach().clone(), torch.zeros_like(p) if zero else None) for p in params]
    train(make(params), params, gradients)
    for i, p in enumerate(params):
        w, m = states[i]
        for step in gradients:
            w, m = reference_step(w, m, step[i], **options)
        torch.testing.assert_close(p.detach(), w, rtol=0, atol=1e-12)


@pytest.mark.parametrize("ball", BALLS)
def test_every_ball_trains(ball: str) -> None:
    params, gradients = problem([(6, 9)], 5)
    w, m = params[0].detach().clone(), None
    train(LMOOptimizer(params, 0.1, 0.9, ball=BALLS[ball]), params, gradients)
    for step in gradients:
        w, m = reference_step(w, m, step[0], lr=0.1, momentum=0.9, ball=BALLS[ball])
    torch.testing.assert_close(params[0].detach(), w, rtol=0, atol=1e-12)


@needs_torch_muon
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("adjust", [None, "original", "match_rms_adamw"])
@pytest.mark.parametrize("shapes", [[(12, 20)], [(20, 12)], [(16, 16)]])
def test_parity_with_torch(nesterov: bool, adjust: str | None, shapes: list[tuple[int, ...]]) -> None:
    """Same polynomial, 50 steps, float32; torch computes it in bfloat16, which is all the difference.

    The tolerance tells another Nesterov, scale, momentum or decay (0.01 and more) and another polynomial (0.006).
    """
    ours, gradients = problem(shapes, 50, torch.float32)
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    options: dict[str, Any] = {"lr": 0.01, "momentum": 0.9, "nesterov": nesterov, "adjust_lr_fn": adjust}
    train(Muon(ours, ns_steps=5, **options), ours, gradients)
    train(torch.optim.Muon(theirs, ns_steps=5, **options), theirs, gradients)
    for a, b in zip(ours, theirs, strict=True):
        moved = (b - a).detach().norm() / b.detach().norm()
        assert float(moved) < 0.002


@needs_torch_muon
def test_parity_with_torch_in_its_own_dtype() -> None:
    """With products in bfloat16, one step: rounding, and the 1.6% by which we keep singular values below 1."""
    ours, gradients = problem([(24, 40)], 1, torch.float32)
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    oracle = polar.Jordan(5, dtype=torch.bfloat16, form="direct")
    train(Muon(ours, lr=1.0, weight_decay=0.0, polar=oracle), ours, gradients)
    train(torch.optim.Muon(theirs, lr=1.0, weight_decay=0.0), theirs, gradients)
    step = theirs[0].detach() - ours[0].detach()
    assert float(torch.linalg.matrix_norm(step, 2)) < 0.1


@pytest.mark.parametrize(
    ("make", "direction"),
    [(sign_sgd, lambda g: g.sign()), (normalised_sgd, lambda g: g / g.norm())],
    ids=["sign-sgd", "normalised-sgd"],
)
def test_hand_written_updates(
    make: Callable[..., LMOOptimizer], direction: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    params, gradients = problem([(4, 5), (7,)], 5)
    expected = [p.detach().clone() for p in params]
    train(make(params, 0.1), params, gradients)
    for step in gradients:
        for w, g in zip(expected, step, strict=True):
            w -= 0.1 * direction(g)
    for p, w in zip(params, expected, strict=True):
        torch.testing.assert_close(p.detach(), w)


def test_constrained_steps_stay_in_the_ball() -> None:
    params, gradients = problem([(6, 9)], 30)
    ball = lmo.Spectral(polar=polar.ExactSVD())
    with torch.no_grad():
        params[0] *= 2.0 / ball.norm(params[0].detach())
    train(Scion(params, lr=0.3, momentum=0.5, ball=ball, radius=2.0, constrained=True), params, gradients)
    assert float(ball.norm(params[0].detach())) <= 2.0 + 1e-9


@pytest.mark.parametrize("scale", SCALES)
def test_scale_rules(scale: str) -> None:
    expected = {
        "none": 1.0,
        "original": 2.0,
        "match_rms_adamw": 0.2 * 8**0.5,
        "spectral": 2.0,
    }[scale]
    assert SCALES[scale](8, 2) == pytest.approx(expected)
    if scale == "original":
        assert SCALES[scale](2, 8) == 1.0


def test_momentum_starts_with_the_first_gradient_or_zero() -> None:
    for init, expected in (("first-gradient", 1.0), ("zero", 0.1)):
        params, gradients = problem([(3, 4)], 1)
        optimizer = LMOOptimizer(params, 0.1, 0.9, ball="sign", momentum_init=init)
        train(optimizer, params, gradients)
        torch.testing.assert_close(optimizer.state[params[0]]["momentum_buffer"], expected * gradients[0][0])


def test_maximize_is_descent_on_the_negative() -> None:
    one, gradients = problem([(4, 6)], 4)
    other = [torch.nn.Parameter(p.detach().clone()) for p in one]
    train(Muon(one, 0.1, maximize=True), one, gradients)
    train(Muon(other, 0.1), other, [[-g for g in step] for step in gradients])
    torch.testing.assert_close(one[0].detach(), other[0].detach())


def test_it_learns() -> None:
    """A least-squares problem: Muon with a decaying step gets a hundred times closer."""
    generator = torch.Generator().manual_seed(0)
    target = torch.randn(8, 12, generator=generator)
    w = torch.nn.Parameter(torch.zeros(8, 12))
    optimizer = Muon([w], lr=0.3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 0.97**k)
    first = None
    for _ in range(200):
        optimizer.zero_grad()
        loss = (w - target).square().mean()
        loss.backward()
        first = first or float(loss.detach())
        optimizer.step()
        schedule.step()
    assert float(loss.detach()) < 0.01 * first


def test_spectral_descent_with_an_exact_oracle() -> None:
    """W - lr ||g||_nuclear U V^T, from torch's own decomposition."""
    params, gradients = problem([(5, 8)], 1)
    u, s, vh = torch.linalg.svd(gradients[0][0], full_matrices=False)
    expected = params[0].detach() - 0.1 * s.sum() * u @ vh
    train(spectral_descent(params, 0.1, polar=polar.ExactSVD()), params, gradients)
    torch.testing.assert_close(params[0].detach(), expected)


def test_clipped_steps_are_the_shorter_of_two() -> None:
    for scale, expected in ((1e-3, "steepest"), (1e3, "fixed")):
        params, gradients = problem([(5, 8)], 1)
        gradients[0][0] *= scale
        other = [torch.nn.Parameter(p.detach().clone()) for p in params]
        train(LMOOptimizer(params, 0.1, 0.0, ball="euclidean", length="clipped", radius=2.0), params, gradients)
        radius = 2.0 if expected == "fixed" else 1.0
        train(LMOOptimizer(other, 0.1, 0.0, ball="euclidean", length=expected, radius=radius), other, gradients)
        torch.testing.assert_close(params[0].detach(), other[0].detach())


def test_adaptive_step_of_the_theorem() -> None:
    """gamma = ||g||* (1-delta) / (L (1+delta)^2): on f = L/2 ||x||^2 with an exact oracle one step reaches 0."""
    w = torch.nn.Parameter(torch.tensor([3.0, -4.0], dtype=torch.float64))
    optimizer = LMOOptimizer([w], 1.0, 0.0, ball="euclidean", length=Smooth(l0=2.5))
    (2.5 / 2 * w.square().sum()).backward()
    optimizer.step()
    torch.testing.assert_close(w.detach(), torch.zeros(2, dtype=torch.float64))
    assert float(Smooth(2.0, 0.5, delta=0.1)(1.0, torch.tensor(3.0))) == pytest.approx(3 * 0.9 / (3.5 * 1.21))
    assert float(Smooth(0.0, 0.5)(1.0, torch.tensor(0.0))) == 0.0


def test_the_agnostic_schedule() -> None:
    params, gradients = problem([(4, 6)], 5)
    optimizer = Scion(params, lr=0.2, momentum=0.7)
    schedule = AgnosticSchedule(optimizer)
    for k, step in enumerate(gradients):
        group = optimizer.param_groups[0]
        assert group["lr"] == pytest.approx(0.2 / (k + 1) ** 0.75)
        assert 1 - group["momentum"] == pytest.approx(0.3 / (k + 1) ** 0.5)
        train(optimizer, params, [step])
        schedule.step()
    resumed = Scion(params, lr=0.2, momentum=0.7)
    other = AgnosticSchedule(resumed)
    resumed.load_state_dict(optimizer.state_dict())
    other.load_state_dict(schedule.state_dict())
    other.step()
    assert resumed.param_groups[0]["lr"] == pytest.approx(0.2 / 7**0.75)
    assert 1 - resumed.param_groups[0]["momentum"] == pytest.approx(0.3 / 7**0.5)
