"""Accelerate: one optimizer goes through `prepare`, with accumulation, clipping, a schedule and a checkpoint.

pip install 'inexact-muon[clients]'
"""

import tempfile

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from inexact_muon import Muon

EPOCHS, SAVED = 10, 5


def fit(folder: str, resume: bool = False) -> tuple[nn.Module, list[float]]:
    """The model and its losses; saves its state at the start of epoch `SAVED`, or goes on from there."""
    torch.manual_seed(0)
    inputs = torch.randn(512, 16)
    loader = DataLoader(TensorDataset(inputs, inputs[:, :1] * inputs[:, 1:2]), batch_size=32)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
    optimizer = Muon.for_model(model, lr=0.02, adamw={"lr": 3e-3}, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(loader) // 2)

    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    if resume:
        accelerator.load_state(folder)
    losses = []
    for epoch in range(SAVED if resume else 0, EPOCHS):
        if epoch == SAVED and not resume:
            accelerator.save_state(folder)
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    return model, losses


with tempfile.TemporaryDirectory() as folder:
    whole, losses = fit(folder)
    resumed, _ = fit(folder, resume=True)
pairs = zip(whole.parameters(), resumed.parameters(), strict=True)
assert all(torch.equal(one, other) for one, other in pairs), "the resumed run is not the same"
print(f"loss {sum(losses[:16]) / 16:.4f} -> {sum(losses[-16:]) / 16:.4f}")
