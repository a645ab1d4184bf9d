"""Precision follows the policy, lr and momentum follow the oracle, and both survive a checkpoint."""

from typing import Any

import pytest
import torch
from torch import nn

from inexact_muon import Muon, explain, predict
from inexact_muon.lmo import Spectral
from inexact_muon.optim import LMOOptimizer, Split, reference_step
from inexact_muon.polar import ExactSVD, PolarExpress, Polynomial
from inexact_muon.tune import Adaptive, Budget
from inexact_muon.tune.rules import DEFAULT, RULES
from matrices import matrix
from test_optim_promises import through_disk

LADDER = (PolarExpress(1), PolarExpress(2), PolarExpress(3), PolarExpress(5), PolarExpress(8))
EASY = matrix(24, 24, "orthonormal", seed=0, dtype=torch.float64)
HARD = matrix(24, 24, "log-uniform-1e-3", seed=1, dtype=torch.float64)


def layers(twin: list[nn.Parameter] | None = None, **options: Any) -> tuple[Muon, list[nn.Parameter]]:
    params = twin or [nn.Parameter(torch.zeros(24, 24, dtype=torch.float64)) for _ in range(2)]
    return Muon([("easy", params[0]), ("hard", params[1])], lr=0.1, weight_decay=0.0, nesterov=False, **options), params


def train(optimizer: Muon, params: list[nn.Parameter], steps: int, gradients: tuple[Any, Any] = (EASY, HARD)) -> None:
    for _ in range(steps):
        for p, g in zip(params, gradients, strict=True):
            p.grad = g.clone()
        optimizer.step()


def test_each_layer_gets_the_cheapest_that_is_good_enough() -> None:
    policy = Adaptive(target=1.1, every=3, candidates=LADDER)
    optimizer, params = layers(polar=policy)
    train(optimizer, params, 1)
    for p, g in zip(params, (EASY, HARD), strict=True):
        values = torch.linalg.svdvals(g).numpy()
        assert optimizer.state[p]["choice"] == policy.choose((24, 24), values)
    choices = [optimizer.state[p]["choice"] for p in params]
    assert choices[0] < choices[1]
    lines = {line.parameter: line for line in explain(optimizer).lines}
    assert lines["easy"].oracle == str(LADDER[choices[0]])
    assert lines["hard"].oracle == str(LADDER[choices[1]])
    assert lines["easy"].flops < lines["hard"].flops


def test_the_chosen_oracle_is_the_one_that_steps() -> None:
    optimizer, params = layers(polar=Adaptive(target=1.1, candidates=LADDER), momentum=0.0, adjust_lr_fn="none")
    train(optimizer, params, 1)
    for p, g in zip(params, (EASY, HARD), strict=True):
        ball = Spectral(polar=LADDER[optimizer.state[p]["choice"]])
        w, _ = reference_step(torch.zeros_like(g), None, g, lr=0.1, momentum=0.0, ball=ball)
        torch.testing.assert_close(p.detach(), w, rtol=0, atol=1e-12)


def test_it_looks_again_and_remembers() -> None:
    optimizer, params = layers(polar=Adaptive(target=1.1, every=4, candidates=LADDER), momentum=0.0)
    train(optimizer, params, 4)
    first = [optimizer.state[p]["choice"] for p in params]
    train(optimizer, params, 3, (HARD, EASY))  # the next look is at the first of these
    assert [optimizer.state[p]["choice"] for p in params] == first[::-1]
    assert [(step, name) for step, name, _ in optimizer.precision.history] == [
        (0, "easy"),
        (0, "hard"),
        (4, "easy"),
        (4, "hard"),
    ]


