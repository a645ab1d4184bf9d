"""Where the wall time goes."""

from __future__ import annotations

import time

import torch

PARTS = ("data", "forward", "backward", "oracle", "optimizer", "evaluation", "telemetry", "storage")


class Clock:
    """Seconds by part; what is in no part is overhead.

    `oracle` is what the balls answer, `optimizer` the rest of its step. On a GPU each reading waits for the device,
    or the parts would mean nothing.
    """

    def __init__(self, device: torch.device, seconds: dict[str, float] | None = None) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0) | (seconds or {})
        self._device = device
        self._last = time.perf_counter()

    def start(self) -> None:
        """Time from here on belongs to the part that the next `lap` names."""
        self._last = self._now()

    def lap(self, part: str) -> None:
        """The time since the last reading belongs to this part."""
        now = self._now()
        self.seconds[part] += now - self._last
        self._last = now

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
