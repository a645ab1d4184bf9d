"""Which share of an iteration the optimizer takes: a clock on a CPU, events on a GPU."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import torch

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