def test_a_checkpoint_continues() -> None:
    policy = Adaptive(target=1.1, every=5, candidates=LADDER)
    straight, params = layers(polar=policy, reference=PolarExpress(8))
    train(straight, params, 9)
    first, twin = layers(polar=policy, reference=PolarExpress(8))
    train(first, twin, 7)
    second, _ = layers(twin, polar=policy, reference=PolarExpress(8))
    second.load_state_dict(through_disk(first.state_dict()))
    assert [second.state[p]["choice"] for p in twin] == [first.state[p]["choice"] for p in twin]
    train(second, twin, 2)
    assert all(torch.equal(a, b) for a, b in zip(params, twin, strict=True))


def test_a_budget_is_kept_and_goes_to_the_layer_that_needs_it() -> None:
    flops = LADDER[0].flops(24, 24) + LADDER[4].flops(24, 24)
    optimizer, params = layers(polar=Budget(flops=flops, every=5, candidates=LADDER))
    train(optimizer, params, 2)
    spent = sum(LADDER[optimizer.state[p]["choice"]].flops(24, 24) for p in params)
    assert spent <= flops
    assert optimizer.state[params[0]]["choice"] < optimizer.state[params[1]]["choice"]
    weighted, params = layers(polar=Budget(flops=flops, every=5, candidates=LADDER, weighted=True))
    train(weighted, params, 2)
    assert sum(LADDER[weighted.state[p]["choice"]].flops(24, 24) for p in params) <= flops


def test_a_budget_too_small_is_said() -> None:
    optimizer, params = layers(polar="budget(flops=10.0)")
    with pytest.raises(ValueError, match="budget 10 is below"):
        train(optimizer, params, 1)
    assert not any(p.detach().any() for p in params)


@pytest.mark.parametrize("rule", RULES)
def test_lr_and_momentum_follow_the_oracle(rule: str) -> None:
    """One look: the factors of the rule on the layer's own singular values, then the step with them."""
    source, target = PolarExpress(5), PolarExpress(2)
    optimizer, params = layers(polar=target, reference=source, rule=rule, momentum=0.9, adjust_lr_fn="none")
    train(optimizer, params, 3)
    for p, g in zip(params, (EASY, HARD), strict=True):
        values = torch.linalg.svdvals(g).numpy()
        lr, alpha = RULES[rule](predict(source, values), predict(target, values))
        state = optimizer.state[p]
        assert (state["lr_factor"], state["alpha_factor"]) == pytest.approx((lr, alpha))
        w, m = torch.zeros_like(g), torch.zeros_like(g)
        for _ in range(3):  # what is seen at the first look sets the factors, the first step included
            momentum = 1.0 - min(1.0, 0.1 * alpha)
            w, m = reference_step(w, m, g, lr=0.1 * lr, momentum=momentum, ball=Spectral(polar=target))
        torch.testing.assert_close(p.detach(), w, rtol=0, atol=1e-10)


def test_an_oracle_of_twice_the_length_moves_the_same() -> None:
    """Scale: s d_hat gets lr/s and the same momentum, so training is the same."""
    source = Polynomial(((1.5, -0.5), (1.5, -0.5)))
    double = Polynomial(((1.5, -0.5), (3.0, -1.0)))
    ends = []
    for polar in (source, double):
        optimizer, params = layers(polar=polar, reference=source)
        train(optimizer, params, 5)
        ends.append(params)
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=0, atol=1e-10)


def test_the_reference_itself_changes_nothing() -> None:
    ends = []
    for options in ({}, {"reference": "polar-express:5"}):
        optimizer, params = layers(**options)
        train(optimizer, params, 3)
        ends.append(params)
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=1e-12, atol=1e-12)


def test_factors_move_smoothly() -> None:
    optimizer, params = layers(polar=PolarExpress(2), reference=ExactSVD(), look_every=1, momentum=0.0)
    train(optimizer, params, 1)
    before = optimizer.state[params[0]]["lr_factor"]
    train(optimizer, params, 1, (HARD, EASY))
    values = torch.linalg.svdvals(HARD).numpy()
    there = RULES[DEFAULT](predict(ExactSVD(), values), predict(PolarExpress(2), values)).lr
    assert optimizer.state[params[0]]["lr_factor"] == pytest.approx((before * there) ** 0.5)


