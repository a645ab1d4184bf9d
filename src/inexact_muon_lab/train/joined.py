"""Several torch optimizers as one, each with parameters of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer


class Joined(Optimizer):
    """One step of each part. Groups and state are those of the parts, so that schedules and checkpoints see one."""

    def __init__(self, *parts: Optimizer) -> None:
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step each part on its groups, which loading a checkpoint replaces."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        first = 0
        for part in self.parts:
            last = first + len(part.param_groups)
            part.param_groups, part.state = self.param_groups[first:last], self.state
            part.step()
            first = last
        return loss
