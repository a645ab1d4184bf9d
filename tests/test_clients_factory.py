"""MuonFactory: what the Trainer's hook calls, without transformers."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from inexact_muon import Muon
from inexact_muon.integrations.transformers import MuonFactory
from models import GPT


def test_it_builds_what_for_model_builds() -> None:
    torch.manual_seed(0)
    model = GPT()
    options: dict[str, Any] = {"lr": 0.03, "weight_decay": 0.2, "adamw": {"lr": 1e-3}, "rules": [("lm_head.*", "lmo")]}
    made, expected = MuonFactory()(model, **options), Muon.for_model(model, **options)
    assert type(made) is Muon
    assert len(made.param_groups) == len(expected.param_groups) > 1
    for group, other in zip(made.param_groups, expected.param_groups, strict=True):
        assert {**group, "params": []} == {**other, "params": []}
        assert all(p is q for p, q in zip(group["params"], other["params"], strict=True))


MISTAKES = {
    "no lr": ({}, "needs 'lr'.*TrainingArguments.learning_rate is not passed"),
    "only adamw": ({"adamw": {"lr": 1e-3}}, "needs 'lr'"),
    "the Trainer's word": ({"learning_rate": 0.02}, "no option 'learning_rate': give 'lr'"),
    "a beta": ({"lr": 0.02, "adam_beta1": 0.9}, "no option 'adam_beta1': give 'adamw'"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_one_sentence(case: str) -> None:
    options, said = MISTAKES[case]
    with pytest.raises(TypeError, match=said) as caught:
        MuonFactory()(GPT(), **options)
    assert "\n" not in str(caught.value)


def test_it_does_not_import_transformers() -> None:
    code = "import inexact_muon.integrations.transformers, sys; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
