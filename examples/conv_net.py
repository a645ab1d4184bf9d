"""A convolutional network on scikit-learn's digits: kernels are flattened to matrices, the head keeps AdamW."""

import torch
from sklearn.datasets import load_digits
from torch import nn

from inexact_muon import Muon
from inexact_muon.optim import clip_grad_norm_

torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
inputs = torch.from_numpy(images).float().reshape(-1, 1, 8, 8) / 16.0
targets = torch.from_numpy(labels)
train, test = slice(0, 1500), slice(1500, None)

model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.GELU(),
    nn.Conv2d(16, 32, 3, padding=1), nn.MaxPool2d(2), nn.BatchNorm2d(32), nn.GELU(),
    nn.Flatten(), nn.Linear(32 * 16, 10),
)  # fmt: skip
steps = 120
optimizer = Muon.for_model(model, lr=0.05, adamw={"lr": 3e-3}, weight_decay=0.0, sample_every=40)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=steps)

losses = []
for _ in range(steps):
    batch = torch.randint(1500, (64,))
    with torch.autocast("cpu", dtype=torch.bfloat16):  # the oracle leaves autocast by itself
        loss = nn.functional.cross_entropy(model(inputs[batch]), targets[batch])
    optimizer.zero_grad()
    loss.backward()
    clip_grad_norm_(optimizer, 1.0)  # AdamW's gradients alone
    optimizer.step()
    schedule.step()
    losses.append(loss.item())

model.eval()
with torch.no_grad():
    accuracy = (model(inputs[test]).argmax(dim=1) == targets[test]).float().mean().item()
for name, seen in optimizer.inexactness().items():
    print(f"{name}: delta {seen.delta:.3f}, gap {seen.gap:+.4f}, overshoot {seen.overshoot:.3f}")
print(f"test accuracy {accuracy:.3f}")
print(f"loss {sum(losses[:5]) / 5:.4f} -> {sum(losses[-5:]) / 5:.4f}")
