"""`calibrate`: the cost table of this machine, measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch

from inexact_muon.polar.inverse import spd_inverse
from inexact_muon.polar.symmetric import symmetric_product
from inexact_muon.schedules.prices import CPU, Costs


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
    curves = {**CPU.curves, "symmetric": tuple(symmetric), "inverse": tuple(inverse)}
    return Costs("cpu", {**CPU.dtypes, "float64": median(double)}, curves)


def _times(functions: list[Callable[[], object]], repeats: int) -> list[float]:
    """Median time of each, interleaved."""
    found: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats + 1):
        for k, function in enumerate(functions):
            start = time.perf_counter()
            function()
            found[k].append(time.perf_counter() - start)
    return [median(times[1:]) for times in found]
