"""The environment that a run's numbers depend on besides its spec: data, versions, kind of CPU, other processes."""

from __future__ import annotations

import os
import platform
import time
from functools import cache
from pathlib import Path

import numpy as np
import torch

import inexact_muon
from inexact_muon_lab import data
from inexact_muon_lab.problems import custom
from inexact_muon_lab.spec.spec import Custom, RunSpec
from inexact_muon_lab.train.world import World

STATISTICS = Path("/proc/stat")
INPUTS = ("data", "code")
"""Entries that say what a run reads beside its spec."""


def environment(spec: RunSpec, world: World) -> dict[str, str]:
    """Environment by name; runs with different environments are not comparable.

    `data` is a SHA-256: the standard library's text, for example, changes with the Python version, which is not part of
    a run's id. Problems that generate their own data have none. `code` is that of a custom problem.
    """
    facts = {
        **inputs(spec),
        "inexact_muon": inexact_muon.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "machine": platform.machine(),
        "cpu": cpu(),
        "device": world.device.type,
        "processes": str(world.size),
    }
    return {name: value for name, value in facts.items() if value}


def inputs(spec: RunSpec) -> dict[str, str]:
    """Hashes of what a run reads beside its spec: "data", and "code" of a custom problem."""
    code = custom.fingerprint(spec.problem.target) if isinstance(spec.problem, Custom) else ""
    return {"data": data.fingerprint(spec.data), "code": code}


@cache
def cpu() -> str:
    """Vendor and instruction set used by torch, which determine the last bits: "GenuineIntel AVX512"."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    vendor = next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")
    return f"{vendor or platform.processor() or 'unknown'} {torch.backends.cpu.get_cpu_capability()}"


class OtherProcesses:
    """How much of the machine other processes used since it was created: times of a busy machine decide nothing."""

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
