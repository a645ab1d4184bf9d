"""The probe finds constants that are known, and schedules set what the theorems say."""

import math

import pytest
import torch
from torch import nn

from inexact_muon import Muon, lmo, polar
from inexact_muon.optim import (
    AgnosticSchedule,
    LMOOptimizer,
    MomentumSchedule,
    SmoothnessProbe,
    Split,
    View,
    constant_optimal,
)
from inexact_muon_lab import theory

BALLS = (lmo.Spectral(polar=polar.ExactSVD()), lmo.Sign(), lmo.Euclidean(), lmo.Spectral(scale="rms"))


def quadratic(
    curvature: torch.Tensor, ball: lmo.Ball, steps: int, noise: float = 0.0, view: View | str = "whole"
) -> SmoothnessProbe:
    """f(W) = 1/2 <W, H * W> entrywise: the gradient difference along a step D is H * D."""
    generator = torch.Generator().manual_seed(1)
    p = nn.Parameter(torch.randn(curvature.shape, generator=generator, dtype=torch.float64))
    optimizer = LMOOptimizer([{"params": [("w", p)], "view": view}], 0.01, 0.9, ball=ball)
    probe = SmoothnessProbe(optimizer, every=2)
    for _ in range(steps):
        draw = torch.randn(p.shape, generator=generator, dtype=torch.float64)
        p.grad = curvature * p.detach() + noise * draw
        optimizer.step()
    return probe


@pytest.mark.parametrize("ball", BALLS, ids=str)
def test_the_ratio_is_exact_where_the_curvature_is(ball: lmo.Ball) -> None:
    """H = h everywhere: ||h D||* / ||D||, which no step exceeds by the ball's own constant h max ||D||*/||D||."""
    probe = quadratic(torch.full((5, 8), 3.0, dtype=torch.float64), ball, 12)
    found = probe.estimates()["w"]
    assert found.samples == 6
    extreme = {"spectral": 5.0, "sign": 40.0, "euclidean": 1.0}[ball.name] * ball.radius((5, 8)) ** 2
    assert found.L <= 3.0 * extreme * 1.3
    assert found.L >= 3.0 * extreme * 0.3
    assert found.L0 + found.L1 > 0.0


def test_euclidean_steps_give_the_curvature() -> None:
    probe = quadratic(torch.full((4, 4), 2.5, dtype=torch.float64), lmo.Euclidean(), 6)
    assert probe.estimates()["w"].L == pytest.approx(2.5)
    assert probe.estimates()["w"].sigma < 0.5


def test_growing_curvature_is_seen_as_l1() -> None:
    """f = sum cosh(W): |f''| = |cosh| = sqrt(1 + g^2), so that L_k grows with the gradient."""
    p = nn.Parameter(torch.full((1, 1), 4.0, dtype=torch.float64))
    optimizer = LMOOptimizer([p], 0.05, 0.0, ball=lmo.Euclidean())
    probe = SmoothnessProbe(optimizer, every=2)
    for _ in range(80):
        p.grad = torch.sinh(p.detach())
        optimizer.step()
    found = probe.estimates()["0"]
    assert found.L1 == pytest.approx(1.0, rel=0.1)
    assert found.L0 < 1.0


def test_the_noise_level() -> None:
    """At rest (curvature 0): sigma = noise * sqrt(entries)."""
    probe = quadratic(torch.zeros(20, 30, dtype=torch.float64), lmo.Euclidean(), 100, noise=0.1)
    assert probe.estimates()["w"].sigma == pytest.approx(0.1 * math.sqrt(600), rel=0.15)


def test_parts_of_a_parameter_count_as_one_point() -> None:
    probe = quadratic(torch.ones(6, 4, dtype=torch.float64), lmo.Euclidean(), 4, view=Split(3))
    assert probe.estimates()["w"].L == pytest.approx(3.0)  # sum of three parts over the largest


