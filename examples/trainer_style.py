"""The HF Trainer takes `optimizers=(optimizer, scheduler)`: one object, so nothing of the Trainer has to change.

The real Trainer runs it if transformers and accelerate are installed; otherwise a loop that makes the same calls, among
them the checkpoint in the middle from which a second optimizer goes on.
"""

import io
import tempfile
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from inexact_muon import Muon

REAL = find_spec("transformers") is not None and find_spec("accelerate") is not None
STEPS = 60


class Model(nn.Module):
    """A model as the Trainer wants it: labels in, a dict with the loss out."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Mean squared error."""
        return {"loss": nn.functional.mse_loss(self.net(x), labels)}


def pair(model: nn.Module) -> tuple[Muon, LambdaLR]:
    """What is handed to the Trainer: warm-up over ten steps, then linear to zero."""
    optimizer = Muon.for_model(model, lr=0.03, adamw={"lr": 3e-3}, weight_decay=0.0)
    return optimizer, LambdaLR(optimizer, lambda k: min(1.0, (k + 1) / 10) * max(0.0, 1 - k / STEPS))


def loop(model: nn.Module, examples: list[dict[str, Any]], first: int, last: int, state: bytes = b"") -> bytes:
    """The Trainer's loop from one step to another; returns and takes a checkpoint."""
    optimizer, scheduler = pair(model)
    if state:
        saved = torch.load(io.BytesIO(state), weights_only=True)
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
    for step in range(first, last):
        chosen = examples[step % 8 :: 8]
        batch = {key: torch.stack([e[key] for e in chosen]) for key in ("x", "labels")}
        model.train()
        model(**batch)["loss"].backward()
        optimizer.step()
        scheduler.step()
        model.zero_grad()
    stream = io.BytesIO()
    torch.save({"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}, stream)
    return stream.getvalue()


torch.manual_seed(0)
inputs = torch.randn(512, 16)
examples = [{"x": x, "labels": x[:1] * x[1:2]} for x in inputs]
whole = {"x": inputs, "labels": inputs[:, :1] * inputs[:, 1:2]}
model = Model()
before = model(**whole)["loss"].item()
if REAL:
    from transformers import Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        options = {"max_steps": STEPS, "per_device_train_batch_size": 64, "report_to": [], "save_strategy": "no"}
        arguments = TrainingArguments(folder, use_cpu=True, disable_tqdm=True, **options)
        Trainer(model, arguments, train_dataset=examples, optimizers=pair(model)).train()
else:
    loop(model, examples, STEPS // 2, STEPS, loop(model, examples, 0, STEPS // 2))
print("transformers itself" if REAL else "the same calls in plain torch")
print(f"loss {before:.4f} -> {model(**whole)['loss'].item():.4f}")
