"""Modelled time of a recorded step: an H100, two streams (compute, communication), and a host that runs ahead of both.

    product       2 b n k m / (0.7 peak * share of busy multiprocessors), at least its bytes / (0.85 bandwidth)
    other kernel  bytes / (0.85 bandwidth), at least 2 us
    messages      20 us and bytes / link; after the kernels that were launched before
    host          5 us a launch, 20 us a call of messages

Good for ratios only. A symmetric product runs at the published speed of Triton kernels of its side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

from inexact_muon.schedules.prices import at
from inexact_muon_lab.plan.recorder import Launch, Messages, Recorder

BANDWIDTH, MULTIPROCESSORS, FLOOR, H100 = 0.85 * 3.35e12, 132, 2e-6, (9, 0)
PEAK = {1: 1.0, 2: 1.0, 4: 67 / 989, 8: 34 / 989}
"""Bytes of an entry -> rate of products relative to bfloat16."""

HOST, HOST_CALL, CALL = 5e-6, 20e-6, 20e-6
LEAST, MOST = 1e-6, 1e12
"""Range of valid rates and sizes."""


@dataclass(frozen=True)
class Machine:
    """One rank.

    Attributes:
        flops: peak of bfloat16 products, in TF; default: H100 SXM by its data sheet (dense).
        link: GB/s that a rank can send to any other; default: one 400 Gb/s adapter per rank.
        efficiency: fraction of the peak that forward and backward reach.
        memory: GB.
    """

    flops: float = 989.0
    link: float = 50.0
    efficiency: float = 0.4
    memory: float = 80.0

    def __post_init__(self) -> None:
        for name in ("flops", "link", "efficiency", "memory"):
            value = getattr(self, name)
            if not LEAST <= value <= MOST:
                raise ValueError(f"{name} must be positive, between {LEAST:g} and {MOST:g}, got {value}")
        if self.efficiency > 1:
            raise ValueError(f"efficiency must be at most 1, got {self.efficiency}")


@dataclass(frozen=True)
class Cost:
    """One step of one rank, or the mean of several: counts, bytes, and modelled seconds.

    Attributes:
        calls: collectives.
        sent: bytes that this rank sends.
        in_flight: of these, bytes that travel while products run.
        peak: bytes of work space.
        host: seconds of the host in the step.
    """

    launches: float
    calls: float
    sent: float
    in_flight: float
    flops: float
    traffic: float
    peak: float
    seconds: float
    host: float


def price(recorded: Recorder, machine: Machine) -> Cost:
    """Counts and modelled time of a recorded step."""
    seconds, host = timeline(recorded.events, machine)
    return Cost(
        launches=recorded.launches,
        calls=len(recorded.messages),
        sent=sum(m.sent for m in recorded.messages),
        in_flight=in_flight(recorded.events),
        flops=sum(done.flops for done in recorded.operations),
        traffic=recorded.bytes,
        peak=recorded.peak,
        seconds=seconds,
        host=host,
    )


def product(batch: int, n: int, k: int, m: int, size: int, machine: Machine = Machine()) -> float:  # noqa: B008
    """Seconds of a batch of n x k x m products of entries of `size` bytes."""
    if not batch * n * k * m:
        return FLOOR  # a rank without rows of a small matrix

    def busy(rows: int, columns: int) -> float:
        tiles = batch * ceil(n / rows) * ceil(m / columns)
        return tiles / (ceil(tiles / MULTIPROCESSORS) * MULTIPROCESSORS)

    rate = 0.7e12 * machine.flops * PEAK[size] * max(busy(128, 128), busy(128, 256), 0.6 * busy(64, 64))
    return max(2 * batch * n * k * m / rate, batch * (n * k + k * m + n * m) * size / BANDWIDTH, FLOOR)


PUBLISHED: dict[tuple[int, int], tuple[tuple[int, float], ...]] = {
    (8, 0): ((1024, 1.19), (2048, 1.69), (4096, 1.78), (8192, 1.73)),
    (9, 0): ((512, 0.7), (1024, 0.7), (2048, 0.78), (4096, 1.26), (8192, 1.46)),
}
"""CUDA compute capability -> (n, speed-up of a Triton kernel over the full n x n product of the vendor's library).

A100: flash-muon; H100: dion, bfloat16.
"""


def speed(n: int, capability: tuple[int, int]) -> float:
    """The published speed-up of the kernel over the full product at n, interpolated in log n; 1 if unknown."""
    return at(PUBLISHED.get(capability, ((1, 1.0),)), n)


def seconds(
    done: Launch,
    machine: Machine = Machine(),  # noqa: B008
    symmetric: Callable[[int], float] = lambda n: speed(n, H100),
) -> float:
    """One operation; `symmetric` is the speed of a symmetric product of side n relative to a full one."""
    if done.product is None:
        return max(done.bytes / BANDWIDTH, FLOOR * done.launches)
    batch, n, _, m, size = done.product
    time = product(*done.product, machine)
    if done.name == "symmetric_product":
        return time / symmetric(n)
    copied = done.name in ("baddbmm", "addmm")  # a new tensor: a copy and a product
    return time + (max(2 * batch * n * m * size / BANDWIDTH, FLOOR) if copied else 0.0)


def timeline(events: Sequence[object], machine: Machine) -> tuple[float, float]:
    """(seconds of the step, of which the host is busy)."""
    host = compute = wires = 0.0
    ends: dict[int, float] = {}
    for event in events:
        if isinstance(event, Launch):
            host += HOST * event.launches
            compute = max(compute, host) + seconds(event, machine)
        elif isinstance(event, Messages):
            host += HOST_CALL
            begin = max(host, compute, wires)
            wires = begin + CALL + max(event.sent, event.received) / (1e9 * machine.link)
            ends[event.number] = wires
        else:
            compute = max(compute, ends[event.number])  # type: ignore[attr-defined]
    return max(host, compute, wires), host


def in_flight(events: Sequence[object]) -> float:
    """Bytes of messages between whose start and wait products are launched."""
    travelling: dict[int, float] = {}
    covered: dict[int, float] = {}
    for event in events:
        if isinstance(event, Messages):
            travelling[event.number] = event.sent
        elif not isinstance(event, Launch):
            travelling.pop(event.number, None)  # type: ignore[attr-defined]
        elif event.product:
            covered |= travelling
    return sum(covered.values())
