"""What the oracles of a run cost is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from inexact_muon import polar
from inexact_muon_lab.train.trainer import train
from lab_cases import OPTIMIZERS, run_spec

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
