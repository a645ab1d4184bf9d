"""Oracles follow the policy, lr and momentum the oracle; outside a step the optimizer is as without a controller."""

import copy
import json
from typing import Any

import pytest
import torch
from torch import nn

from inexact_muon import EF21Muon, Muon, explain, polar, predict
from inexact_muon.lmo import Sign, Spectral
from inexact_muon.optim import LMOOptimizer, Scion, Split, reference_step
from inexact_muon.polar import ExactSVD, PolarExpress, Polynomial
from inexact_muon.tune import Adaptive, Budget, Control
from inexact_muon.tune.rules import DEFAULT, RULES, Factors
from matrices import matrix
from models import MODELS
from test_optim_promises import through_disk

LADDER = (PolarExpress(1), PolarExpress(2), PolarExpress(3), PolarExpress(5), PolarExpress(8))
EASY = matrix(24, 24, "orthonormal", seed=0, dtype=torch.float64)
HARD = matrix(24, 24, "log-uniform-1e-3", seed=1, dtype=torch.float64)
CONTROL = ("policy", "reference", "rule", "every")
Layers = tuple[Muon, list[nn.Parameter], Control]


def layers(twin: list[nn.Parameter] | None = None, **options: Any) -> Layers:
    params = twin or [nn.Parameter(torch.zeros(24, 24, dtype=torch.float64)) for _ in range(2)]
    asked = {key: options.pop(key) for key in CONTROL if key in options}
    named = [("easy", params[0]), ("hard", params[1])]
    optimizer = Muon(named, **{"lr": 0.1, "weight_decay": 0.0, "nesterov": False, **options})
    return optimizer, params, Control(optimizer, **asked)


def train(
    optimizer: torch.optim.Optimizer, params: list[nn.Parameter], steps: int, gradients: tuple[Any, Any] = (EASY, HARD)
) -> None:
    for _ in range(steps):
        for p, g in zip(params, gradients, strict=True):
            p.grad = g.clone()
        optimizer.step()


def chosen(control: Control) -> list[polar.PolarMethod]:
    return [control.settings[name].oracle for name in ("easy", "hard")]


def test_each_layer_gets_the_cheapest_that_is_good_enough() -> None:
    policy = Adaptive(target=1.1, every=3, candidates=LADDER)
    optimizer, params, control = layers(policy=policy)
    train(optimizer, params, 1)
    found = [LADDER.index(oracle) for oracle in chosen(control)]  # type: ignore[arg-type]
    assert found == [policy.choose((24, 24), torch.linalg.svdvals(g).numpy()) for g in (EASY, HARD)]
    assert found[0] < found[1]


def test_the_chosen_oracle_is_the_one_that_steps() -> None:
    policy = Adaptive(target=1.1, candidates=LADDER)
    optimizer, params, control = layers(policy=policy, momentum=0.0, adjust_lr_fn="none")
    train(optimizer, params, 1)
    for p, g, oracle in zip(params, (EASY, HARD), chosen(control), strict=True):
        ball = Spectral(polar=oracle)
        w, _ = reference_step(torch.zeros_like(g), None, g, lr=0.1, momentum=0.0, ball=ball)
        torch.testing.assert_close(p.detach(), w, rtol=0, atol=1e-12)
    assert [control.ball(group) for group in optimizer.param_groups] == [Spectral(polar=o) for o in chosen(control)]


def test_it_looks_again_and_keeps_a_record() -> None:
    optimizer, params, control = layers(policy=Adaptive(target=1.1, every=4, candidates=LADDER), momentum=0.0)
    looked = []
    for _ in range(4):
        train(optimizer, params, 1)
        looked.append(control.looked)
    assert looked == [True, False, False, False]
    first = chosen(control)
    train(optimizer, params, 3, (HARD, EASY))  # the next look is at the first of these
    assert chosen(control) == first[::-1]
    assert [(step, name) for step, name, _ in control.history] == [(0, "easy"), (0, "hard"), (4, "easy"), (4, "hard")]
    assert [oracle for *_, oracle in control.history] == [str(oracle) for oracle in (*first, *first[::-1])]


def plain(optimizer: Muon) -> list[dict[str, Any]]:
    """The groups without parameters and what counts."""
    return [{k: v for k, v in g.items() if k not in ("params", "turn")} for g in optimizer.param_groups]


def test_between_steps_everything_is_the_users() -> None:
    """Groups, the optimizer's checkpoint and `explain`, while a scheduler moves lr."""
    options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "polar": "polar-express:4"}
    asked = {"policy": Adaptive(target=1.1, every=2, candidates=LADDER), "reference": "jordan:5", "rule": "measured"}
    optimizer, params, control = layers(**options, **asked)
    bare, others, none = layers(**options, **asked)
    none.remove()
    schedules = [torch.optim.lr_scheduler.ExponentialLR(each, 0.9) for each in (optimizer, bare)]
    for _ in range(5):
        for each, some, schedule in zip((optimizer, bare), (params, others), schedules, strict=True):
            train(each, some, 1)
            schedule.step()
        assert plain(optimizer) == plain(bare)
        assert optimizer.state_dict()["param_groups"] == bare.state_dict()["param_groups"]
        assert [(a.lr, a.oracle) for a in explain(optimizer).lines] == [(b.lr, b.oracle) for b in explain(bare).lines]
    assert control.settings
    assert not none.settings
    assert all(set(optimizer.state[p]) == set(bare.state[q]) for p, q in zip(params, others, strict=True))
    assert not torch.equal(params[0], others[0])


def test_a_look_changes_no_bit_of_training() -> None:
    policy = Adaptive(target=1.1, every=1, candidates=(PolarExpress(5),))
    ends = []
    for asked in (None, policy):
        torch.manual_seed(0)
        model = MODELS["gpt"][0]()
        optimizer = Muon.for_model(model, 0.02, polar="polar-express:5")
        control = Control(optimizer, asked) if asked else None
        for _ in range(3):
            for p in model.parameters():
                p.grad = torch.randn_like(p)
            optimizer.step()
        assert control is None or len(control.settings) > 3
        ends.append((model.state_dict(), optimizer.state_dict()["state"]))
    assert all(torch.equal(a, b) for a, b in zip(ends[0][0].values(), ends[1][0].values(), strict=True))
    for a, b in zip(ends[0][1].values(), ends[1][1].values(), strict=True):
        assert a.keys() == b.keys()
        assert all(torch.equal(a[key], b[key]) for key in a)


def test_groups_are_taken_apart_in_order() -> None:
    model = MODELS["gpt"][0]()
    optimizer = Muon.for_model(model, 0.02)
    before = [(name, p) for name, p, _ in optimizer.named()]
    options = {
        name: {k: v for k, v in g.items() if "param" not in k and k != "name"} for name, _, g in optimizer.named()
    }
    first = [group["name"] for group in optimizer.param_groups]
    Control(optimizer, "adaptive:1.05")
    assert all(a == b and p is q for (a, p), (b, q, _) in zip(before, optimizer.named(), strict=True))
    names = [group["name"] for group in optimizer.param_groups]
    assert len(set(names)) == len(names)
    assert [name for name in names if name in first] == first  # the first of each keeps the name
    for name, _, group in optimizer.named():
        assert {k: v for k, v in group.items() if "param" not in k and k != "name"} == options[name]
        assert len(group["params"]) == 1 or group["algorithm"] == "adamw"


def test_other_balls_keep_their_groups() -> None:
    some = [nn.Parameter(torch.ones(3, 4)) for _ in range(4)]
    optimizer = Scion([{"params": []}, {"params": some[:2]}, {"params": some[2:], "ball": Sign()}], lr=0.1)
    control = Control(optimizer, Adaptive(candidates=LADDER))
    assert [len(group["params"]) for group in optimizer.param_groups] == [0, 1, 1, 2]
    for p in some:
        p.grad = torch.randn(3, 4)
    optimizer.step()
    assert set(control.settings) == {"0", "1"}


def test_parameters_that_join_a_group_share_its_oracle() -> None:
    body = nn.Sequential(*(nn.Linear(24, 24, bias=False) for _ in range(4)))
    body[3].load_state_dict(body[0].state_dict())
    body[3].requires_grad_(False)
    optimizer = Muon.for_model(body, 0.02, rules=[("*", "lmo")])
    control = Control(optimizer, Adaptive(target=1.1, candidates=LADDER))
    body[3].requires_grad_(True)
    assert optimizer.add_unfrozen(body) == ["3.weight"]
    for p in body.parameters():
        p.grad = HARD.float()
    optimizer.step()
    assert list(control.settings) == ["0.weight", "1.weight", "2.weight"]
    assert control.settings["0.weight"].oracle != polar.cheapest(24, 24)
    torch.testing.assert_close(body[3].weight, body[0].weight, rtol=0, atol=1e-6)


