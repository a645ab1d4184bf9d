"""Run by test_symmetric_kernel.py with TRITON_INTERPRET=1: the kernel on CPU tensors, beside baddbmm in float64.

Prints a JSON list of (case, largest error over the scale of rounding, whether it is exactly symmetric). Factors that
hold bfloat16 values are given as float32, because the interpreter multiplies bfloat16 wrongly.
"""

from __future__ import annotations

import json

import torch
from torch import Tensor

from inexact_muon.polar import triton_kernel

SHAPES = ((1, 128, 64), (2, 200, 40), (3, 37, 150), (1, 5, 3), (2, 129, 129), (1, 1, 7))
"""(batch, n, k): whole tiles, ragged ones, less than one."""


def symmetric(batch: int, n: int, generator: torch.Generator) -> Tensor:
    x = torch.randn(batch, n, n, generator=generator, dtype=torch.float64)
    return (x + x.mT) / (2.0 * n) ** 0.5


def factors(kind: str, batch: int, n: int, k: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """X and its transposed view, a view of every second row and column, or two matrices that commute."""
    if kind == "commuting":
        a = symmetric(batch, n, generator)
        return a, a @ a + 0.5 * a
    step = 2 if kind == "strided" else 1
    x = torch.randn(batch * step, n * step, k * step, generator=generator, dtype=torch.float64)[::step, ::step, ::step]
    return x / k**0.5, (x / k**0.5).mT


def errors() -> list[tuple[str, float, bool]]:
    generator, found = torch.Generator().manual_seed(0), []
    for given, made in ((torch.float32,) * 2, (torch.float16,) * 2, (torch.float32, torch.bfloat16)):
        for kind in ("transposed", "strided", "commuting"):
            for batch, n, k in SHAPES:
                for added in (False, True):
                    a, b = (x.to(made).to(given) for x in factors(kind, batch, n, k, generator))
                    if kind == "strided":
                        wide = a.new_zeros(2 * batch, 2 * n, 2 * a.shape[-1])
                        wide[::2, ::2, ::2] = a
                        a = wide[::2, ::2, ::2]
                        b = a.mT
                    add = symmetric(batch, n, generator).to(made) if added else None
                    room = torch.full((batch + 1, n, n + 3), torch.nan, dtype=made)
                    out = room[1:, :, 2:-1]
                    wanted = 0.7 * (a.double() @ b.double()) + (0.0 if add is None else -1.5 * add.double())
                    triton_kernel.launch(a, b, add, -1.5, 0.7, out)
                    assert bool(room[0].isnan().all()), "it wrote outside"
                    if add is not None:
                        triton_kernel.launch(a, b, add, -1.5, 0.7, add)
                        assert torch.equal(add, out), "in place it is another"
                    unit = torch.finfo(made).eps * (1.0 + float(wanted.abs().max()))
                    worst = float((out.double() - (wanted + wanted.mT) / 2).abs().max()) / unit
                    case = f"{str(made).removeprefix('torch.')} {kind} {batch}x{n}x{k}{' added' * added}"
                    found.append((case, worst, torch.equal(out, out.mT)))
    return found


if __name__ == "__main__":
    print(json.dumps(errors()))
