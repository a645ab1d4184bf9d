"""How the cost of the default oracle grows with the side, with the aspect ratio and with the number of matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import log
from typing import Any

import torch

from inexact_muon.bench.timing import CPU, Work, interleaved
from inexact_muon.polar import Zolotarev, cheapest

SIDES = (128, 192, 256, 384, 512, 768, 1024)
ASPECTS = (1, 2, 4, 8)
COUNTS = (1, 2, 4, 8, 16, 32)


def fit(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Slope of log y over log x by least squares."""
    u, v = [log(x) for x in xs], [log(y) for y in ys]
    mean_u, mean_v = sum(u) / len(u), sum(v) / len(v)
    return sum((a - mean_u) * (b - mean_v) for a, b in zip(u, v, strict=True)) / sum((a - mean_u) ** 2 for a in u)


def measured(rounds: int, tick: Callable[[], object], device: torch.device = CPU) -> list[dict[str, Any]]:
    """Rows (kind, x, seconds); `cheapest` for sides and counts, three poles throughout for aspects."""
    generator = torch.Generator().manual_seed(0)

    def normal(n: int, m: int) -> torch.Tensor:
        return torch.randn(n, m, generator=generator).to(device)

    works: dict[tuple[str, int], Work] = {}
    for n in SIDES:
        works["side", n] = partial(cheapest(n, n, device=device).orthogonalise, normal(n, n))
    for aspect in ASPECTS:
        works["aspect", aspect] = partial(Zolotarev(3).orthogonalise, normal(384, 384 * aspect))
    for count in COUNTS:
        ms = [normal(256, 256) for _ in range(count)]
        works["count", count] = partial(cheapest(256, 256, device=device).orthogonalise_all, ms)
    named = {f"{kind} {x}": work for (kind, x), work in works.items()}
    times = interleaved(named, rounds, tick, device)
    return [{"kind": kind, "x": x, "seconds": times.seconds(f"{kind} {x}")} for kind, x in works]


def exponents(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """(a, b): time ~ side^a for sides of 256 and more, ~ count^b."""
    sides = [(r["x"], r["seconds"]) for r in rows if r["kind"] == "side" and r["x"] >= 256]
    counts = [(r["x"], r["seconds"]) for r in rows if r["kind"] == "count"]
    return fit(*zip(*sides, strict=True)), fit(*zip(*counts, strict=True))
