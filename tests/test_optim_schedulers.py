"""torch's schedulers write one key into every group, for both algorithms; ours set what the theorems say."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, CyclicLR, OneCycleLR

from inexact_muon import Muon
from inexact_muon.optim import AgnosticSchedule, LMOOptimizer, MomentumSchedule, constant_optimal
from inexact_muon_lab import theory
from models import MODELS


def made(**options: Any) -> Muon:
    return Muon.for_model(MODELS["gpt"][0](), 0.02, adamw={"lr": 0.001, "betas": (0.8, 0.99)}, **options)


def test_defaults_have_momentum_and_no_betas() -> None:
    optimizer = made(momentum=0.9)
    assert optimizer.defaults["momentum"] == 0.9
    assert "betas" not in optimizer.defaults
    for group in optimizer.param_groups:
        adamw = group["algorithm"] == "adamw"
        assert group["momentum"] == (0.8 if adamw else 0.9)
        assert not adamw or group["beta2"] == 0.99
        assert "betas" not in group


@pytest.mark.filterwarnings("ignore:all groups now have lr")
@pytest.mark.parametrize("kind", [OneCycleLR, CyclicLR])
def test_momentum_cycles_in_every_group(kind: Any) -> None:
    optimizer = made()
    if kind is OneCycleLR:
        scheduler = OneCycleLR(optimizer, max_lr=0.1, total_steps=20, base_momentum=0.7, max_momentum=0.9)
    else:
        scheduler = CyclicLR(optimizer, 0.01, 0.1, step_size_up=5, base_momentum=0.7, max_momentum=0.9)
    seen: list[set[float]] = [set() for _ in optimizer.param_groups]
    for _ in range(15):
        optimizer.step()
        scheduler.step()
        for values, group in zip(seen, optimizer.param_groups, strict=True):
            values.add(round(group["momentum"], 6))
    assert all(len(values) > 3 and min(values) < 0.75 and max(values) <= 0.9 for values in seen)
    assert all(group.get("beta2", 0.99) in (0.95, 0.99) for group in optimizer.param_groups)


def test_a_cycled_momentum_is_what_both_algorithms_use() -> None:
    """Against torch.optim.AdamW whose beta1 is set by hand."""
    torch.manual_seed(0)
    ours, theirs = nn.Parameter(torch.randn(5)), nn.Parameter(torch.zeros(5))
    theirs.data.copy_(ours.data)
    mine = Muon([{"params": [ours], "algorithm": "adamw", "lr": 0.01, "weight_decay": 0.0, "betas": (0.9, 0.95)}])
    reference = torch.optim.AdamW([theirs], 0.01, betas=(0.9, 0.95), weight_decay=0.0)
    assert mine.param_groups[0]["momentum"] == 0.9
    for beta in (0.9, 0.8, 0.7, 0.85):
        mine.param_groups[0]["momentum"] = beta
        reference.param_groups[0]["betas"] = (beta, 0.95)
        ours.grad = torch.randn(5)
        theirs.grad = ours.grad.clone()
        mine.step()
        reference.step()
    torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=1e-5, atol=1e-6)


def test_our_schedules_leave_adamw_alone() -> None:
    for make in (lambda o: MomentumSchedule(o, lambda k: 0.5), AgnosticSchedule):
        optimizer = made()
        scheduler = make(optimizer)
        optimizer.step()
        scheduler.step()
        for group in optimizer.param_groups:
            assert (group["momentum"] == 0.8) == (group["algorithm"] == "adamw")


def test_groups_have_unique_names() -> None:
    names = [group["name"] for group in made().param_groups]
    assert len(set(names)) == len(names) >= 2
    plain = Muon([{"params": [nn.Parameter(torch.zeros(2, 3))]} for _ in range(3)])
    assert [group["name"] for group in plain.param_groups] == ["lmo", "lmo 2", "lmo 3"]
    plain.add_param_group({"params": [nn.Parameter(torch.zeros(2, 3))], "name": "late"})
    assert plain.param_groups[-1]["name"] == "late"


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ({"betas": (0.9,)}, "betas must be two numbers"),
        ({"betas": (0.9, None)}, "betas must be two numbers"),
        ({"betas": (0.9, 1.0)}, r"betas must lie in \[0, 1\)"),
        ({"betas": (0.9, 0.95), "momentum": 0.5}, "give one of them"),
        ({"eps": float("nan")}, "eps of AdamW must be positive"),
    ],
)
def test_bad_betas(group: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Muon([{"params": [nn.Parameter(torch.zeros(3))], "algorithm": "adamw", **group}])


def test_a_scheduler_survives_a_checkpoint() -> None:
    straight, stopped = made(), made()
    schedulers = [CosineAnnealingLR(o, 10) for o in (straight, stopped)]
    for optimizer, scheduler in zip((straight, stopped), schedulers, strict=True):
        for _ in range(4):
            optimizer.step()
            scheduler.step()
    again = made()
    scheduler = CosineAnnealingLR(again, 10)
    again.load_state_dict(stopped.state_dict())
    scheduler.load_state_dict(schedulers[1].state_dict())
    for optimizer, s in ((straight, schedulers[0]), (again, scheduler)):
        optimizer.step()
        s.step()
    assert [g["lr"] for g in again.param_groups] == [g["lr"] for g in straight.param_groups]


def test_what_schedulers_store_in_groups_comes_from_the_file() -> None:
    """As in torch: the next scheduler starts at the rate of the file, not at the base of one that is gone."""
    plain = made().state_dict()
    scheduled = made()
    CosineAnnealingLR(scheduled, 10)
    for source, expected in ((plain, None), (scheduled.state_dict(), 0.02)):
        optimizer = made()
        for group in optimizer.param_groups:
            group["lr"] *= 5.0
        CosineAnnealingLR(optimizer, 10)
        optimizer.load_state_dict(source)
        assert optimizer.param_groups[0].get("initial_lr") == expected
        assert CosineAnnealingLR(optimizer, 10).base_lrs[0] == 0.02


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
