"""What may watch the steps of an optimizer: append an observer to `optimizer.observers`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from inexact_muon.lmo import Ball

Answer = tuple[Ball, Tensor, Tensor]
"""(ball, m, d_hat) of one matrix: what the ball saw, and its answer."""


class Observer:
    """Sees what oracles are asked and what they answer; changes nothing. Override what is needed."""

    def wants(self, optimizer: Optimizer, entries: Sequence[tuple[dict[str, Any], Tensor]]) -> Collection[int]:
        """The ids of those parameters of a step, given as (group, parameter), whose answers are to be shown."""
        return ()

    def seen(self, name: str, answers: Sequence[Answer]) -> None:
        """The answers of one parameter that some observer wants, before W changes; on the rank that has them whole."""

    def asking(self) -> None:
        """Oracles are about to be asked."""

    def answered(self) -> None:
        """They have answered."""
