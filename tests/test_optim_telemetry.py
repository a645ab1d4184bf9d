"""What the optimizer reports is what happened, and reporting changes nothing."""

import math

import pytest
import torch
from torch import nn

from inexact_muon import Muon, Scion, explain, lmo, measure, polar
from inexact_muon.optim import LMOOptimizer, Split
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