def test_a_closure_is_called_once_and_before_the_look() -> None:
    policy = Adaptive(target=1.1, every=1, candidates=LADDER)
    ends, calls = [], []
    for closing in (False, True):
        optimizer, params, control = layers(policy=policy, momentum=0.0)

        def closure(params: list[nn.Parameter] = params) -> float:
            calls.append(torch.is_grad_enabled())
            for p, g in zip(params, (EASY, HARD), strict=True):
                p.grad = g.clone()
            return 7.0

        if closing:
            assert optimizer.step(closure) == 7.0
            assert optimizer.step(closure=closure) == 7.0
        else:
            train(optimizer, params, 2)
        ends.append(([p.detach() for p in params], chosen(control)))
    assert calls == [True, True]
    assert ends[0][1] == ends[1][1]
    assert all(torch.equal(a, b) for a, b in zip(ends[0][0], ends[1][0], strict=True))


def test_a_checkpoint_continues() -> None:
    asked = {"policy": Adaptive(target=1.1, every=5, candidates=LADDER), "reference": PolarExpress(8)}
    straight, params, _ = layers(**asked)
    train(straight, params, 9)
    first, twin, control = layers(**asked)
    train(first, twin, 7)
    second, _, other = layers(twin, **asked)
    second.load_state_dict(through_disk(first.state_dict()))
    other.load_state_dict(json.loads(json.dumps(control.state_dict())))
    assert other.settings == control.settings
    train(second, twin, 2)
    assert all(torch.equal(a, b) for a, b in zip(params, twin, strict=True))


def test_a_checkpoint_without_its_controller_applies_nothing() -> None:
    options = {"polar": "polar-express:2", "momentum": 0.9}
    first, twin, _ = layers(**options, reference=ExactSVD(), policy=Budget(flops=1e9, candidates=LADDER))
    train(first, twin, 3)
    saved = first.state_dict()
    for old in ({}, {"choice": 0, "lr_factor": 3.0, "alpha_factor": 0.5}):  # in a parameter's state until now
        params = [nn.Parameter(p.detach().clone()) for p in twin]
        optimizer = Muon([("easy", params[0]), ("hard", params[1])], 0.1, 0.0, nesterov=False, **options)  # type: ignore[arg-type]
        optimizer.load_state_dict({**saved, "state": {key: {**row, **old} for key, row in saved["state"].items()}})
        before = [p.detach().clone() for p in params]
        buffers = [optimizer.state[p]["momentum_buffer"].clone() for p in params]
        train(optimizer, params, 1)
        for p, w, m, g in zip(params, before, buffers, (EASY, HARD), strict=True):
            expected, _ = reference_step(w, m, g, lr=0.1, momentum=0.9, ball=Spectral(polar=PolarExpress(2)))
            torch.testing.assert_close(p.detach(), expected, rtol=0, atol=1e-12)


def test_candidates_in_another_order_keep_their_meaning() -> None:
    first, twin, control = layers(policy=Adaptive(target=1.1, every=50, candidates=LADDER))
    train(first, twin, 2)
    second, _, other = layers(twin, policy=Adaptive(target=1.1, every=50, candidates=LADDER[::-1]))
    second.load_state_dict(first.state_dict())
    other.load_state_dict(control.state_dict())
    train(second, twin, 1)
    assert not other.looked
    assert chosen(other) == chosen(control)
    assert not other.history


@pytest.mark.parametrize(
    "fewer",
    [
        {"policy": Adaptive(target=1.1, every=50, candidates=LADDER[:2])},
        {"policy": Budget(flops=1e9, candidates=LADDER[2:3])},
        {"reference": "polar-express:5", "polar": "polar-express:7"},
    ],
    ids=["fewer", "another", "none"],
)
def test_an_oracle_that_is_no_candidate_any_more_is_decided_anew(fewer: dict[str, Any]) -> None:
    first, twin, control = layers(policy=Adaptive(target=1.1, every=50, candidates=LADDER))
    train(first, twin, 2)
    second, _, other = layers(twin, **fewer)
    with pytest.warns(UserWarning, match=r"is decided anew for .*hard \(polar-express"):
        other.load_state_dict(control.state_dict())
    assert "hard" not in other.settings
    train(second, twin, 1)
    assert other.looked
    possible = other.policy.candidates if other.policy else (PolarExpress(7),)
    assert set(chosen(other)) <= set(possible)


