"""Steps on an H100 by a model, nothing timed: `python benchmarks/modelled.py` writes benchmarks/results/modelled.md.

Operations of a whole step are recorded on fake CUDA tensors (tests/fake_cuda.py). Each is priced by its shapes: products
at 70 % of 989 TF/s (half precision; 67 TF/s float32) times the share of busy multiprocessors, everything else at 85 % of
3.35 TB/s, at least 2 us a kernel; a step takes at least 5 us of host time a launch. Good for ratios only.

A symmetric product that is a kernel costs the full product over the speed that was published for its side on that device
(`inexact_muon.polar.kernel.PUBLISHED`), or, in the second column, half of the flops at any side, which no kernel reaches.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil, prod
from pathlib import Path

import pytest
import torch
from torch import nn

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from fake_cuda import Launch, Recorder, fake_h100, on_fake_cuda  # noqa: E402
from fake_models import GPT2, LLAMA, gpt2, llama  # noqa: E402

from inexact_muon import Muon  # noqa: E402
from inexact_muon.polar import kernel  # noqa: E402

PEAK, BANDWIDTH, MULTIPROCESSORS, HOST, FLOOR = {2: 989e12, 4: 67e12, 8: 34e12}, 3.35e12, 132, 5e-6, 2e-6
H100 = (9, 0)
MODELS: dict[str, Callable[[], nn.Module]] = {"GPT-2 124M": gpt2, "Llama-3-8B": llama}
LAYERS = {"GPT-2 124M": (12, GPT2), "Llama-3-8B": (32, LLAMA)}
DION = {"GPT-2 124M": 5.7e-3, "Llama-3-8B": 894e-3}
"""dion with its Triton kernels, recorded and priced by the same model with symmetric products at half of the flops."""


def product(batch: int, n: int, k: int, m: int, size: int) -> float:
    """Seconds of a batch of n x k x m products of entries of `size` bytes."""

    def busy(rows: int, columns: int) -> float:
        tiles = batch * ceil(n / rows) * ceil(m / columns)
        return tiles / (ceil(tiles / MULTIPROCESSORS) * MULTIPROCESSORS)

    share = max(busy(128, 128), busy(128, 256), 0.6 * busy(64, 64))
    moved = batch * (n * k + k * m + n * m) * size
    return max(2 * batch * n * k * m / (PEAK[size] * 0.7 * share), moved / (BANDWIDTH * 0.85), FLOOR)


def seconds(done: Launch, halved: bool) -> float:
    """One operation."""
    shapes = [(shape, dtype.itemsize) for shape, dtype in done.given[0]]
    name = done.name.rstrip("_")
    if name not in ("bmm", "mm", "baddbmm", "addmm", "symmetric_product"):
        return max(done.bytes / (BANDWIDTH * 0.85), FLOOR * done.launches)
    (a, size), (b, _) = shapes[1:3] if name in ("baddbmm", "addmm") else shapes[:2]
    batch, n, k, m = prod(a[:-2]), a[-2], a[-1], b[-1]
    time = product(batch, n, k, m, size)
    if name == "symmetric_product":
        return time / (2.0 if halved else kernel.speed(n, H100))
    copied = done.name in ("baddbmm", "addmm")  # a new tensor: a copy and a product
    return time + (max(2 * batch * n * m * size / (BANDWIDTH * 0.85), FLOOR) if copied else 0.0)


@contextmanager
def gate(everywhere: bool) -> Iterator[None]:
    """The kernel as if Triton were installed; with `everywhere` for every symmetric product in half precision."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "INSTALLED", True)
        if everywhere:
            patch.setattr(kernel, "smallest_side", lambda device: 1)
            patch.setattr(kernel, "FEWEST", 1)
        with fake_h100(patch):
            yield


def ours(model: nn.Module) -> list[torch.optim.Optimizer]:
    return [Muon.for_model(model, lr=0.02)]


def torchs(model: nn.Module) -> list[torch.optim.Optimizer]:
    """torch.optim.Muon for the matrices of the blocks, fused AdamW for the rest."""
    hidden = [p for name, p in model.named_parameters() if p.ndim == 2 and name.startswith("blocks")]
    rest = [p for p in model.parameters() if not any(p is other for other in hidden)]
    return [torch.optim.Muon(hidden, lr=0.02), torch.optim.AdamW(rest, fused=True)]


def step(model: str, make: Callable[[nn.Module], list[torch.optim.Optimizer]], halved: bool) -> tuple[float, int, float]:
    """(seconds, launches, floating point operations of products in full) of a step."""
    with gate(everywhere=halved):
        optimizers = make(on_fake_cuda(MODELS[model]))
        for _ in range(2):
            with Recorder() as found:
                for optimizer in optimizers:
                    optimizer.step()
    work = sum(seconds(done, halved) for done in found.operations)
    return max(work, found.launches * HOST), found.launches, work


def dion(model: str, halved: bool) -> float:
    """dion's step: the recorded one, with its symmetric products (X X^T and A A of five quintics) at another price."""
    if halved:
        return DION[model]
    layers, matrices = LAYERS[model]
    shapes: dict[tuple[int, int], int] = {}
    for shape in matrices.values():
        side = (min(shape), max(shape))
        shapes[side] = shapes.get(side, 0) + layers
    more = 0.0
    for (n, m), count in shapes.items():
        for k in (m, n):
            more += 5 * product(count, n, k, n, 2) * (1.0 / max(1.0, kernel.speed(n, H100)) - 0.5)
    return DION[model] + more


def main() -> None:
    for model in MODELS:
        for halved in (False, True):
            t, count, _ = step(model, ours, halved)
            print(model, "halved" if halved else "published", f"ours {1e3 * t:.2f} ms ({count})", f"dion {1e3 * dion(model, halved):.2f}", flush=True)
        t, count, _ = step(model, torchs, False)
        print(model, f"torch {1e3 * t:.2f} ({count})")


if __name__ == "__main__":
    main()
