"""The interface between a problem and the trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

Batch = tuple[Tensor, ...]


def tensors(arrays: Iterable[np.ndarray]) -> Batch:
    """A batch from arrays of `lab.data`, which it shares memory with."""
    return tuple(torch.from_numpy(array) for array in arrays)


@dataclass(frozen=True)
class Task:
    """Model, data and loss.

    Attributes:
        model: with initial weights; torch's generator is seeded before it is built.
        batch: step -> training batch, tensors with examples along the first dimension. It must depend on the step only,
            so that a resumed run sees the same batches.
        loss: mean loss of a batch, as a differentiable tensor.
        validation: index -> validation batch; the spec's `validation` sets how many are averaged. None for no
            validation: the training loss is the result.
        metrics: metrics that validation reports, by name; default: the loss only.
    """

    model: nn.Module
    batch: Callable[[int], Batch]
    loss: Callable[[nn.Module, Batch], Tensor]
    validation: Callable[[int], Batch] | None = None
    metrics: Callable[[nn.Module, Batch], Mapping[str, Tensor]] | None = None

    def measure(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """The metrics of a validation batch."""
        return {"loss": self.loss(model, batch)} if self.metrics is None else self.metrics(model, batch)
