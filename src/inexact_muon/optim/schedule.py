"""Schedules of step size and momentum: the paper's rules, and arbitrary momentum schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


class MomentumSchedule(LRScheduler):
    """momentum_k = function(k) for every LMO group; lr is unchanged.

    Call `step()` after each `optimizer.step()`. For a warm-up from 0.85 to 0.95:
    `MomentumSchedule(optimizer, lambda k: 0.85 + 0.1 * min(1.0, k / 300))`.
    """

    def __init__(self, optimizer: Optimizer, function: Callable[[int], float], last_epoch: int = -1) -> None:
        self.function = function
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float | Tensor]:
        """Unchanged learning rates."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def step(self, epoch: int | None = None) -> None:
        """Advance by one iteration."""
        super().step(epoch)
        momentum = self.function(self.last_epoch)
        if not 0.0 <= momentum < 1.0:
            raise ValueError(f"momentum must lie in [0, 1), the schedule gave {momentum} at step {self.last_epoch}")
        for group in _lmo_groups(self.optimizer):
            _set_momentum(group, momentum)

    def state_dict(self) -> dict[str, object]:
        """State without the function, which must be passed again."""
        return {key: value for key, value in super().state_dict().items() if key != "function"}


class AgnosticSchedule(LRScheduler):
    """gamma_k = gamma/(k+1)^(3/4), alpha_k = alpha/(k+1)^(1/2), alpha = 1 - momentum (time-varying theorem).

    gamma and alpha are the optimizer's lr and 1 - momentum at construction, per group. Call `step()` after each
    `optimizer.step()`; its state is in `state_dict`.
    """

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        for group in _lmo_groups(optimizer):
            group.setdefault("initial_momentum", float(group["momentum"]))
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float | Tensor]:
        """gamma_k of each group."""
        return [base / (self.last_epoch + 1) ** 0.75 for base in self.base_lrs]

    def step(self, epoch: int | None = None) -> None:
        """Advance by one iteration."""
        super().step(epoch)
        for group in _lmo_groups(self.optimizer):
            _set_momentum(group, 1.0 - (1.0 - group["initial_momentum"]) / (self.last_epoch + 1) ** 0.5)


def _set_momentum(group: dict[str, Any], value: float) -> None:
    """Set the momentum; a tensor is written in place, since whoever made it may hold it."""
    if isinstance(group["momentum"], Tensor):
        group["momentum"].fill_(value)
    else:
        group["momentum"] = value


def _lmo_groups(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The LMO groups; the momentum of an AdamW group is its beta1."""
    return [group for group in optimizer.param_groups if group.get("algorithm", "lmo") == "lmo"]
