"""A run in Lightning's Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor
from torch.utils.data import DataLoader

from clients import ACCUMULATED, BATCH, CLIP, SCHEDULES, STEPS, Batch, Model, Recipe, Run, Tokens, in_groups

CUT = 4
"""The step that is saved: the end of an epoch, since Lightning does not skip what an epoch has seen."""

CLIPS_BY_GROUP = True


class Module(lightning.LightningModule):
    """What a user of Lightning writes."""

    def __init__(self, recipe: Recipe, schedule: str) -> None:
        super().__init__()
        self.model, self.recipe, self.schedule = Model(), recipe, schedule
        self.run = Run(self.model, None)  # type: ignore[arg-type]

    def training_step(self, batch: Batch, index: int) -> Tensor:
        return self.model(**batch)["loss"]

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = self.recipe.build(self)
        self.run.watch(optimizer)
        scheduler = SCHEDULES[self.schedule](optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def configure_gradient_clipping(self, optimizer: Any, *given: Any, **named: Any) -> None:
        total = torch.nn.utils.get_total_norm([p.grad for p in in_groups(optimizer) if p.grad is not None])
        self.run.norms.append(float(total))
        super().configure_gradient_clipping(optimizer, *given, **named)


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


def train(recipe: Recipe, schedule: str, folder: Path, resume: bool = False) -> Run:
    """From the start, or from what another run saved in the folder at step `CUT`."""
    module = Module(recipe, schedule)
    saver = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=CUT, save_top_k=-1)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=STEPS,
        accumulate_grad_batches=ACCUMULATED,
        gradient_clip_val=CLIP,
        callbacks=[saver, LearningRateMonitor("step")],
        logger=CSVLogger(folder, flush_logs_every_n_steps=1),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(Tokens(), BATCH), ckpt_path=str(folder / f"step={CUT}.ckpt") if resume else None)
    assert trainer.global_step == STEPS
    return module.run
