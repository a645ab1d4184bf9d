"""The paper's parameter-agnostic schedule, for step size and momentum together."""

from __future__ import annotations

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


class AgnosticSchedule(LRScheduler):
    """gamma_k = gamma/(k+1)^(3/4), alpha_k = alpha/(k+1)^(1/2), alpha = 1 - momentum (time-varying theorem).

    gamma and alpha are the optimizer's lr and 1 - momentum at construction, per group. Call `step()` after each
    `optimizer.step()`; its state is in `state_dict`.
    """

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        for group in optimizer.param_groups:
            group.setdefault("initial_momentum", group["momentum"])
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float | Tensor]:
        """gamma_k of each group."""
        return [base / (self.last_epoch + 1) ** 0.75 for base in self.base_lrs]

    def step(self, epoch: int | None = None) -> None:
        """Moves on by one iteration."""
        super().step(epoch)
        for group in self.optimizer.param_groups:
            group["momentum"] = 1.0 - (1.0 - group["initial_momentum"]) / (self.last_epoch + 1) ** 0.5
