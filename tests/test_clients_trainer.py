"""transformers' Trainer: which of its arguments count, and what its log shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from clients import ADAMW, MUON, Model, Recipe, Run, Tokens, same
from inexact_muon.integrations.transformers import MuonFactory

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("libraries")]
SHORT = {"max_steps": 4, "warmup_steps": 1, "save_strategy": "no"}


@pytest.fixture(scope="module")
def libraries() -> None:
    for name in ("transformers", "accelerate"):
        pytest.importorskip(name, reason=f"the extra `clients` brings {name}")


def fit(folder: Path, recipe: Recipe = MUON, **more: Any) -> tuple[Run, Any]:
    from client_trainer import Trainer, Watch, arguments  # when needed: it takes seconds to import

    model = Model()
    given = arguments(folder, **{**SHORT, **more})
    hook = (recipe.factory, recipe.options)
    trainer = Trainer(model, given, train_dataset=Tokens(), optimizer_cls_and_kwargs=hook)
    run = Run(model, None)  # type: ignore[arg-type]
    trainer.add_callback(Watch(run))
    trainer.train()
    return run, trainer


@pytest.fixture(scope="module")
def usual(libraries: None, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fit(tmp_path_factory.mktemp("usual"))[0]


IGNORED = {"learning_rate": 1e-9, "weight_decay": 0.0, "adam_beta1": 0.1, "adam_epsilon": 1.0, "optim": "sgd"}
COUNTS = {
    "max_grad_norm": 0.01,
    "warmup_steps": 3,
    "lr_scheduler_type": "constant",
    "gradient_accumulation_steps": 1,
    "bf16": True,
}


@pytest.mark.parametrize("argument", IGNORED)
def test_these_arguments_have_no_effect(argument: str, usual: Run, tmp_path: Path) -> None:
    other, _ = fit(tmp_path, **{argument: IGNORED[argument]})
    same(other.result, usual.result)


@pytest.mark.parametrize("argument", COUNTS)
def test_these_arguments_count(argument: str, usual: Run, tmp_path: Path) -> None:
    other, _ = fit(tmp_path, **{argument: COUNTS[argument]})
    pairs = zip(other.model.parameters(), usual.model.parameters(), strict=True)
    assert not all(torch.equal(one, two) for one, two in pairs)


@pytest.mark.parametrize("option", ["lr", "weight_decay", "adamw"])
def test_options_of_the_hook_count(option: str, usual: Run, tmp_path: Path) -> None:
    changed = {"lr": 0.01, "weight_decay": 3.0, "adamw": {"lr": 1e-2}}[option]
    other, _ = fit(tmp_path, Recipe(MuonFactory, {**MUON.options, option: changed}))
    pairs = zip(other.model.parameters(), usual.model.parameters(), strict=True)
    assert not all(torch.equal(one, two) for one, two in pairs)


RELATIVE = {
    "cosine_with_min_lr": {"min_lr_rate": 0.1},
    "polynomial": {"lr_end": 1e-4},
    "warmup_stable_decay": {"num_decay_steps": 2},
    "inverse_sqrt": {},
}


@pytest.mark.parametrize("kind", RELATIVE)
def test_a_schedule_multiplies_the_rate_of_every_group(kind: str, tmp_path: Path) -> None:
    run, _ = fit(tmp_path, lr_scheduler_type=kind, lr_scheduler_kwargs=RELATIVE[kind])
    start = [group["initial_lr"] for group in run.optimizer.param_groups]
    assert len(set(start)) == 2
    for rates in run.rates[1:]:
        factors = [rate / first for rate, first in zip(rates, start, strict=True)]
        assert factors == pytest.approx([factors[0]] * len(factors), rel=1e-12)
        assert factors[0] > 0.0


def test_the_log_shows_the_rate_of_the_first_group(tmp_path: Path) -> None:
    run, trainer = fit(tmp_path, lr_scheduler_type="constant")
    shown = [row["learning_rate"] for row in trainer.state.log_history if "learning_rate" in row]
    assert shown == [run.optimizer.param_groups[0]["lr"]] * SHORT["max_steps"]


def test_the_optimizer_is_given_in_one_way(tmp_path: Path) -> None:
    from client_trainer import Trainer, arguments

    model = Model()
    both = {"optimizers": (ADAMW.build(model), None), "optimizer_cls_and_kwargs": (MuonFactory, MUON.options)}
    with pytest.raises(RuntimeError, match="incompatible"):
        Trainer(model, arguments(tmp_path), train_dataset=Tokens(), **both)


def test_a_missing_rate_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="MuonFactory needs 'lr'"):
        fit(tmp_path, Recipe(MuonFactory, {}))
