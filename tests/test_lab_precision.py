"""What the oracles of a run cost is counted, and a policy's choices are on record."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inexact_muon import polar
from inexact_muon.lab import curves, optimizers, problems, store
from inexact_muon.lab.errors import LabError
from inexact_muon.lab.execute import check
from inexact_muon.lab.telemetry import LMOErrors
from inexact_muon.lab.trainer import train
from inexact_muon.tune.policy import Adaptive, parse_policy
from lab_cases import OPTIMIZERS, RUNS, run_spec

SHAPES = {"qkv": ((16, 16),) * 3, "out": ((16, 16),), "up": ((64, 16),), "down": ((16, 64),)}


def flops(method: polar.PolarMethod, *layers: str) -> int:
    return sum(method.flops(*shape) for layer in layers for shape in SHAPES[layer])


def test_a_fixed_oracle_costs_its_flops_in_every_step(tmp_path: Path) -> None:
    outcome = train(run_spec({"optimizer": {"name": "muon", "polar": "jordan:3"}}), tmp_path)
    assert outcome is not None
    assert outcome.result["oracle_flops"] == 12 * flops(polar.parse("jordan:3"), *SHAPES)


@pytest.mark.parametrize("name", ["sign-sgd", "sgd", "adamw"])
def test_without_an_iterative_oracle_there_is_nothing_to_count(tmp_path: Path, name: str) -> None:
    outcome = train(run_spec({"optimizer": OPTIMIZERS[name]}), tmp_path)
    assert outcome is not None
    assert "oracle_flops" not in outcome.result


@pytest.mark.parametrize("name", ["adaptive", "budget"])
def test_choices_are_recorded_and_add_up_with_the_looks(tmp_path: Path, name: str) -> None:
    spec = run_spec(RUNS[name])
    outcome = train(spec, tmp_path)
    assert outcome is not None
    lines = [r for r in curves.results(tmp_path / store.CURVES) if r["kind"] == "choice"]
    assert {r["layer"].split(".")[-2] for r in lines if r["step"] == 1} == set(SHAPES)
    total, chosen = 0, dict[str, polar.PolarMethod]()
    for step in range(1, 13):
        chosen |= {r["layer"].split(".")[-2]: polar.parse(r["oracle"]) for r in lines if r["step"] == step}
        total += sum(flops(method, layer) for layer, method in chosen.items())
        if step in (1, 6, 11):
            total += flops(polar.ExactSVD(), *SHAPES)
    assert outcome.result["oracle_flops"] == total


def test_telemetry_asks_the_oracle_that_was_chosen() -> None:
    oracle = polar.PolarExpress(2, lower=0.1)
    policy = Adaptive(target=1.5, candidates=(oracle,))
    task = problems.build(run_spec({}))
    found = []
    for text in (str(policy), str(oracle)):
        torch.manual_seed(0)
        model = problems.build(run_spec({})).model
        options = run_spec({"optimizer": {"name": "muon", "polar": text}}).optimizer
        optimizer = optimizers.build(model, options)
        assert (optimizers.controlled(optimizer, options) is None) == (text == str(oracle))
        errors = LMOErrors(exact=True)
        errors.watch = True
        optimizer.observers.append(errors)  # type: ignore[attr-defined]
        task.loss(model, task.batch(0)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        found.append(errors.summary())
        assert found[-1]["delta"]
    assert found[0] == found[1]


def test_a_policy_that_cannot_be_read_is_one_sentence() -> None:
    with pytest.raises(LabError, match=r"optimizer.polar: adaptive: target must be above 1"):
        check(run_spec({"optimizer": {"name": "muon", "polar": "adaptive:0.9"}}))
    with pytest.raises(LabError, match=r"optimizer.polar"):
        check(run_spec({"optimizer": {"name": "scion", "polar": "adaptive:1.1"}}))
    assert isinstance(parse_policy("adaptive:1.1"), Adaptive)