def test_factors_of_another_reference_or_rule_are_decided_anew() -> None:
    first, twin, control = layers(polar="polar-express:2", reference="polar-express:5")
    train(first, twin, 1)
    for asked in ({"reference": "polar-express:8"}, {"reference": "polar-express:5", "rule": "measured"}):
        second, _, other = layers(twin, polar="polar-express:2", **asked)
        with pytest.warns(UserWarning, match="decided anew"):
            other.load_state_dict(control.state_dict())
        train(second, twin, 1)
        fresh, params, expected = layers(polar="polar-express:2", **asked)
        train(fresh, params, 1)
        assert [other.settings[k].factors for k in ("easy", "hard")] == [
            pytest.approx(expected.settings[k].factors, rel=1e-6) for k in ("easy", "hard")
        ]


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"layers": 3},
        {"due": False, "rule": "descent", "reference": None, "layers": {"easy": {}}},
        {"due": 0, "rule": "descent", "reference": None, "layers": {"easy": {"oracle": 1, "lr": None, "alpha": None}}},
        {"due": 0, "rule": "descent", "reference": None, "layers": {"easy": {"oracle": "", "lr": -1.0, "alpha": 1.0}}},
        {"due": 0, "rule": "descent", "reference": None, "layers": {"easy": {"oracle": "", "lr": "nan", "alpha": 1}}},
    ],
    ids=str,
)
def test_what_is_no_state_is_refused(state: dict[str, Any]) -> None:
    _, _, control = layers(policy="adaptive:1.1")
    with pytest.raises(ValueError, match="this is not a controller's state"):
        control.load_state_dict(state)
    assert not control.settings


def test_a_budget_is_kept_and_goes_to_the_layer_that_needs_it() -> None:
    flops = LADDER[0].flops(24, 24) + LADDER[4].flops(24, 24)
    for weighted in (False, True):
        policy = Budget(flops=flops, every=5, candidates=LADDER, weighted=weighted)
        optimizer, params, control = layers(policy=policy)
        train(optimizer, params, 2)
        easy, hard = (oracle.flops(24, 24) for oracle in chosen(control))
        assert easy + hard <= flops
        assert weighted or easy < hard


def test_a_budget_too_small_is_said() -> None:
    optimizer, params, control = layers(policy="budget(flops=10.0)")
    with pytest.raises(ValueError, match="budget 10 is below"):
        train(optimizer, params, 1)
    assert not any(p.detach().any() for p in params)
    assert not control.settings


def test_a_step_that_raises_leaves_the_users_values() -> None:
    optimizer, params, control = layers(polar="polar-express:2", reference=ExactSVD(), on_nonfinite="raise")
    train(optimizer, params, 1)
    with pytest.raises(ValueError, match="not finite"):
        train(optimizer, params, 1, (EASY, HARD + torch.nan))
    assert {group["lr"] for group in optimizer.state_dict()["param_groups"]} == {0.1}
    train(optimizer, params, 1)
    control.remove()
    assert {group["lr"] for group in optimizer.param_groups} == {0.1}


@pytest.mark.parametrize("rule", RULES)
def test_lr_and_momentum_follow_the_oracle(rule: str) -> None:
    """One look: the factors of the rule on the layer's own singular values, then the step with them."""
    source, target = PolarExpress(5), PolarExpress(2)
    options = {"polar": target, "momentum": 0.9, "adjust_lr_fn": "none", "weight_decay": 0.3}
    optimizer, params, control = layers(reference=source, rule=rule, **options)
    train(optimizer, params, 3)
    for name, p, g in zip(("easy", "hard"), params, (EASY, HARD), strict=True):
        values = torch.linalg.svdvals(g).numpy()
        lr, alpha = RULES[rule](predict(source, values), predict(target, values))
        assert control.settings[name].factors == pytest.approx(Factors(lr, alpha))
        w, m = torch.zeros_like(g), torch.zeros_like(g)
        for _ in range(3):  # what is seen at the first look sets the factors, the first step included
            rates = {"lr": 0.1 * lr, "momentum": 1.0 - min(1.0, 0.1 * alpha), "weight_decay": 0.3 / lr}
            w, m = reference_step(w, m, g, **rates, ball=Spectral(polar=target))
        torch.testing.assert_close(p.detach(), w, rtol=0, atol=1e-10)


