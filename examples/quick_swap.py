"""One small regression, three optimizers: torch's Muon with AdamW beside it, AdamW alone, and one object here."""

import torch
from torch import nn

from inexact_muon import Muon, explain

torch.manual_seed(0)
INPUTS = torch.randn(512, 32)
TARGETS = torch.tanh(INPUTS @ torch.randn(32, 8))


def network() -> nn.Sequential:
    """The same start for everybody."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8))


def train(model: nn.Module, *optimizers: torch.optim.Optimizer) -> tuple[float, float]:
    """Loss at the start and after 100 full-batch steps."""
    losses = []
    for _ in range(100):
        loss = nn.functional.mse_loss(model(INPUTS), TARGETS)
        model.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    return losses[0], losses[-1]


model = network()
inner = [model[2].weight]
rest = [p for p in model.parameters() if p is not inner[0]]
if hasattr(torch.optim, "Muon"):  # since torch 2.9
    pair = torch.optim.Muon(inner, lr=0.02, weight_decay=0.0), torch.optim.AdamW(rest, lr=3e-3, weight_decay=0.0)
    print("torch.optim.Muon and AdamW: {:.4f} -> {:.4f}".format(*train(model, *pair)))

model = network()
print(
    "AdamW:                      {:.4f} -> {:.4f}".format(*train(model, torch.optim.AdamW(model.parameters(), lr=3e-3)))
)

model = network()
optimizer = Muon.for_model(model, lr=0.02, adamw={"lr": 3e-3}, weight_decay=0.0, sample_every=20)
first, last = train(model, optimizer)
print(f"Muon.for_model:             {first:.4f} -> {last:.4f}")
print(explain(optimizer))
print(f"loss {first:.4f} -> {last:.4f}")
