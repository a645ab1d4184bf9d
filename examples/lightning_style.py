"""A module in Lightning's style: `configure_optimizers` returns one object and its schedule.

The real Lightning trains it if it is installed; otherwise the few lines of its loop that touch an optimizer do.
"""

from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from inexact_muon import Muon

REAL = find_spec("lightning") is not None
if REAL:
    import lightning

BASE: Any = lightning.LightningModule if REAL else nn.Module


class Regression(BASE):
    """What a user of Lightning writes."""

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
        """One optimizer for matrices and the rest, so one schedule and automatic optimisation."""
        optimizer = Muon.for_model(self, lr=0.02, adamw={"lr": 3e-3}, weight_decay=0.0)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)}


def fit(module: Regression, loader: DataLoader[Any], epochs: int) -> None:
    """The loop: the closure computes the gradient inside `optimizer.step`, as Lightning does."""
    configured = module.configure_optimizers()
    optimizer, schedule = configured["optimizer"], configured["lr_scheduler"]
    for _ in range(epochs):
        for index, batch in enumerate(loader):

            def closure(batch: list[torch.Tensor] = batch, index: int = index) -> torch.Tensor:
                loss = module.training_step(batch, index)
                optimizer.zero_grad()
                loss.backward()
                return loss

            optimizer.step(closure)
        schedule.step()


torch.manual_seed(0)
inputs = torch.randn(512, 16)
loader = DataLoader(TensorDataset(inputs, inputs[:, :1] * inputs[:, 1:2]), batch_size=64, shuffle=True)
module = Regression()
if REAL:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    lightning.Trainer(max_epochs=8, accelerator="cpu", **quiet).fit(module, loader)
else:
    fit(module, loader, 8)
print("lightning itself" if REAL else "the same calls in plain torch")
print(f"loss {sum(module.losses[:8]) / 8:.4f} -> {sum(module.losses[-8:]) / 8:.4f}")