def test_a_learning_rate_that_is_a_tensor_stays_the_same_object() -> None:
    lr = torch.tensor(0.1, dtype=torch.float64)
    ends = []
    for rate in (lr, 0.1):
        optimizer, params, _ = layers(lr=rate, polar=PolarExpress(2), reference=PolarExpress(5))
        train(optimizer, params, 2)
        assert all(group["lr"] is rate for group in optimizer.param_groups)
        ends.append(params)
    assert float(lr) == 0.1
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=1e-12, atol=1e-12)


def test_an_oracle_of_twice_the_length_moves_the_same() -> None:
    """Scale: s d_hat gets lr/s and the same momentum, so training is the same."""
    source = Polynomial(((1.5, -0.5), (1.5, -0.5)))
    double = Polynomial(((1.5, -0.5), (3.0, -1.0)))
    ends = []
    for oracle in (source, double):
        optimizer, params, _ = layers(polar=oracle, reference=source, weight_decay=0.1)
        train(optimizer, params, 5)
        ends.append(params)
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=0, atol=1e-10)


def test_the_reference_itself_changes_nothing() -> None:
    optimizer, params, _ = layers(reference="polar-express:5")
    bare, others, control = layers(reference="polar-express:5")
    control.remove()
    for each, some in ((optimizer, params), (bare, others)):
        train(each, some, 3)
    for a, b in zip(params, others, strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=1e-12, atol=1e-12)


def test_factors_move_smoothly() -> None:
    optimizer, params, control = layers(polar=PolarExpress(2), reference=ExactSVD(), every=1, momentum=0.0)
    train(optimizer, params, 1)
    before = control.settings["easy"].factors
    train(optimizer, params, 1, (HARD, EASY))
    values, now = torch.linalg.svdvals(HARD).numpy(), control.settings["easy"].factors
    there = RULES[DEFAULT](predict(ExactSVD(), values), predict(PolarExpress(2), values)).lr
    assert before is not None
    assert now is not None
    assert now.lr == pytest.approx((before.lr * there) ** 0.5)


def test_an_oracle_chosen_by_shape_is_carried_to() -> None:
    """polar="auto" is resolved in the first step, and stays so."""
    optimizer, params, control = layers(polar="auto", reference="jordan:5")
    train(optimizer, params, 2)
    assert chosen(control) == [polar.cheapest(24, 24, 0.065, 1e-3)] * 2
    assert all("chosen" in group["ball"] for group in optimizer.param_groups)
    _, _, other = layers(params, polar="auto", reference="jordan:5")
    other.load_state_dict(control.state_dict())
    assert other.settings == control.settings


def test_parts_of_a_parameter_are_one_layer() -> None:
    p = nn.Parameter(torch.zeros(48, 24, dtype=torch.float64))
    policy = Adaptive(target=1.1, candidates=LADDER)
    optimizer = LMOOptimizer([{"params": [p], "view": Split(2)}], 0.1, 0.0, ball=Spectral())
    control = Control(optimizer, policy)
    p.grad = torch.cat((EASY, HARD))
    optimizer.step()
    alone = policy.choose((24, 24), torch.linalg.svdvals(HARD).numpy())
    assert LADDER.index(control.settings["0"].oracle) <= alone  # type: ignore[arg-type]


def test_zero_and_bad_gradients_leave_choices_alone() -> None:
    optimizer, params, control = layers(policy=Adaptive(target=1.1, every=1, candidates=LADDER))
    zero = torch.zeros(24, 24, dtype=torch.float64)
    train(optimizer, params, 1, (zero, zero + torch.nan))
    assert not control.settings
    train(optimizer, params, 1)
    assert set(control.settings) == {"easy", "hard"}


def scheduled(optimizer: Muon) -> Control:
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    return Control(optimizer, "adaptive:1.1")


