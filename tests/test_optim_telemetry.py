"""What the optimizer reports is what happened, and reporting changes nothing."""

import math

import pytest
import torch
from torch import nn

from inexact_muon import Muon, Scion, explain, lmo, measure, polar
from inexact_muon.optim import LMOOptimizer, Split, StepTimer, flat_stats, logging
from inexact_muon.optim.telemetry import measuring_cost, oracle_flops
from models import MODELS
from test_optim_equations import problem, train


def test_inexactness_is_that_of_the_last_sampled_answer() -> None:
    params, gradients = problem([(12, 20), (20, 12)], 1)
    optimizer = Scion(params, lr=0.1, sample_every=1)
    train(optimizer, params, gradients)
    ball = lmo.Spectral(scale="rms")
    for i, found in optimizer.inexactness().items():
        m = gradients[0][int(i)]
        expected = measure(ball, m, ball(m))
        assert found.delta == pytest.approx(expected.delta)
        assert found.gap == pytest.approx(expected.gap)
        assert found.overshoot == pytest.approx(expected.overshoot)


def test_blocks_count_as_one_point_of_the_product_ball() -> None:
    p = nn.Parameter(torch.zeros(12, 6, dtype=torch.float64))
    p.grad = torch.randn(12, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    p.grad[6:] *= 1e-3
    ball = lmo.Spectral(polar=polar.Jordan(3))
    optimizer = LMOOptimizer([{"params": [p], "view": Split(2)}], 0.1, 0.0, ball=ball, sample_every=1)
    optimizer.step()
    parts = [measure(ball, g, ball(g), exact=True) for g in p.grad.split(6)]
    duals = [float(ball.dual_norm(g)) for g in p.grad.split(6)]
    found = optimizer.inexactness()["0"]
    assert found.delta == pytest.approx(max(part.delta for part in parts))
    assert found.overshoot == pytest.approx(max(part.overshoot for part in parts))
    weighted = sum(part.gap * dual for part, dual in zip(parts, duals, strict=True)) / sum(duals)
    assert found.gap == pytest.approx(weighted)


def test_stacks_weight_the_gap_by_dual_norms() -> None:
    p = nn.Parameter(torch.zeros(2, 6, 9, dtype=torch.float64))
    p.grad = torch.randn(2, 6, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    p.grad[1] *= 1e4
    ball = lmo.Spectral(polar=polar.Jordan(2))
    optimizer = LMOOptimizer([{"params": [p], "view": "whole"}], 0.1, 0.0, ball=ball, sample_every=1)
    optimizer.step()
    heavy = measure(ball, p.grad[1], ball(p.grad[1]), exact=True)
    assert optimizer.inexactness()["0"].gap == pytest.approx(heavy.gap, abs=1e-3)


@pytest.mark.parametrize("every", [0, 1, 3])
def test_sampling_changes_nothing_and_keeps_its_rhythm(every: int) -> None:
    params, gradients = problem([(6, 9)], 7, torch.float32)
    twin = [nn.Parameter(p.detach().clone()) for p in params]
    optimizer = Muon(params, sample_every=every, sample_share=math.inf)
    seen = set()
    for step in gradients:
        train(optimizer, params, [step])
        seen |= {sample.step for sample in optimizer.telemetry.samples.values()}
    train(Muon(twin), twin, gradients)
    assert torch.equal(params[0], twin[0])
    assert seen == {0: set(), 1: set(range(1, 8)), 3: {1, 4, 7}}[every]
    if every:
        assert optimizer.inexactness()
    else:
        with pytest.warns(UserWarning, match="pass sample_every=10"):
            assert optimizer.inexactness() == {}


def test_stats() -> None:
    params, gradients = problem([(8, 8)], 2)
    gradients[0][0][0, 0] = torch.nan
    optimizer = Muon(params, lr=0.1, weight_decay=0.0, polar=polar.ExactSVD(), sample_every=1)
    train(optimizer, params, gradients)
    row = optimizer.stats()["0"]
    assert (row["lr"], row["step"], row["skipped"]) == (0.1, 1.0, 1.0)
    assert row["update_rms"] == pytest.approx(0.1 / 8**0.5)
    assert row["update_ratio"] == pytest.approx(0.1 * 8**0.5 / float(params[0].detach().norm()), rel=0.1)
    assert row["gap"] == pytest.approx(0.0, abs=1e-9)


def test_a_model_reports_every_parameter() -> None:
    make, inputs = MODELS["vit"]
    model = make()
    optimizer = Muon.for_model(model, 0.02, sample_every=10)
    model(inputs + torch.randn(inputs.shape, generator=torch.Generator().manual_seed(0))).square().mean().backward()
    optimizer.step()
    assert set(optimizer.stats()) == {name for name, _ in model.named_parameters()}
    assert {name for name, _, group in optimizer.named() if group["algorithm"] == "lmo"} == set(optimizer.inexactness())
    lines = {line.parameter: line for line in explain(optimizer).lines}
    measured, shown = optimizer.inexactness()["patch.weight"], lines["patch.weight"].inexactness
    assert shown is not None
    assert (shown.gap, shown.overshoot) == pytest.approx((measured.gap, measured.overshoot), abs=1e-4)
    assert lines["patch.bias"].inexactness is None


def test_an_oracle_that_goes_uphill_is_reported_and_not_raised() -> None:
    p = nn.Parameter(torch.zeros(4, 4, dtype=torch.float64))
    p.grad = torch.eye(4, dtype=torch.float64)
    wrong = lmo.Spectral(polar=polar.Polynomial(((-1.0, 0.1),)))
    optimizer = LMOOptimizer([p], 0.1, 0.0, ball=wrong, sample_every=1)
    optimizer.step()
    assert optimizer.inexactness()["0"].gap > 1.0
    assert optimizer.inexactness()["0"].factor == float("inf")


@pytest.mark.parametrize("bad", [-1, 2.5, True])
def test_bad_rhythm(bad: object) -> None:
    params, _ = problem([(3, 4)], 0)
    with pytest.raises(ValueError, match="sample_every must be an integer"):
        Muon(params, sample_every=bad)  # type: ignore[arg-type]


def test_parameters_take_turns_within_a_share_of_the_work() -> None:
    """The first sample is of all; then everyone comes up equally often, at a cost of the share asked for."""
    params, gradients = problem([(64, 64)] * 3 + [(64, 192)], 200, torch.float32)
    optimizer = Muon(params, sample_every=1, sample_share=2.0)
    counts, spent = [0] * 4, 0.0
    for k, step in enumerate(gradients):
        train(optimizer, params, [step])
        for i, p in enumerate(params):
            if optimizer.telemetry.samples[p].step == k + 1:
                counts[i] += 1
                spent += measuring_cost(lmo.Spectral(), p.shape) if k else 0.0
    work = sum(oracle_flops(lmo.Spectral(), p.shape) for p in params)
    assert 0.9 * 2.0 * work * 200 < spent <= 2.0 * work * 200
    assert max(counts) - min(counts) <= 1
    assert min(counts) > 3


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan])
def test_bad_share(bad: float) -> None:
    params, _ = problem([(3, 4)], 0)
    with pytest.raises(ValueError, match="sample_share must be positive"):
        Muon(params, sample_share=bad)


