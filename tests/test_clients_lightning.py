"""Lightning: what its monitor of learning rates shows, and steps by hand."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

lightning = pytest.importorskip("lightning", reason="the extra `clients` brings lightning")

from client_lightning import Module, train  # noqa: E402
from clients import BATCH, CLIP, LIGHTNING_WARNS, MUON, Batch, Tokens, moved  # noqa: E402

pytestmark = [pytest.mark.slow, *LIGHTNING_WARNS]


def test_the_monitor_has_a_curve_for_every_group(tmp_path: Path) -> None:
    run = train(MUON, "cosine", tmp_path)
    with next(tmp_path.rglob("metrics.csv")).open() as file:
        rows = list(csv.DictReader(file))
    names = [group["name"] for group in run.optimizer.param_groups]
    assert len(set(names)) == len(names) > 1
    assert {key for key in rows[0] if key.startswith("lr-")} == {f"lr-Muon/{name}" for name in names}
    for k, name in enumerate(names):
        curve = {int(row["step"]): float(row[f"lr-Muon/{name}"]) for row in rows}
        assert curve == {step: rates[k] for step, rates in enumerate(run.rates)}, name


class Manual(Module):
    """Steps by hand, through the wrapper that `self.optimizers()` returns."""

    automatic_optimization = False

    def training_step(self, batch: Batch, index: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.model(**batch)["loss"])
        self.clip_gradients(optimizer, gradient_clip_val=CLIP, gradient_clip_algorithm="norm")
        optimizer.step()
        self.lr_schedulers().step()


def test_manual_optimisation_steps(tmp_path: Path) -> None:
    module = Manual(MUON, "cosine")
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(
        accelerator="cpu", max_steps=3, default_root_dir=tmp_path, enable_checkpointing=False, **quiet
    )
    trainer.fit(module, DataLoader(Tokens(), BATCH))
    assert len(module.run.rates) == 3
    assert moved(module.model) == set(dict(module.model.named_parameters()))
