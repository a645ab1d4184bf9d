"""What a problem is to the trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class Task:
    """Model, data and loss.

    Attributes:
        model: at its initial weights; torch's random numbers are seeded before it is built.
        batch: step -> training batch, tensors with the examples along their first dimension. A function of the step
            alone: then a resumed run sees what an uninterrupted one would have seen.
        loss: mean loss of a batch, as a tensor that can be differentiated.
        validation: index -> validation batch; the spec's `validation` says how many are averaged. None for no
            validation: the training loss is the result.
        metrics: what validation reports, by name; the loss alone if None.
    """

    model: nn.Module
    batch: Callable[[int], Batch]
    loss: Callable[[nn.Module, Batch], Tensor]
    validation: Callable[[int], Batch] | None = None
    metrics: Callable[[nn.Module, Batch], Mapping[str, Tensor]] | None = None

    def measure(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """The metrics of a validation batch."""
        return {"loss": self.loss(model, batch)} if self.metrics is None else self.metrics(model, batch)
