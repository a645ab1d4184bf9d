"""Hyperball: weights and updates of fixed norm, so that only the direction of an oracle's answer matters."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inexact_muon import optim
from inexact_muon_lab.train.trainer import Training
from inexact_muon_lab.train.world import World
from lab_cases import CNN, GPT, run_spec

ALONE = World(0, 1, torch.device("cpu"))
OPTIONS = {"name": "hyperball", "lr": 0.05, "polar": "polynomial(coefficients=((1.5, -0.5, 0.0),))"}
LONGER = OPTIONS | {"polar": "polynomial(coefficients=((4.5, -1.5, 0.0),))"}


def matrices(training: Training) -> dict[str, torch.Tensor]:
    groups = [group for group in training.optimizer.param_groups if group["algorithm"] == "lmo"]
    return {
        name: p.detach().clone()
        for group in groups
        for name, p in zip(group["param_names"], group["params"], strict=True)
    }


@pytest.mark.parametrize("problem", [GPT, CNN], ids=["gpt", "cnn"])
def test_norms_of_weights_and_of_updates_are_fixed(tmp_path: Path, problem: dict[str, object]) -> None:
    training = Training(run_spec({"problem": problem, "optimizer": OPTIONS}), tmp_path, ALONE)
    first = matrices(training)
    assert first
    for _ in range(4):
        before = matrices(training)
        training.advance(lambda: False)
        for name, after in matrices(training).items():
            radius = float(first[name].norm())
            assert float(after.norm()) == pytest.approx(radius, rel=1e-5)
            # a step of length lr R from a sphere of radius R turns by at most asin(lr)
            cosine = float((after * before[name]).sum() / radius**2)
            turn = (1.0 - cosine**2) ** 0.5 / max(cosine, 1e-9)
            assert turn <= 0.05 / (1.0 - 0.05**2) ** 0.5 + 1e-3
            assert turn > 0.0
    training.close()


def test_the_length_of_an_answer_has_no_effect(tmp_path: Path) -> None:
    found = []
    for options in (OPTIONS, LONGER):
        training = Training(run_spec({"optimizer": options}), tmp_path, ALONE)
        for _ in range(3):
            training.advance(lambda: False)
        found.append(matrices(training))
        training.close()
    for name, one in found[0].items():
        assert torch.allclose(one, found[1][name], rtol=1e-3, atol=1e-5)


def test_other_parameters_get_adamw(tmp_path: Path) -> None:
    training = Training(run_spec({"optimizer": OPTIONS}), tmp_path, ALONE)
    assert isinstance(training.optimizer, optim.Muon)
    assert {group["algorithm"] for group in training.optimizer.param_groups} == {"lmo", "adamw"}
    assert all(group["weight_decay"] == 0.0 for group in training.optimizer.param_groups)
    training.close()
