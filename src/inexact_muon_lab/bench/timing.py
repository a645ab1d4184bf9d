"""The device of a benchmark, and comparable times on it: every function runs once a round, ratios are within rounds."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from statistics import median, quantiles
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from inexact_muon_lab.bench.peers import PEERS

Work = Callable[[], object]

WARM = 2
"""Number of warm-up rounds, which are not counted."""


CPU = torch.device("cpu")


def wait(device: torch.device) -> None:
    """Wait until the device has finished; nothing to do on a CPU."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)


def interleaved(
    works: Mapping[str, Work], rounds: int, tick: Callable[[], object] = lambda: None, device: torch.device = CPU
) -> dict[str, list[float]]:
    """Name -> seconds of each round; all functions run in turn, and the first two rounds are not counted.

    Times are measured on the host from an idle device to an idle device, so they include kernel launches.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds + WARM):
        for name, work in works.items():
            wait(device)
            start = time.perf_counter()
            work()
            wait(device)
            times[name].append(time.perf_counter() - start)
        tick()
    return {name: seconds[WARM:] for name, seconds in times.items()}


def ratio(times: Mapping[str, list[float]], name: str, reference: str) -> dict[str, float]:
    """Median and quartiles of the time over that of a reference in the same round."""
    ratios = [a / b for a, b in zip(times[name], times[reference], strict=True)]
    low, _, high = quantiles(ratios, n=4)
    return {"time": median(ratios), "low": low, "high": high}


def peak_memory(work: Work, device: torch.device = CPU) -> int:
    """Peak bytes of tensors allocated during `work`, beyond those allocated before."""
    work()
    if device.type != "cpu":
        memory = torch.get_device_module(device)
        memory.reset_peak_memory_stats(device)
        before = memory.memory_allocated(device)
        work()
        return int(memory.max_memory_allocated(device) - before)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        work()
    events = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def device_of(text: str) -> torch.device:
    """The device with this name; raises ValueError if this machine cannot compute on it."""
    try:
        device = torch.device(text)
        if device.type == "meta" or not torch.ones(1, device=device).item():
            raise RuntimeError("tensors on it have no data")
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"this machine has no usable device {text!r} ({reason}): leave --device out, or name another"
        ) from None
    return device


def native_bfloat16() -> bool:
    """Whether this CPU has bfloat16 products and oneDNN uses them; otherwise they are emulated and much slower.

    Both are checked: ONEDNN_MAX_CPU_ISA=AVX2 only disables the library, and a CPU with AVX512 may lack bfloat16.
    """
    library = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    return any("bf16" in name and bool(has) for name, has in capabilities().items()) and bool(library())


def capabilities() -> dict[str, Any]:
    """What torch reports about this CPU; torch 2.6 only reports the AVX512 instructions for bfloat16."""
    known = hasattr(torch.cpu, "get_capabilities")
    return dict(torch.cpu.get_capabilities()) if known else {"avx512_bf16": torch.cpu._is_avx512_bf16_supported()}


def machine(device: torch.device, peers: bool = False) -> dict[str, Any]:
    """Device, versions and settings that the ratios depend on."""
    facts: dict[str, Any] = {"torch": torch.__version__, "python": platform.python_version()}
    if device.type == "cpu":
        facts |= {
            "device": str(capabilities().get("cpu_name", platform.machine())),
            "threads": torch.get_num_threads(),
            "bfloat16 products": "native" if native_bfloat16() else "emulated",
            "instructions": torch.backends.cpu.get_cpu_capability(),
        }
    else:
        facts["device"] = str(device)
    if device.type == "cuda":
        facts |= {
            "device": torch.cuda.get_device_name(device),
            "capability": ".".join(map(str, torch.cuda.get_device_capability(device))),
            "cuda": str(torch.version.cuda or torch.version.hip),
        }
    packages = [peer.package for peer in PEERS.values() if peers and peer.package not in facts]
    return facts | {package: known for package in packages if (known := version_of(package))}


def version_of(package: str) -> str:
    """The installed version of a package; "" if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