class Ticks:
    """A clock that the test moves."""

    now = 0.0

    def read(self) -> float:
        return self.now


class FakeEvent:
    """An event of a device whose time is that of the ticks."""

    clock: Ticks

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = self.clock.now

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: "FakeEvent") -> float:
        return 1000.0 * (end.at - self.at)


@pytest.mark.parametrize("device", ["cpu", "cuda", "xpu"])
def test_the_share_of_an_iteration_is_that_of_its_steps(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Iterations of 3 s between steps of 1 s; the first step, which may compile something, does not count."""
    ticks = Ticks()
    FakeEvent.clock = ticks
    monkeypatch.setattr(logging.time, "perf_counter", ticks.read)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    p = nn.Parameter(torch.zeros(4, 6))
    optimizer = Muon([p], lr=0.1)
    timer = StepTimer(optimizer)
    timer._events, timer._known = device == "cuda", device in ("cpu", "cuda")
    lengths = iter((100.0, 1.0, 1.0, 1.0))
    optimizer.register_step_pre_hook(lambda *_: setattr(ticks, "now", ticks.now + next(lengths)))
    assert timer.share is None
    for _ in range(3):
        p.grad = torch.ones(4, 6)
        optimizer.step()
        ticks.now += 3.0
    expected = None if device == "xpu" else 0.25
    assert timer.share == (expected if expected is None else pytest.approx(expected))
    assert flat_stats(optimizer, timer=timer).get("optimizer/time/share") == timer.share
    assert "optimizer/time/share" not in flat_stats(optimizer)
    timer.remove()
    before = len(timer._steps)
    p.grad = torch.ones(4, 6)
    optimizer.step()
    assert len(timer._steps) == before


def test_timing_changes_no_bit_of_a_step() -> None:
    ends = []
    for timed in (False, True):
        params, gradients = problem([(12, 20), (20, 12)], 3)
        optimizer = Muon(params, lr=0.1)
        timer = StepTimer(optimizer) if timed else None
        train(optimizer, params, gradients)
        ends.append([p.detach().clone() for p in params])
        assert timer is None or 0.0 < (timer.share or 0.0) <= 1.0
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
