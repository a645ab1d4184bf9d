"""What to watch of an optimizer: a flat dict, adapters for TensorBoard and wandb, and the time that its steps take."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from statistics import fmean
from typing import Any

import torch

from inexact_muon.optim.core import LMOOptimizer

WORST: dict[str, Callable[[Sequence[float]], float]] = {
    **dict.fromkeys(("gap", "overshoot", "gap_applied", "overshoot_applied"), max),
    "lifted": min,
}
WATCHED: dict[str, tuple[str, Callable[[Sequence[float]], float]]] = {
    **{f"{key}/{how}": (key, f) for key, worst in WORST.items() for how, f in (("worst", worst), ("mean", fmean))},
    "update_ratio/largest": ("update_ratio", max),
    "update_ratio/mean": ("update_ratio", fmean),
    "update_rms/mean": ("update_rms", fmean),
    "skipped": ("skipped", sum),
}
"""Scalar -> the column of `stats()` and how its values become one."""


def flat_stats(
    optimizer: LMOOptimizer, prefix: str = "optimizer", every: bool = False, timer: StepTimer | None = None
) -> dict[str, float]:
    """A dozen scalars for any logger: {"optimizer/gap/worst": 0.01, ...}.

    They are gap, overshoot and lifted of the worst matrix and on average, the size of updates relative to weights, the
    learning rate of each algorithm, and the number of skipped updates. All but the last two need `sample_every` and are
    those of the last sampled step; `explain` and `advice` look at the momentum as it stands. With
    stages there are also gap_applied and overshoot_applied, of what they make of the oracle's answers.

    Args:
        every: also every number of every parameter, {"optimizer/blocks.0.fc.weight/gap": 0.01, ...}.
        timer: also `time/share`, the share of an iteration that the optimizer takes; on CUDA this waits for the device.
    """
    table = optimizer.stats()
    watched = {}
    for name, (key, how) in WATCHED.items():
        column = [row[key] for row in table.values() if key in row]
        if key == "update_ratio":
            column = [ratio for ratio in column if ratio != inf]  # of a weight that was zero, as a bias at first
        if column:
            watched[name] = how(column)
    rates = {f"lr/{group['algorithm']}": float(group["lr"]) for group in optimizer.param_groups}
    share = timer.share if timer is not None else None
    rates |= {} if share is None else {"time/share": share}
    rows = {f"{name}/{key}": value for name, row in table.items() for key, value in row.items()} if every else {}
    return {f"{prefix}/{name}": float(value) for name, value in (watched | rates | rows).items()}


def to_tensorboard(writer: Any, optimizer: LMOOptimizer, step: int, timer: StepTimer | None = None) -> None:
    """Write the scalars of `flat_stats` to a `torch.utils.tensorboard.SummaryWriter` (extra `tracking`)."""
    for tag, value in flat_stats(optimizer, timer=timer).items():
        writer.add_scalar(tag, value, step)


def to_wandb(run: Any, optimizer: LMOOptimizer, step: int, timer: StepTimer | None = None) -> None:
    """Log the scalars of `flat_stats` in one call to a wandb run (extra `tracking`)."""
    run.log(flat_stats(optimizer, timer=timer), step=step)


WINDOW = 50
"""Iterations that the share is of."""


class StepTimer:
    """Times the steps of an optimizer by its hooks; `share` is time of steps / time of whole iterations.

    On a CPU the clock is read before and after each step. On CUDA two events are recorded instead, because the host
    returns before the step is done; reading `share` waits for the device. Other accelerators are not timed.

    Example:
        >>> from inexact_muon import Muon
        >>> timer = StepTimer(Muon([torch.nn.Linear(4, 4).weight], lr=0.02))
        >>> timer.share is None  # before two steps
        True
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        device = next(p.device.type for group in optimizer.param_groups for p in group["params"])
        self._events = device == "cuda"
        self._known = device in ("cpu", "cuda")
        self._steps: deque[tuple[Any, Any]] = deque(maxlen=WINDOW + 1)
        self._start: Any = None
        self._hooks = (optimizer.register_step_pre_hook(self._before), optimizer.register_step_post_hook(self._after))

    def _before(self, *_: Any) -> None:
        self._start = self._now()

    def _after(self, *_: Any) -> None:
        self._steps.append((self._start, self._now()))

    def _now(self) -> Any:
        if not self._events:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    @property
    def share(self) -> float | None:
        """Share of the last iterations, from the end of one step to the end of another; None before two steps."""
        if len(self._steps) < 2 or not self._known:
            return None
        (_, first), *steps = self._steps
        whole = self._between(first, steps[-1][1])
        return sum(self._between(start, end) for start, end in steps) / whole if whole > 0.0 else None

    def _between(self, start: Any, end: Any) -> float:
        if not self._events:
            return float(end - start)
        end.synchronize()
        return float(start.elapsed_time(end))

    def remove(self) -> None:
        """Stop timing."""
        for hook in self._hooks:
            hook.remove()
