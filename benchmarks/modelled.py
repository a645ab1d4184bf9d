"""Steps on an H100 by a model, nothing timed: `python benchmarks/modelled.py` writes benchmarks/results/modelled.md.

Operations of a whole step are recorded on fake CUDA tensors (`inexact_muon_lab.plan.recorder`) and priced by their
shapes (`inexact_muon_lab.plan.pricing`); a step takes at least 5 us of host time a launch. Good for ratios only.

A symmetric product that is a kernel costs the full product over the speed that was published for its side on that
device (`inexact_muon_lab.plan.pricing.PUBLISHED`), or, in the second column, half of the flops at any side.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "benchmarks" / "results" / "modelled.md"
sys.path.insert(0, str(ROOT / "tests/helpers"))

from fake_models import GPT2, LLAMA, gpt2, llama, on_fake_cuda  # noqa: E402
from inexact_muon import Muon, polar  # noqa: E402
from inexact_muon.polar import kernel  # noqa: E402
from inexact_muon_lab.plan.pricing import H100, HOST, product, seconds, speed  # noqa: E402
from inexact_muon_lab.plan.recorder import Recorder, fake_h100  # noqa: E402
from matrices import SPECTRA, matrix  # noqa: E402
from tensor_cores import TensorCores  # noqa: E402

MODELS: dict[str, Callable[[], nn.Module]] = {"GPT-2 124M": gpt2, "Llama-3-8B": llama}
OURS, FAST = "`Muon.for_model`, `auto:accurate`", "`Muon.for_model`, `auto:fast`"
LAYERS = {"GPT-2 124M": (12, GPT2), "Llama-3-8B": (32, LLAMA)}
DION = {"GPT-2 124M": (5.7e-3, 188), "Llama-3-8B": (894e-3, 370)}
"""Seconds and launches of dion with its Triton kernels, recorded before and priced by the same model with symmetric
products at half of the flops. It is not installed here."""


@contextmanager
def gate(everywhere: bool) -> Iterator[None]:
    """The kernel as if Triton were installed; with `everywhere` for every symmetric product in half precision."""
    with pytest.MonkeyPatch.context() as patch:
        if everywhere:
            patch.setattr(kernel, "smallest_side", lambda device: 1)
            patch.setattr(kernel, "FEWEST", 1)
            patch.setattr("inexact_muon.polar.kernel.LEAST", 1)
        with fake_h100(triton=True):
            yield


def ours(model: nn.Module) -> list[torch.optim.Optimizer]:
    return [Muon.for_model(model, lr=0.02, polar="auto:accurate")]


def fast(model: nn.Module) -> list[torch.optim.Optimizer]:
    return [Muon.for_model(model, lr=0.02, polar="auto:fast")]


def torchs(model: nn.Module) -> list[torch.optim.Optimizer]:
    """torch.optim.Muon for the matrices of the blocks, fused AdamW for the rest."""
    hidden = [p for name, p in model.named_parameters() if p.ndim == 2 and name.startswith("blocks")]
    rest = [p for p in model.parameters() if not any(p is other for other in hidden)]
    return [torch.optim.Muon(hidden, lr=0.02), torch.optim.AdamW(rest, fused=True)]


def step(model: str, make: Callable[[nn.Module], list[torch.optim.Optimizer]], halved: bool) -> tuple[float, int]:
    """(seconds, launches) of a step."""
    with gate(everywhere=halved):
        optimizers = make(on_fake_cuda(MODELS[model]))
        for _ in range(2):  # the first one makes states and batches
            with Recorder() as found:
                for optimizer in optimizers:
                    optimizer.step()
    price = {"symmetric": lambda n: 2.0} if halved else {}
    return max(sum(seconds(done, **price) for done in found.operations), found.launches * HOST), found.launches


def dion(model: str, halved: bool) -> float:
    """dion's step: the recorded one, with its symmetric products (X X^T and A A of five quintics) at another price."""
    if halved:
        return DION[model][0]
    layers, matrices = LAYERS[model]
    counts = Counter((min(shape), max(shape)) for shape in matrices.values() for _ in range(layers))
    full = [(n, 5 * product(count, n, k, n, 2)) for (n, m), count in counts.items() for k in (m, n)]
    return DION[model][0] + sum(time * (1.0 / max(1.0, speed(n, H100)) - 0.5) for n, time in full)


def rows(model: str) -> list[str]:
    """Ours, torch's and dion's."""
    plain, many = step(model, torchs, False)
    steps = {}
    for name, make in ((OURS, ours), (FAST, fast)):
        (priced, launches), (halved, _) = (step(model, make, half) for half in (False, True))
        steps[name] = (launches, priced, halved)
    steps |= {
        "torch.optim.Muon, fused AdamW": (many, plain, plain),
        "dion with its kernels": (DION[model][1], dion(model, False), dion(model, True)),
    }
    return [
        f"| {model} | {name} | {count} | {1e3 * one:.4g} | {1e3 * two:.4g} |"
        for name, (count, one, two) in steps.items()
    ]


def accuracy() -> list[str]:
    """gap and overshoot of what these steps run, on two matrices, by emulated tensor cores."""
    names = {OURS: lambda n, m: polar.Auto("accurate").at(n, m, "cuda")}
    names |= {FAST: lambda n, m: polar.Auto("fast").at(n, m, "cuda")}
    names |= {"torch.optim.Muon": lambda n, m: polar.Jordan(5, dtype=torch.bfloat16)}
    found = {name: [] for name in names}
    for n, m in ((768, 768), (768, 3072)):
        x = matrix(n, m, "log-uniform-1e-3", dtype=torch.float32)
        total = float(torch.from_numpy(SPECTRA["log-uniform-1e-3"](n)).sum())
        for name, method in names.items():
            with TensorCores():
                z = method(n, m)(x).double()
            found[name].append((1.0 - float((x * z).sum()) / total, float(torch.linalg.matrix_norm(z, 2))))
    found["dion"] = [None, (-0.010, 1.142)]
    cells = {name: [f"{c[0]:+.3f}, {c[1]:.3f}" if c else "-" for c in some] for name, some in found.items()}
    return [f"| {name} | {' | '.join(some)} |" for name, some in cells.items()]


HEAD = """# Steps on an H100, modelled

Nothing here was timed: no GPU was at hand. Written by `python benchmarks/modelled.py`, which states the model; good
for ratios only. Float32 weights. Symmetric products cost what was published for Triton kernels of that side on an H100
(1.26 times the speed of a full product at 4096, slower than one below about 2800, where it is not used); in the last
column half of the flops at any side. dion is its recorded step (half of the flops) with its symmetric products at the
same prices.

| model | optimizer | launches | ms, published speeds | ms, half of the flops |
|---|---|---:|---:|---:|
"""

MIDDLE = """
Gap and overshoot with products as tensor cores make them, singular values log-uniform from 1 to 1e-3 (dion: measured
before, in the same way, on the wide one):

| | 768 x 768 | 768 x 3072 |
|---|---|---|
"""


def main() -> None:
    steps = [row for model in MODELS for row in rows(model)]
    PAGE.write_text(HEAD + "\n".join(steps) + "\n" + MIDDLE + "\n".join(accuracy()) + "\n")
    print(PAGE.read_text())


if __name__ == "__main__":
    main()
