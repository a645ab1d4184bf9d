"""How much of the machine other processes used while a run trained: times of a busy machine decide nothing."""

from __future__ import annotations

import os
import time
from pathlib import Path

STATISTICS = Path("/proc/stat")


class OtherProcesses:
    """CPU time of other processes since it was created, read from the kernel's counters."""

    def __init__(self) -> None:
        self._start = _reading()

    def share(self) -> float | None:
        """(busy time of all cores - CPU time of this process) / (cores x wall time); None where it is not known."""
        now = _reading()
        if self._start is None or now is None:
            return None
        wall, busy, own = (b - a for a, b in zip(self._start, now, strict=True))
        cores = os.cpu_count() or 1
        return min(1.0, max(0.0, (busy - own) / (cores * wall))) if wall > 0.0 else None


def _reading() -> tuple[float, float, float] | None:
    """(wall, busy, own) in seconds: busy is user, nice, system, irq, softirq and steal of all cores."""
    try:
        ticks = [int(word) for word in STATISTICS.read_text().split("\n", 1)[0].split()[1:9]]
        each = os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None
    idle = sum(ticks[3:5])
    return time.perf_counter(), (sum(ticks) - idle) / each, time.process_time()
