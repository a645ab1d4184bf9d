"""The lab studies what the library ships: one set of defaults, and studies that say what they need."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import UNSET
from torch import nn

from inexact_muon import defaults, optim, polar
from inexact_muon_lab.spec import spec, study

ROOT = Path(__file__).parents[1]
STUDIES = sorted(path for path in (ROOT / "studies").glob("*/*.toml") if path.stem != "declared")
NAMES = {"scale": "adjust_lr_fn"}


def default(field: str) -> Any:
    """What `Muon.for_model`, or else `Muon`, takes if nothing is said."""
    name = NAMES.get(field, field)
    if name == "betas":
        group = optim.Muon([{"params": [nn.Parameter(torch.ones(2))], "algorithm": "adamw"}]).param_groups[0]
        return group["momentum"], group["beta2"]
    for function in (optim.Muon.for_model, optim.Muon, optim.LMOOptimizer):
        parameter = inspect.signature(function).parameters.get(name)
        if parameter is not None and parameter.default is not inspect.Parameter.empty:
            return parameter.default
    raise KeyError(field)


@pytest.mark.parametrize("field", ["momentum", "nesterov", "weight_decay", "polar", "betas"])
def test_a_default_of_the_lab_is_the_library_s(field: str) -> None:
    assert getattr(spec.MuonSpec(), field) == default(field)


def test_scale_and_the_step_size_of_adamw_are_the_library_s() -> None:
    model = nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 3), nn.Linear(3, 4))
    made = optim.Muon.for_model(model, 0.02)
    rates = {float(group["lr"]) for group in made.param_groups if group["algorithm"] == "adamw"}
    assert rates == {defaults.ADAMW_LR} == {spec.MuonSpec().adamw_lr}
    assert {g["scale"] for g in made.param_groups if g["algorithm"] == "lmo"} == {spec.MuonSpec().scale}


def test_the_step_size_is_the_one_that_the_readme_recommends() -> None:
    assert f"Muon.for_model(model, lr={spec.MuonSpec().lr}" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_study_names_its_oracles_and_repeats_the_paper_without_decay(path: Path) -> None:
    for run in study.load(path).runs:
        if isinstance(run.optimizer, spec.MuonSpec):
            if path.parent.name == "first-hour":  # the default as users get it; repeat the study if it changes
                chosen = {str(polar.Auto().at(96, m)) for m in (96, 384)}
                assert (run.optimizer.polar, chosen) == ("auto", {"zolotarev(poles=1, polish=9)"})
            else:
                assert not run.optimizer.polar.startswith("auto")
            independent = run.optimizer.decay is not UNSET  # decay is what such a study is about
            # those of other folders have the defaults of the library
            if path.parent.name not in ("defaults", "reference", "maps", "first-hour") and not independent:
                assert (run.optimizer.weight_decay, run.optimizer.adamw_lr) == (0.0, 0.003)
