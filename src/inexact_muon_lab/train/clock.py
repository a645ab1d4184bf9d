"""Wall time by part of a step."""

from __future__ import annotations

import time

import torch

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
