"""Oracles against the floor: the two products (Gram matrix, and its application) that none can do without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from inexact_muon.bench.timing import Work, interleaved
from inexact_muon.inexactness import measure
from inexact_muon.lmo import Spectral
from inexact_muon.polar import Jordan, PolarExpress, PolarMethod, Zolotarev, cheapest
from inexact_muon.schedules.published import JORDAN
from inexact_muon.schedules.spectra import SPECTRA

GPT2_LAYER = ((768, 768),) * 4 + ((3072, 768), (768, 3072))
"""The matrices of one layer of GPT-2 124M."""

FLOOR, FIVE, EIGHT, CHEAPEST = "two products", "five direct quintics", "eight direct Polar Express steps", "cheapest"


def with_spectrum(shape: tuple[int, int], spectrum: str, seed: int) -> Tensor:
    """A float32 matrix with these singular values and random singular vectors."""
    generator = torch.Generator().manual_seed(seed)
    n, m = min(shape), max(shape)
    if spectrum == "gaussian":
        return torch.randn(shape, generator=generator)
    u = torch.linalg.qr(torch.randn(n, n, generator=generator))[0]
    v = torch.linalg.qr(torch.randn(m, n, generator=generator))[0]
    x = (u * torch.from_numpy(SPECTRA[spectrum](n)).float()) @ v.mT
    return x if shape[0] <= shape[1] else x.mT.contiguous()


def quintics(ms: list[Tensor], steps: list[tuple[float, ...]]) -> list[Tensor]:
    """Direct quintic steps in the dtype of ms as everybody writes them, the short side inside, Frobenius norm."""
    answers = []
    for m in ms:
        tall = m.shape[0] > m.shape[1]
        x = m.mT if tall else m
        x = x / (torch.linalg.vector_norm(x) + 1e-7)
        for a, b, c in steps:
            gram = x @ x.mT
            x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        answers.append(x.mT if tall else x)
    return answers


def floor(ms: list[Tensor]) -> Work:
    """X X^T and Q X for every matrix, the short side inside."""
    wide = [m.mT if m.shape[0] > m.shape[1] else m for m in ms]
    q = [torch.randn(len(x), len(x)) for x in wide]
    return lambda: [(x @ x.mT, s @ x) for s, x in zip(q, wide, strict=True)]


def contenders(shapes: tuple[tuple[int, int], ...]) -> dict[str, Callable[[list[Tensor]], list[Tensor]]]:
    """Name -> function on a list of matrices."""
    chosen = {shape: cheapest(*shape) for shape in shapes}

    def each(ms: list[Tensor]) -> list[Tensor]:
        answers: dict[int, Tensor] = {}
        for method in dict.fromkeys(chosen.values()):
            places = [i for i, m in enumerate(ms) if chosen[m.shape[0], m.shape[1]] == method]
            answers |= dict(zip(places, method.orthogonalise_all([ms[i] for i in places]), strict=True))
        return [answers[i] for i in range(len(ms))]

    def ours(method: PolarMethod) -> Callable[[list[Tensor]], list[Tensor]]:
        return lambda ms: method.orthogonalise_all(ms)

    return {
        FIVE: lambda ms: quintics(ms, [JORDAN] * 5),
        EIGHT: lambda ms: quintics(ms, list(PolarExpress(8).schedule.coefficients)),
        CHEAPEST: each,
        **{str(method): ours(method) for method in (PolarExpress(5), Jordan(5), PolarExpress(8), Zolotarev(3))},
    }


def compare(rounds: int, tick: Callable[[], object]) -> list[dict[str, Any]]:
    """One row per contender and spectrum: time over the floor, and the worst delta, gap and overshoot of the set."""
    rows: list[dict[str, Any]] = []
    made = contenders(GPT2_LAYER)
    for spectrum in ("gaussian", "log-uniform", "power-law"):
        ms = [with_spectrum(shape, spectrum, seed) for seed, shape in enumerate(GPT2_LAYER)]
        works: dict[str, Work] = {FLOOR: floor(ms)}
        works |= {name: (lambda run=run, ms=ms: run(ms)) for name, run in made.items()}  # type: ignore[misc]
        times = interleaved(works, rounds, tick)
        for name, run in made.items():
            found = [measure(Spectral(), m, -x, exact=True) for m, x in zip(ms, run(ms), strict=True)]
            ratio = times.over(name, FLOOR)
            rows.append(
                {
                    "oracle": name,
                    "spectrum": spectrum,
                    "time": ratio.middle,
                    "low": ratio.low,
                    "high": ratio.high,
                    "delta": max(f.delta for f in found),
                    "gap": max(f.gap for f in found),
                    "overshoot": max(f.overshoot for f in found),
                }
            )
    return rows
