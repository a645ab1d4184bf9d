"""A small convolutional network for small images, similar to airbench: the model of Scion's CIFAR-10 example."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn import functional as F

from inexact_muon_lab import data
from inexact_muon_lab.problems.task import Batch, Task, tensors
from inexact_muon_lab.spec.spec import Cnn, RunSpec


class ConvBlock(nn.Module):
    """Convolution, pooling, normalisation, GELU; convolution, normalisation, GELU."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(out_channels)
        self.second = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.first_norm(F.max_pool2d(self.first(x), 2)))
        return F.gelu(self.second_norm(self.second(x)))


class Net(nn.Module):
    """Three blocks, the largest value of each channel, a linear head."""

    def __init__(self, channels: int, widths: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(ConvBlock(a, b) for a, b in zip((channels, *widths[:2]), widths, strict=True))
        self.head = nn.Linear(widths[-1], classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x.amax(dim=(2, 3)))
        return logits


def build(spec: RunSpec) -> Task:
    """Classification of images; validation reports loss and accuracy."""
    assert isinstance(spec.problem, Cnn)
    images = data.load(spec.data)
    assert isinstance(images, data.Images)

    def metrics(model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        logits = model(batch[0]).float()
        return {
            "loss": F.cross_entropy(logits, batch[1]),
            "accuracy": (logits.argmax(dim=1) == batch[1]).float().mean(),
        }

    return Task(
        model=Net(images.train[0].shape[1], spec.problem.widths, images.classes),
        batch=lambda step: tensors(images.batch(spec.seed, step, spec.batch)),
        loss=lambda model, batch: F.cross_entropy(model(batch[0]).float(), batch[1]),
        validation=lambda index: tensors(images.test_batch(index, spec.batch)),
        metrics=metrics,
    )