def test_parts_of_a_parameter_are_one_layer() -> None:
    p = nn.Parameter(torch.zeros(48, 24, dtype=torch.float64))
    policy = Adaptive(target=1.1, candidates=LADDER)
    optimizer = LMOOptimizer([p], 0.1, 0.0, ball=Spectral(), view=Split(2), policy=policy)
    p.grad = torch.cat((EASY, HARD))
    optimizer.step()
    alone = policy.choose((24, 24), torch.linalg.svdvals(HARD).numpy())
    assert optimizer.state[p]["choice"] <= alone


def test_zero_and_bad_gradients_leave_choices_alone() -> None:
    optimizer, params = layers(polar=Adaptive(target=1.1, every=1, candidates=LADDER))
    zero = torch.zeros(24, 24, dtype=torch.float64)
    train(optimizer, params, 1, (zero, zero + torch.nan))
    assert all("choice" not in optimizer.state[p] for p in params)
    train(optimizer, params, 1)
    assert all("choice" in optimizer.state[p] for p in params)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"reference": "polar-express:5", "rule": "mesured"}, "did you mean 'measured'"),
        ({"reference": "polar-express:5", "look_every": 0}, "look_every must be an integer of at least 1"),
        ({"polar": "adaptive:0.9"}, "target must be above 1"),
        ({"polar": "budget(flops=-1.0)"}, "flops must be positive"),
    ],
)
def test_bad_wishes(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        layers(**options)


def test_by_rms_the_whole_step_is_within_the_distance_and_nothing_cheaper_is() -> None:
    policy = Adaptive(target=0.2, candidates=LADDER, by="rms")
    optimizer, params = layers(polar=policy, momentum=0.0)
    train(optimizer, params, 1)
    flops = [oracle.flops(24, 24) for oracle in LADDER]
    squares = [[float((oracle(g) - ExactSVD()(g)).square().sum()) for oracle in LADDER] for g in (EASY, HARD)]
    good = [(i, j) for i in range(5) for j in range(5) if squares[0][i] + squares[1][j] <= 0.2**2 * 48]
    best = min(good, key=lambda pair: (flops[pair[0]] + flops[pair[1]], squares[0][pair[0]] + squares[1][pair[1]]))
    assert tuple(optimizer.state[p]["choice"] for p in params) == best
    assert best[0] != best[1]


def test_a_budget_by_rms_leaves_the_least_distance_of_the_whole_step() -> None:
    flops = [oracle.flops(24, 24) for oracle in LADDER]
    budget = flops[1] + flops[3]
    optimizer, params = layers(polar=Budget(flops=budget, candidates=LADDER, by="rms"), momentum=0.0)
    train(optimizer, params, 1)
    exact = [ExactSVD()(g) for g in (EASY, HARD)]
    squares = [
        [float((oracle(g) - x).square().sum()) for oracle in LADDER] for g, x in zip((EASY, HARD), exact, strict=True)
    ]
    pairs = [(i, j) for i in range(5) for j in range(5) if flops[i] + flops[j] <= budget]
    best = min(pairs, key=lambda pair: squares[0][pair[0]] + squares[1][pair[1]])
    assert tuple(optimizer.state[p]["choice"] for p in params) == best


def test_rounding_is_no_direction_to_be_lifted() -> None:
    thin = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
    low = (thin @ thin.mT).float()
    policy = Adaptive(target=0.2, candidates=LADDER, by="rms")
    w = nn.Parameter(torch.zeros(24, 24))
    optimizer = Muon([w], lr=0.1, momentum=0.0, polar=policy)
    w.grad = low.clone()
    optimizer.step()
    assert optimizer.state[w]["choice"] < len(LADDER) - 1