def twice(optimizer: Muon) -> Control:
    Control(optimizer, "adaptive:1.1")
    return Control(optimizer, "adaptive:1.1")


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda o: Control(o), ValueError, "needs a policy, a reference oracle, or both"),
        (lambda o: Control(o, reference="polar-express:5", rule="mesured"), ValueError, "did you mean 'measured'"),
        (lambda o: Control(o, reference="polar-express:5", every=0), ValueError, "every must be an integer"),
        (lambda o: Control(o, reference=5), TypeError, "reference must be a polar method"),
        (lambda o: Control(o, policy=PolarExpress(5)), TypeError, "policy must be Adaptive, Budget or their text"),
        (lambda o: Control(o, policy="adaptive:0.9"), ValueError, "target must be above 1"),
        (lambda o: Control(o, policy="budget(flops=-1.0)"), ValueError, "flops must be positive"),
        (lambda o: Control(torch.optim.SGD(o.param_groups[0]["params"]), "adaptive:1.1"), TypeError, "got SGD"),
        (scheduled, ValueError, "attach Control before it"),
        (twice, ValueError, "has a Control already"),
        (lambda o: Muon([torch.ones(2, 2)], polar="adaptive:1.05"), ValueError, r"use tune.Control\(optimizer"),
        (lambda o: Muon([torch.ones(2, 2)], polar=Adaptive()), ValueError, r"use tune.Control\(optimizer"),
        (lambda o: Muon.for_model(nn.Linear(2, 2), 0.1, polar="budget:5e6"), ValueError, r"use tune.Control\("),
        (lambda o: Control(EF21Muon([torch.ones(2, 2)]), "adaptive:1.1"), ValueError, "do not go together"),
    ],
)
def test_what_cannot_be_is_one_sentence(make: Any, error: type[Exception], words: str) -> None:
    optimizer = Muon([nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))])
    with pytest.raises(error, match=words) as caught:
        make(optimizer)
    assert "\n" not in str(caught.value)


def test_a_copy_has_no_controller() -> None:
    optimizer, params, control = layers(policy="adaptive:1.1")
    train(optimizer, params, 1)
    twin = copy.deepcopy(optimizer)
    assert Control(twin, "adaptive:1.1") is not control


def test_by_rms_the_whole_step_is_within_the_distance_and_nothing_cheaper_is() -> None:
    policy = Adaptive(target=0.2, candidates=LADDER, by="rms")
    optimizer, params, control = layers(policy=policy, momentum=0.0)
    train(optimizer, params, 1)
    flops = [oracle.flops(24, 24) for oracle in LADDER]
    squares = [[float((oracle(g) - ExactSVD()(g)).square().sum()) for oracle in LADDER] for g in (EASY, HARD)]
    good = [(i, j) for i in range(5) for j in range(5) if squares[0][i] + squares[1][j] <= 0.2**2 * 48]
    best = min(good, key=lambda pair: (flops[pair[0]] + flops[pair[1]], squares[0][pair[0]] + squares[1][pair[1]]))
    assert chosen(control) == [LADDER[k] for k in best]
    assert best[0] != best[1]


def test_a_budget_by_rms_leaves_the_least_distance_of_the_whole_step() -> None:
    flops = [oracle.flops(24, 24) for oracle in LADDER]
    budget = flops[1] + flops[3]
    optimizer, params, control = layers(policy=Budget(flops=budget, candidates=LADDER, by="rms"), momentum=0.0)
    train(optimizer, params, 1)
    exact = [ExactSVD()(g) for g in (EASY, HARD)]
    squares = [
        [float((oracle(g) - x).square().sum()) for oracle in LADDER] for g, x in zip((EASY, HARD), exact, strict=True)
    ]
    pairs = [(i, j) for i in range(5) for j in range(5) if flops[i] + flops[j] <= budget]
    best = min(pairs, key=lambda pair: squares[0][pair[0]] + squares[1][pair[1]])
    assert chosen(control) == [LADDER[k] for k in best]


def test_rounding_is_no_direction_to_be_lifted() -> None:
    thin = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
    low = (thin @ thin.mT).float()
    w = nn.Parameter(torch.zeros(24, 24))
    optimizer = Muon([w], lr=0.1, momentum=0.0)
    control = Control(optimizer, Adaptive(target=0.2, candidates=LADDER, by="rms"))
    w.grad = low.clone()
    optimizer.step()
    assert control.settings["0"].oracle != LADDER[-1]
