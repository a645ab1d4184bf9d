"""Wall time by part of a step; the paper's LMO error, each layer's oracle against the exact one; the oracle's cost.

Observers of the optimizer, which do not affect training.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from inexact_muon.inexactness import assess
from inexact_muon.lmo import Spectral
from inexact_muon.optim import LMOOptimizer, Observer
from inexact_muon.optim.telemetry import Answer, Entry, oracle_flops

PARTS = ("data", "forward", "backward", "oracle", "optimizer", "evaluation", "telemetry", "storage")


class Clock:
    """Seconds by part; time outside of all parts is overhead.

    `oracle` is the time of the balls, `optimizer` the rest of its step. On a GPU each reading synchronises the device,
    so that the parts are meaningful.
    """

    def __init__(self, device: torch.device) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._device = device
        self._last = time.perf_counter()

    def start(self) -> None:
        """Start timing; the next `lap` names the part."""
        self._last = self._now()

    def lap(self, part: str) -> None:
        """Add the time since the last reading to this part."""
        now = self._now()
        self.seconds[part] += now - self._last
        self._last = now

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


class StepObserver(Observer):
    """Times the oracles separately from the rest of a step, and measures their errors in steps with `watch` set.

    `errors` maps delta, gap and overshoot to the value of every matrix with a spectral ball; by an SVD if `exact`, else
    estimated.
    """

    def __init__(self, exact: bool, clock: Clock) -> None:
        self.exact, self.watch, self._clock = exact, False, clock
        self.errors: dict[str, dict[str, float]] = {}

    def wants(self, optimizer: Optimizer, entries: Sequence[Entry]) -> set[int]:
        self.errors = {"delta": {}, "gap": {}, "overshoot": {}}
        if not self.watch:
            return set()
        assert isinstance(optimizer, LMOOptimizer)
        spectral = (p for g, p in entries if g["algorithm"] == "lmo" and isinstance(optimizer.ball(g), Spectral))
        return {id(p) for p in spectral}

    def seen(self, name: str, answers: Sequence[Answer]) -> None:
        if not self.watch or not isinstance(answers[0][0], Spectral):
            return
        self._clock.lap("optimizer")
        for index, (ball, m, d_hat) in enumerate(answers):
            label = f"{name}[{index}]" if len(answers) > 1 else name
            measured, _, _ = assess(ball, m, d_hat, self.exact)
            for key, values in self.errors.items():
                values[label] = float(torch.as_tensor(getattr(measured, key)).max())
        self._clock.lap("telemetry")

    def asking(self) -> None:
        self._clock.lap("optimizer")

    def answered(self) -> None:
        self._clock.lap("oracle")

    def summary(self) -> dict[str, Any]:
        """{"sum": sum of delta over the matrices, "delta": by matrix, "gap": ..., "overshoot": ...}; {} if none."""
        return {"sum": sum(self.errors["delta"].values()), **self.errors} if self.errors.get("delta") else {}


def skipped(optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Number of steps skipped by each parameter because its gradient was not finite, if any."""
    if not isinstance(optimizer, LMOOptimizer):
        return {}
    counts = {name: int(row.get("skipped", 0)) for name, row in optimizer.stats().items()}
    return {name: count for name, count in counts.items() if count}


def oracle_work(optimizer: torch.optim.Optimizer) -> int:
    """Floating point operations of all oracles in the last step."""
    if not isinstance(optimizer, LMOOptimizer):
        return 0
    total = 0
    for group in optimizer.param_groups:
        ball = optimizer.ball(group)
        for parameter in group["params"]:
            if group["algorithm"] == "lmo" and parameter.grad is not None:
                for shape in optimizer.view(group).shapes(parameter.shape):
                    total += oracle_flops(ball, shape, parameter.device)
    return total
