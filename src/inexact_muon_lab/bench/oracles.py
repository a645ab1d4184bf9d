"""Oracles relative to a lower bound: the two products (Gram matrix, and its application) that every oracle needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inexact_muon.inexactness import measure
from inexact_muon.lmo import Spectral
from inexact_muon.polar import Auto, Jordan, PolarExpress, Zolotarev
from inexact_muon.schedules.published import JORDAN
from inexact_muon_lab.bench.timing import CPU, Work, interleaved, ratio
from inexact_muon_lab.tune.spectra import SPECTRA, resolve

GPT2_LAYER = ((768, 768),) * 4 + ((3072, 768), (768, 3072))
"""The matrices of one layer of GPT-2 124M."""

FLOOR, FIVE, EIGHT = "two products", "five direct quintics", "eight direct Polar Express steps"
FAST, ACCURATE = "auto:fast", "auto:accurate"

RECORDED = "gpt-late"
"""Recorded momentum of a small GPT late in training; its first layer is used."""


def values(spectrum: str, n: int) -> NDArray[np.float64]:
    """n singular values of a named spectrum; recorded spectra are interpolated in the logarithm."""
    if spectrum in SPECTRA:
        return SPECTRA[spectrum](n)
    logs = np.log(resolve(spectrum)[1][0].values)
    return np.exp(np.interp(np.linspace(0.0, 1.0, n), np.linspace(0.0, 1.0, len(logs)), logs - logs[0]))


def with_spectrum(shape: tuple[int, int], spectrum: str, seed: int) -> Tensor:
    """A float32 matrix with these singular values and random singular vectors."""
    generator = torch.Generator().manual_seed(seed)
    n, m = min(shape), max(shape)
    if spectrum == "gaussian":
        return torch.randn(shape, generator=generator)
    u = torch.linalg.qr(torch.randn(n, n, generator=generator))[0]
    v = torch.linalg.qr(torch.randn(m, n, generator=generator))[0]
    x = (u * torch.from_numpy(values(spectrum, n)).float()) @ v.mT
    return x if shape[0] <= shape[1] else x.mT.contiguous()


def quintics(ms: list[Tensor], steps: list[tuple[float, ...]]) -> list[Tensor]:
    """Direct quintic steps in the dtype of ms, as in most implementations: Frobenius norm, transposed to n <= m."""
    results = []
    for m in ms:
        tall = m.shape[0] > m.shape[1]
        x = m.mT if tall else m
        x = x / (torch.linalg.vector_norm(x) + 1e-7)
        for a, b, c in steps:
            gram = x @ x.mT
            x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        results.append(x.mT if tall else x)
    return results


def floor(ms: list[Tensor]) -> Work:
    """X X^T and Q X for every matrix, transposed to n <= m: in float32 on a CPU, in float16 on an accelerator."""
    dtype = torch.float32 if ms[0].device.type == "cpu" else torch.float16
    wide = [(m.mT if m.shape[0] > m.shape[1] else m).to(dtype) for m in ms]
    q = [torch.randn(len(x), len(x), device=x.device, dtype=dtype) for x in wide]
    return lambda: [(x @ x.mT, s @ x) for s, x in zip(q, wide, strict=True)]


def contenders(
    shapes: tuple[tuple[int, int], ...], device: torch.device = CPU
) -> dict[str, Callable[[list[Tensor]], list[Tensor]]]:
    """Name -> function on a list of matrices; plain quintics run in bfloat16 on an accelerator, as is usual."""

    def plain(steps: list[tuple[float, ...]]) -> Callable[[list[Tensor]], list[Tensor]]:
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
        return lambda ms: quintics([m.to(dtype) for m in ms], steps)

    keys = [(min(shape), max(shape), device.type) for shape in shapes]
    return {
        FIVE: plain([JORDAN] * 5),
        EIGHT: plain(list(PolarExpress(8).map.coefficients)),
        FAST: Auto("fast").resolved(keys).orthogonalise_all,
        ACCURATE: Auto("accurate").resolved(keys).orthogonalise_all,
        **{str(p): p.orthogonalise_all for p in (PolarExpress(5), Jordan(5), PolarExpress(8), Zolotarev(3))},
    }


def worst(ms: list[Tensor], polars: list[Tensor]) -> dict[str, float]:
    """Largest delta, gap and overshoot, and smallest singular value, of approximate polar factors of ms."""
    each = [measure(Spectral(), m, -x, exact=True) for m, x in zip(ms, polars, strict=True)]
    largest = {key: max(getattr(one, key) for one in each) for key in ("delta", "gap", "overshoot")}
    return {**largest, "smallest": min(float(torch.linalg.svdvals(x)[-1]) for x in polars)}


def compare(rounds: int, tick: Callable[[], object], device: torch.device = CPU) -> list[dict[str, Any]]:
    """One row per contender and spectrum: time over the lower bound, and largest delta, gap and overshoot."""
    rows: list[dict[str, Any]] = []
    runs = contenders(GPT2_LAYER, device)
    for spectrum in ("gaussian", "log-uniform", "power-law", RECORDED):
        exact = [with_spectrum(shape, spectrum, seed) for seed, shape in enumerate(GPT2_LAYER)]
        ms = [m.to(device) for m in exact]
        works: dict[str, Work] = {FLOOR: floor(ms)}
        works |= {name: (lambda run=run, ms=ms: run(ms)) for name, run in runs.items()}  # type: ignore[misc]
        times = interleaved(works, rounds, tick, device)
        for name, run in runs.items():
            results = [x.float().cpu() for x in run(ms)]
            accuracy = worst(exact, results)
            rows.append({"oracle": name, "spectrum": spectrum, **ratio(times, name, FLOOR), **accuracy})
    return rows
