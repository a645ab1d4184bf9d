"""The cost table of this machine."""

from __future__ import annotations

from functools import partial
from statistics import median

import torch

from inexact_muon.polar.kernel import spd_inverse, symmetric_product
from inexact_muon.schedules.prices import CPU, Costs
from inexact_muon_lab.bench.timing import Work, interleaved


def calibrate(sides: tuple[int, ...] = (64, 128, 256, 512, 768), repeats: int = 9) -> Costs:
    """Measure the cost table of this CPU with the current number of threads; takes seconds.

    Pass it to `cheapest(..., costs=...)`; it is not used otherwise.
    """
    ratios: dict[str, list[float]] = {"symmetric": [], "inverse": [], "double": []}
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
        rounds = interleaved(works, repeats)
        for name, ratio in ratios.items():
            ratio.append(rounds.over(name, "product").middle)
    symmetric, inverse = (tuple(zip(sides, ratios[name], strict=True)) for name in ("symmetric", "inverse"))
    curves = {**CPU.curves, "symmetric": symmetric, "inverse": inverse}
    return Costs("cpu", {**CPU.dtypes, "float64": median(ratios["double"])}, curves)
