"""A loop in Accelerate's style: one optimizer goes through `prepare`, with accumulation and a schedule.

The real Accelerate runs it if it is installed; otherwise a stand-in with the same four methods does.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from inexact_muon import Muon


class Stepping:
    """An optimizer that moves only when a whole batch has been accumulated, as Accelerate's wrapper does."""

    def __init__(self, optimizer: torch.optim.Optimizer, accelerator: "StandIn") -> None:
        self.optimizer, self.accelerator = optimizer, accelerator

    def step(self) -> None:
        """One step, if it is time."""
        if self.accelerator.sync_gradients:
            self.optimizer.step()

    def zero_grad(self) -> None:
        """Forget gradients, if they were used."""
        if self.accelerator.sync_gradients:
            self.optimizer.zero_grad()


class StandIn:
    """`prepare`, `accumulate` and `backward` for one process."""

    def __init__(self, gradient_accumulation_steps: int, cpu: bool) -> None:
        self.every, self.seen, self.sync_gradients = gradient_accumulation_steps, 0, True

    def prepare(self, model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> tuple[Any, ...]:
        """Wraps what needs it."""
        return model, Stepping(optimizer, self), loader

    @contextmanager
    def accumulate(self, model: nn.Module) -> Iterator[None]:
        """Counts micro-batches."""
        self.seen += 1
        self.sync_gradients = self.seen % self.every == 0
        yield

    def backward(self, loss: torch.Tensor) -> None:
        """The gradient of a micro-batch's share."""
        (loss / self.every).backward()


REAL = find_spec("accelerate") is not None
if REAL:
    from accelerate import Accelerator
else:
    Accelerator = StandIn

torch.manual_seed(0)
inputs = torch.randn(512, 16)
loader = DataLoader(TensorDataset(inputs, inputs[:, :1] * inputs[:, 1:2]), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
optimizer = Muon.for_model(model, lr=0.02, adamw={"lr": 3e-3}, weight_decay=0.0)

accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
model, prepared, loader = accelerator.prepare(model, optimizer, loader)
losses = []
for _ in range(10):
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            prepared.step()
            prepared.zero_grad()
        losses.append(loss.item())
print("accelerate itself" if REAL else "the same calls in plain torch")
print(f"loss {sum(losses[:16]) / 16:.4f} -> {sum(losses[-16:]) / 16:.4f}")
