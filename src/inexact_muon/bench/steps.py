"""Whole optimizer steps, side by side with torch's and with whichever peers are installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from inexact_muon.bench.oracles import GPT2_LAYER, quintics
from inexact_muon.bench.timing import Work, interleaved, native_bfloat16, peak_memory
from inexact_muon.optim import Muon
from inexact_muon.polar.batching import LIMIT
from inexact_muon.schedules.published import JORDAN

SMALL = ((128, 128),) * 12 + ((512, 128),) * 3 + ((128, 512),) * 3
"""The hidden matrices of a GPT of 3 layers, 128 wide."""

SETS = {"18 small matrices": SMALL, "GPT-2 layer": GPT2_LAYER}
ADAMW, PLAIN, TORCH, OURS = (
    "torch.optim.AdamW",
    "five quintics, one matrix at a time",
    "torch.optim.Muon",
    "Muon.for_model",
)

PEERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "pytorch_optimizer.Muon": ("pytorch_optimizer", "Muon", {"use_muon": True}),
    "heavyball.Muon": ("heavyball", "Muon", {}),
    "timm.optim.Muon": ("timm.optim", "Muon", {}),
    "muon.SingleDeviceMuon": ("muon", "SingleDeviceMuon", {}),
}
"""Name -> (module, class, what its parameter group needs)."""


MATRICES = (("*", "lmo"),)


class Plain(torch.optim.Optimizer):
    """Muon as a short script has it: float32, five direct quintic steps, one matrix at a time."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 1e-3})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """lerp, Nesterov, five steps, decay, update."""
        for p in self.param_groups[0]["params"]:
            buffer = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
            buffer.lerp_(p.grad, 0.05)
            update = quintics([p.grad.lerp(buffer, 0.95)], [JORDAN] * 5)[0]
            p.mul_(1.0 - 1e-4)
            p.add_(update, alpha=-1e-3 * max(1.0, p.shape[0] / p.shape[1]) ** 0.5)


class Bag(nn.Module):
    """A module of nothing but matrices; `rules=MATRICES` gives the LMO to all of them."""

    def __init__(self, shapes: tuple[tuple[int, int], ...]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        for i, shape in enumerate(shapes):
            p = nn.Parameter(0.02 * torch.randn(shape, generator=generator))
            p.grad = p.given = torch.randn(shape, generator=generator)  # type: ignore[attr-defined]
            self.register_parameter(f"p{i}", p)


def optimizers(shapes: tuple[tuple[int, int], ...], peers: bool) -> dict[str, torch.optim.Optimizer]:
    """Every optimizer with parameters of its own."""

    def params() -> list[Tensor]:
        return list(Bag(shapes).parameters())

    made: dict[str, torch.optim.Optimizer] = {
        ADAMW: torch.optim.AdamW(params()),
        PLAIN: Plain(params()),
        **({TORCH: torch.optim.Muon(params())} if hasattr(torch.optim, "Muon") else {}),  # since torch 2.9
        OURS: Muon.for_model(Bag(shapes), 1e-3, rules=MATRICES),
        "Muon(polar-express:5)": Muon(params()),
    }
    if peers:
        for name, (module, cls, group) in PEERS.items():
            try:
                made[name] = getattr(importlib.import_module(module), cls)([{"params": params(), **group}], lr=1e-3)
                stepping(made[name])()
            except (ImportError, RuntimeError, TypeError, AttributeError):
                made.pop(name, None)  # not installed, or not usable here: the table has no row for it
    return made


def stepping(optimizer: torch.optim.Optimizer) -> Work:
    """A step with the gradients put back first: some optimizers drop them."""
    params = [p for group in optimizer.param_groups for p in group["params"]]

    def work() -> None:
        for p in params:
            p.grad = p.given
        optimizer.step()

    return work


def compare(rounds: int, peers: bool, tick: Callable[[], object]) -> list[dict[str, Any]]:
    """One row per optimizer and set: time over AdamW's, and over ours."""
    rows: list[dict[str, Any]] = []
    for name, shapes in SETS.items():
        made = optimizers(shapes, peers)
        works = {key: stepping(optimizer) for key, optimizer in made.items()}
        count = 5 * rounds if shapes == SMALL else rounds
        times = interleaved(works, count, tick)
        for key in made:
            ratio, other = times.over(key, ADAMW), times.over(key, OURS)
            rows.append(
                {
                    "set": name,
                    "optimizer": key,
                    "adamw": ratio.middle,
                    "ours": other.middle,
                    "low": other.low,
                    "high": other.high,
                }
            )
    return rows


def memory() -> list[dict[str, Any]]:
    """Peak extra bytes of a step of ours over six copies of the largest matrix, and over the limit."""
    rows = []
    for name, shapes in {
        **SETS,
        "4 of 2048x2048": ((2048, 2048),) * 4,
        "64 experts of 256x512": ((256, 512),) * 64,
    }.items():
        optimizer = Muon.for_model(Bag(shapes), 1e-3, rules=MATRICES)
        peak = peak_memory(optimizer.step)
        largest = max(n * m for n, m in shapes) * 4
        allowed = max(6 * largest, LIMIT)
        rows.append({"set": name, "peak": peak, "copies of the largest": peak / largest, "allowed": allowed})
    return rows


def machine() -> dict[str, Any]:
    """What the ratios depend on."""
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "bfloat16 products": "native" if native_bfloat16() else "emulated",
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }
