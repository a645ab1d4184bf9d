"""The cost table of this machine."""

from __future__ import annotations

from functools import partial
from statistics import median

import torch

from inexact_muon.polar.kernel import spd_inverse, symmetric_product
from inexact_muon.schedules.prices import CPU, Costs
from inexact_muon_lab.bench.timing import Work, interleaved, ratio


def calibrate(sides: tuple[int, ...] = (64, 128, 256, 512, 768), repeats: int = 9) -> Costs:
    """Measure the cost table of this CPU with the current number of threads; takes seconds.

    Pass it to `cheapest(..., costs=...)`; it is not used otherwise.
    """
    costs: dict[str, list[float]] = {"symmetric": [], "inverse": [], "double": []}
    for n in sides:
        batch = max(1, 512 * 512 // (n * n))
        x = torch.randn(batch, n, n, generator=torch.Generator().manual_seed(n))
        gram = torch.bmm(x, x.mT) / n + 0.01 * torch.eye(n)
        works: dict[str, Work] = {
            "product": partial(torch.bmm, gram, gram),
            "symmetric": partial(symmetric_product, gram, gram),
            "inverse": partial(spd_inverse, gram),
            "double": partial(torch.bmm, gram.double(), gram.double()),
        }
        times = interleaved(works, repeats)
        for name, cost in costs.items():
            cost.append(ratio(times, name, "product")["time"])
    symmetric, inverse = (tuple(zip(sides, costs[name], strict=True)) for name in ("symmetric", "inverse"))
    curves = {**CPU.curves, "symmetric": symmetric, "inverse": inverse}
    return Costs("cpu", {**CPU.dtypes, "float64": median(costs["double"])}, curves)
