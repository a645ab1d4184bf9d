"""What a run's numbers depend on beside its spec: the data's bytes, versions, the kind of CPU."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

import numpy as np
import torch

import inexact_muon
from inexact_muon.lab import data
from inexact_muon.lab.spec.spec import RunSpec
from inexact_muon.lab.train.world import World


def environment(spec: RunSpec, world: World) -> dict[str, str]:
    """By name; runs that differ in any of them do not compare.

    `data` is a SHA-256: the standard library's text, for one, changes with Python's version, which a run's id does not
    see. A problem that brings its own data has none.
    """
    found = {
        "data": data.fingerprint(spec.data),
        "inexact_muon": inexact_muon.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "machine": platform.machine(),
        "cpu": cpu(),
        "device": world.device.type,
        "processes": str(world.size),
    }
    return {name: value for name, value in found.items() if value}


@cache
def cpu() -> str:
    """Vendor and the instructions that torch uses, which decide the last bits: "GenuineIntel AVX512"."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    vendor = next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")
    return f"{vendor or platform.processor() or 'unknown'} {torch.backends.cpu.get_cpu_capability()}"
