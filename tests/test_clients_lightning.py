"""Lightning: what its monitor of learning rates shows, and steps by hand."""

from __future__ import annotations

import csv
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from clients import BATCH, LIGHTNING_WARNS, MUON, Tokens, moved

pytestmark = [pytest.mark.slow, *LIGHTNING_WARNS]


@pytest.fixture(scope="module")
def client() -> Any:
    """Imported when it is needed: it takes seconds, also where these tests are only collected."""
    pytest.importorskip("lightning", reason="the extra `clients` brings lightning")
    return import_module("client_lightning")


def test_the_monitor_has_a_curve_for_every_group(client: Any, tmp_path: Path) -> None:
    run = client.train(MUON, "cosine", tmp_path)
    with next(tmp_path.rglob("metrics.csv")).open() as file:
        rows = list(csv.DictReader(file))
    names = [group["name"] for group in run.optimizer.param_groups]
    assert len(set(names)) == len(names) > 1
    assert {key for key in rows[0] if key.startswith("lr-")} == {f"lr-Muon/{name}" for name in names}
    for k, name in enumerate(names):
        curve = {int(row["step"]): float(row[f"lr-Muon/{name}"]) for row in rows}
        assert curve == {step: rates[k] for step, rates in enumerate(run.rates)}, name


def test_manual_optimisation_steps(client: Any, tmp_path: Path) -> None:
    module = client.Manual(MUON, "cosine")
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = client.lightning.Trainer(
        accelerator="cpu", max_steps=3, default_root_dir=tmp_path, enable_checkpointing=False, **quiet
    )
    trainer.fit(module, DataLoader(Tokens(), BATCH))
    assert len(module.run.rates) == 3
    assert moved(module.model) == set(dict(module.model.named_parameters()))
