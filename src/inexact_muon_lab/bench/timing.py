"""Comparable times: in each round every function runs once, and ratios are computed within a round."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median, quantiles

import torch
from torch.profiler import ProfilerActivity, profile

Work = Callable[[], object]

WARM = 2
"""Number of warm-up rounds, which are not counted."""


@dataclass(frozen=True)
class Ratio:
    """Time over that of a reference in the same round: median and quartiles."""

    middle: float
    low: float
    high: float


@dataclass(frozen=True)
class Rounds:
    """Name -> seconds of each round."""

    times: dict[str, list[float]]

    def over(self, name: str, reference: str) -> Ratio:
        """The ratio of the times of two functions, computed within each round."""
        ratios = [a / b for a, b in zip(self.times[name], self.times[reference], strict=True)]
        low, _, high = quantiles(ratios, n=4)
        return Ratio(median(ratios), low, high)

    def seconds(self, name: str) -> float:
        return median(self.times[name])


CPU = torch.device("cpu")


def wait(device: torch.device) -> None:
    """Wait until the device has finished; nothing to do on a CPU."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)


def interleaved(
    works: Mapping[str, Work],
    rounds: int,
    tick: Callable[[], object] = lambda: None,
    device: torch.device = CPU,
) -> Rounds:
    """Run all functions in turn, round after round; the first two rounds are not counted.

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
    return Rounds({name: taken[WARM:] for name, taken in times.items()})


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
