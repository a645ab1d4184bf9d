"""`calibrate`: measure the cost table of this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch

from inexact_muon.polar.symmetric import spd_inverse, symmetric_product
from inexact_muon.schedules.prices import CPU, Costs


def calibrate(sides: tuple[int, ...] = (64, 128, 256, 512, 768), repeats: int = 9) -> Costs:
    """Measure the cost table of this CPU with the current number of threads; takes seconds.

    Pass it to `cheapest(..., costs=...)`; it is not used otherwise.
    """
    rows = []
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
        product, symmetric, inverse, double = _times(work, repeats)
        rows.append((n, symmetric / product, inverse / product, double / product))
    curves = {
        **CPU.curves,
        "symmetric": tuple((n, cost) for n, cost, _, _ in rows),
        "inverse": tuple((n, cost) for n, _, cost, _ in rows),
    }
    return Costs("cpu", {**CPU.dtypes, "float64": median(cost for *_, cost in rows)}, curves)


def _times(functions: list[Callable[[], object]], repeats: int) -> list[float]:
    """Median time of each function; they run in turn, and the first round is not counted."""
    seconds: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats + 1):
        for k, function in enumerate(functions):
            start = time.perf_counter()
            function()
            seconds[k].append(time.perf_counter() - start)
    return [median(times[1:]) for times in seconds]