def test_large_layers_are_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a Krylov space and the oracle instead of decompositions: within a few percent, from below."""
    from inexact_muon_lab.experiments import smoothness as module

    curvature = 1.0 + torch.rand(40, 60, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    exact = quadratic(curvature, lmo.Spectral(polar=polar.Zolotarev(3)), 8).estimates()["w"]
    monkeypatch.setattr(module, "EXACT", 0)
    rough = quadratic(curvature, lmo.Spectral(polar=polar.Zolotarev(3)), 8).estimates()["w"]
    assert rough.L == pytest.approx(exact.L, rel=0.05)


def test_probing_changes_nothing_and_can_be_stopped() -> None:
    ends = []
    for watched in (False, True):
        p = nn.Parameter(torch.ones(4, 6))
        optimizer = Muon([p])
        probe = SmoothnessProbe(optimizer, every=2) if watched else None
        for k in range(6):
            p.grad = torch.randn(4, 6, generator=torch.Generator().manual_seed(k))
            optimizer.step()
            if probe is not None and k == 3:
                probe.remove()
        ends.append(p.detach())
    assert torch.equal(*ends)
    assert probe is not None
    assert probe.estimates()["0"].samples == 2


@pytest.mark.parametrize("ball", [lmo.Spectral(), lmo.Sign(), lmo.Nuclear()], ids=str)
@pytest.mark.parametrize("bad", [0, 1, 2, 3])
def test_a_gradient_that_is_not_finite_is_left_out(ball: lmo.Ball, bad: int) -> None:
    """The optimizer skips such a step; the probe says nothing about it and goes on with the next pair."""
    p = nn.Parameter(torch.ones(4, 6))
    optimizer = LMOOptimizer([p], 0.01, 0.9, ball=ball)
    probe = SmoothnessProbe(optimizer, every=2)
    for k in range(6):
        p.grad = torch.randn(4, 6, generator=torch.Generator().manual_seed(k))
        if k == bad:
            p.grad[1, 2] = torch.nan if k % 2 else torch.inf
        optimizer.step()
    found = probe.estimates()["0"]
    assert found.samples == 2
    assert all(math.isfinite(x) for x in (found.L, found.L0, found.L1, found.sigma))


@pytest.mark.parametrize("every", [0, 1, True, 2.0])
def test_bad_rhythm(every: object) -> None:
    with pytest.raises(ValueError, match="every must be an integer of at least 2"):
        SmoothnessProbe(Muon([nn.Parameter(torch.ones(2, 2))]), every=every)  # type: ignore[arg-type]


def test_constant_optimal_is_the_theorems() -> None:
    calm = constant_optimal(D0=3.0, L=2.0, K=1000, delta=0.2)
    assert calm == {"lr": theory.deterministic_optimal(3.0, 2.0, 1000, 0.2).gamma, "momentum": 0.0}
    noisy = constant_optimal(D0=3.0, L=2.0, K=10**6, delta=0.2, rho_sigma=5.0)
    found = theory.stochastic_optimal(3.0, 2.0, 10**6, 5.0, 0.2)
    assert noisy == {"lr": found.gamma, "momentum": 1.0 - found.alpha}
    LMOOptimizer([nn.Parameter(torch.ones(2, 2))], ball="sign", **noisy)


def test_momentum_schedule_and_its_checkpoint() -> None:
    def made() -> tuple[Muon, MomentumSchedule]:
        optimizer = Muon([nn.Parameter(torch.ones(2, 2))], lr=0.1)
        return optimizer, MomentumSchedule(optimizer, lambda k: 0.8 + 0.1 * min(1.0, k / 4))

    optimizer, schedule = made()
    seen = []
    for _ in range(6):
        seen.append(optimizer.param_groups[0]["momentum"])
        optimizer.step()
        schedule.step()
    assert seen == pytest.approx([0.8, 0.825, 0.85, 0.875, 0.9, 0.9])
    assert optimizer.param_groups[0]["lr"] == 0.1
    other, later = made()
    later.load_state_dict(schedule.state_dict())
    other.load_state_dict(optimizer.state_dict())
    assert (later.last_epoch, other.param_groups[0]["momentum"]) == (6, 0.9)


def test_a_momentum_out_of_range_is_refused() -> None:
    optimizer = Muon([nn.Parameter(torch.ones(2, 2))])
    with pytest.raises(ValueError, match=r"momentum must lie in \[0, 1\), the schedule gave 1.5 at step 0"):
        MomentumSchedule(optimizer, lambda k: 1.5)


def test_agnostic_schedule_resumes() -> None:
    optimizer = Muon([nn.Parameter(torch.ones(2, 2))], lr=0.1, momentum=0.5)
    schedule = AgnosticSchedule(optimizer)
    for _ in range(3):
        optimizer.step()
        schedule.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 4**0.75)
    assert optimizer.param_groups[0]["momentum"] == pytest.approx(1.0 - 0.5 / 2.0)
