"""What a polar method takes on a kind of device, in units of one n x n x n product.

The table is shipped and not measured at run time, so that every rank, run and resumed run makes the same choice.
`calibrate` measures this machine when asked to.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf, log
from statistics import median

import torch

from inexact_muon.polar._base import PolarMethod
from inexact_muon.polar.inverse import spd_inverse
from inexact_muon.polar.iteration import restarts
from inexact_muon.polar.polynomial import Composition
from inexact_muon.polar.rational import SMALLEST_SHIFT, Zolotarev
from inexact_muon.polar.symmetric import symmetric_product
from inexact_muon.schedules.cost import square_products, svd_flops

Curve = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Costs:
    """Cost of operations on n x n matrices relative to their product, as points (n, cost) of a curve in log n.

    Attributes:
        symmetric: a product known to be symmetric (`inexact_muon.polar.symmetric`).
        inverse: a factorisation with inverse (`inexact_muon.polar.inverse`).
        double: a product in float64.
    """

    device: str
    symmetric: Curve
    inverse: Curve
    double: float

    def of(self, method: PolarMethod, n: int, m: int) -> float:
        """Products that one n x m matrix is worth; inf for a method that does not suit the device."""
        n, m = min(n, m), max(n, m)
        symmetric, full, inverses = _operations(method, n, m)
        if inverses and not self.inverse:
            return inf
        if symmetric is None or full is None:
            return svd_flops(n, m) / (2.0 * n**3) * 10.0  # a decomposition is far from the speed of a product
        cost = symmetric * at(self.symmetric, n) + full + (inverses * at(self.inverse, n) if inverses else 0.0)
        eps = torch.finfo(method.dtype or torch.float32).eps
        wide = isinstance(method, Zolotarev) and min(method.rational.poles) < SMALLEST_SHIFT * eps
        return cost * (self.double if wide else 1.0)


CPU = Costs(
    "cpu",
    symmetric=((256, 1.0), (512, 0.92), (768, 0.72), (1536, 0.6), (4096, 0.55)),
    inverse=(
        (32, 12.0),
        (64, 9.5),
        (128, 4.2),
        (256, 3.0),
        (384, 1.9),
        (512, 1.7),
        (768, 1.28),
        (1536, 1.0),
        (4096, 0.8),
    ),
    double=2.2,
)
"""Measured with two threads in float32: `inexact-muon bench`."""

ACCELERATOR = Costs("accelerator", symmetric=((1, 1.0),), inverse=(), double=32.0)
"""Flops; factorisations are left out, because nothing could be timed."""


def at(curve: Curve, n: int) -> float:
    """The curve at n: linear in log n between its points, constant outside."""
    below = [point for point in curve if point[0] <= n]
    above = [point for point in curve if point[0] > n]
    if not below or not above:
        return (below[-1] if below else above[0])[1]
    (low, start), (high, end) = below[-1], above[0]
    return start + (end - start) * log(n / low) / log(high / low)


def _operations(method: PolarMethod, n: int, m: int) -> tuple[float | None, float | None, int]:
    """(symmetric products, other products, inverses), in n x n x n products."""
    aspect = m / n
    if isinstance(method, Zolotarev):
        more = 2 + square_products(method.polish) if method.polish else 0
        return aspect + more, aspect, method.poles
    if not isinstance(method, Composition):
        return None, None, 0
    degrees = [2 * len(step) - 1 for step in method.map.coefficients]
    squares = sum(square_products(degree) for degree in degrees)
    dtype = method.dtype or torch.float32
    if not method.runs_gram(n, m, dtype):
        return len(degrees) * aspect + squares, len(degrees) * aspect, 0
    segments = 1 + len(restarts(len(degrees), dtype))
    return segments * aspect + squares + 3 * (len(degrees) - segments), segments * aspect, 0


def calibrate(sides: tuple[int, ...] = (64, 128, 256, 512, 768), repeats: int = 9) -> Costs:
    """The cost table of this CPU with the present number of threads, measured now; takes seconds.

    Pass it to `cheapest(..., costs=...)`. Nothing uses it by itself.
    """
    symmetric, inverse, double = [], [], []
    for n in sides:
        batch = max(1, 512 * 512 // (n * n))
        x = torch.randn(batch, n, n, generator=torch.Generator().manual_seed(n))
        gram = torch.bmm(x, x.mT) / n + 0.01 * torch.eye(n)
        wide = gram.double()
        work: list[Callable[[], object]] = [
            partial(torch.bmm, gram, gram),
            partial(symmetric_product, gram, gram),
            partial(spd_inverse, gram),
            partial(torch.bmm, wide, wide),
        ]
        times = _times(work, repeats)
        symmetric.append((n, times[1] / times[0]))
        inverse.append((n, times[2] / times[0]))
        double.append(times[3] / times[0])
    return Costs("cpu", tuple(symmetric), tuple(inverse), median(double))


def _times(functions: list[Callable[[], object]], repeats: int) -> list[float]:
    """Median time of each, interleaved."""
    found: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats + 1):
        for k, function in enumerate(functions):
            start = time.perf_counter()
            function()
            found[k].append(time.perf_counter() - start)
    return [median(times[1:]) for times in found]
