"""Fine-tuning: what is frozen gets nothing, an adapter gets Muon, the new head gets AdamW; then all of it thaws."""

import torch
from torch import nn

from inexact_muon import Muon, explain

torch.manual_seed(0)


class Classifier(nn.Module):
    """A backbone that was trained elsewhere, an adapter and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU())
        self.adapter = nn.Linear(128, 128)
        self.head = nn.Linear(128, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        features = self.backbone(x)
        return self.head(features + self.adapter(features))


inputs, labels = torch.randn(512, 32), torch.randint(5, (512,))
model = Classifier()
model.backbone.requires_grad_(False)


def train(optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    """Full-batch losses."""
    losses = []
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


before = model.backbone[0].weight.clone()
optimizer = Muon.for_model(model, lr=0.02, adamw={"lr": 1e-3})
print(explain(optimizer))
losses = train(optimizer, 60)
assert torch.equal(before, model.backbone[0].weight), "a frozen weight has moved"

model.backbone.requires_grad_(True)
optimizer = Muon.for_model(model, lr=0.005, adamw={"lr": 3e-4}, rules=[("backbone.0.*", "adamw")])
print(explain(optimizer))
losses += train(optimizer, 60)
print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
