"""Growth of the time of the default oracle with the side, the aspect ratio and the number of matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import log
from statistics import linear_regression
from typing import Any

import torch

from inexact_muon.polar import Zolotarev, cheapest
from inexact_muon_lab.bench.timing import CPU, Work, interleaved

SIDES = (128, 192, 256, 384, 512, 768, 1024)
ASPECTS = (1, 2, 4, 8)
COUNTS = (1, 2, 4, 8, 16, 32)


def fit(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Slope of log y over log x by least squares."""
    return linear_regression([log(x) for x in xs], [log(y) for y in ys]).slope


def measured(rounds: int, tick: Callable[[], object], device: torch.device = CPU) -> list[dict[str, Any]]:
    """Rows (kind, x, seconds): the `cheapest` oracle for sides and counts, three poles for aspect ratios."""
    generator = torch.Generator().manual_seed(0)

    def normal(n: int, m: int) -> torch.Tensor:
        return torch.randn(n, m, generator=generator).to(device)

    works: dict[str, Work] = {}
    for n in SIDES:
        works[f"side {n}"] = partial(cheapest(n, n, device=device, spread=True).orthogonalise, normal(n, n))
    for aspect in ASPECTS:
        works[f"aspect {aspect}"] = partial(Zolotarev(3).orthogonalise, normal(384, 384 * aspect))
    for count in COUNTS:
        ms = [normal(256, 256) for _ in range(count)]
        works[f"count {count}"] = partial(cheapest(256, 256, device=device, spread=True).orthogonalise_all, ms)
    times = interleaved(works, rounds, tick, device)
    return [{"kind": kind, "x": int(x), "seconds": times.seconds(f"{kind} {x}")} for kind, x in map(str.split, works)]


def exponents(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """(a, b): time ~ side^a for sides of at least 256, and time ~ count^b."""
    sides = [(r["x"], r["seconds"]) for r in rows if r["kind"] == "side" and r["x"] >= 256]
    counts = [(r["x"], r["seconds"]) for r in rows if r["kind"] == "count"]
    return fit(*zip(*sides, strict=True)), fit(*zip(*counts, strict=True))
