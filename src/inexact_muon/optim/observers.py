"""Observers of an optimizer's steps: append one to `optimizer.observers`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from inexact_muon.lmo import Ball

Entry = tuple[dict[str, Any], Tensor]
"""(group, parameter)"""

Answer = tuple[Ball, Tensor, Tensor]
"""(ball, m, d_hat) of one matrix: LMO input and output."""


class Observer:
    """Called with the inputs and outputs of oracles; must not modify them. Override the methods you need."""

    def wants(self, optimizer: Optimizer, entries: Sequence[Entry]) -> Collection[int]:
        """Ids of the parameters to observe, among the (group, parameter) entries of this step."""
        return ()

    def seen(self, name: str, answers: Sequence[Answer]) -> None:
        """Called before W changes with the answers of one observed parameter, on the rank that holds them entirely."""

    def asking(self) -> None:
        """Called before the oracles run."""

    def answered(self) -> None:
        """Called after the oracles have run."""
