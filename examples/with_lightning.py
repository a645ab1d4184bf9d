"""Lightning: `configure_optimizers` returns one optimizer and its schedule; training stops and goes on.

pip install 'inexact-muon[clients]'
"""

import tempfile
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from inexact_muon import Muon

EPOCHS = 8


class Regression(lightning.LightningModule):
    """A network that learns the product of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
        self.losses: list[float] = []

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        """The loss of a batch."""
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> dict[str, Any]:
        """One optimizer for matrices and the rest, so automatic optimisation and one schedule do."""
        optimizer = Muon.for_model(self, lr=0.02, adamw={"lr": 3e-3}, weight_decay=0.0)
        highest = [group["lr"] for group in optimizer.param_groups]
        total = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, highest, total_steps=total + 1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def fit(folder: Path, resume: str | None = None) -> Regression:
    """A new module and a new Trainer, as a new process would make them."""
    lightning.seed_everything(0, verbose=False)
    inputs = torch.randn(512, 16)
    loader = DataLoader(TensorDataset(inputs, inputs[:, :1] * inputs[:, 1:2]), batch_size=32)
    module = Regression()
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        accelerator="cpu",
        callbacks=[ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1), LearningRateMonitor("step")],
        logger=CSVLogger(folder),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader, ckpt_path=resume)
    return module


with tempfile.TemporaryDirectory() as folder:
    whole = fit(Path(folder))
    resumed = fit(Path(folder), f"{folder}/epoch=3.ckpt")
pairs = zip(whole.parameters(), resumed.parameters(), strict=True)
assert all(torch.equal(one, other) for one, other in pairs), "the resumed run is not the same"
print(f"loss {sum(whole.losses[:16]) / 16:.4f} -> {sum(whole.losses[-16:]) / 16:.4f}")
