"""Whole optimizer steps, compared with those of torch and of installed peers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from inexact_muon.optim import Muon
from inexact_muon.polar import Jordan
from inexact_muon.polar.batching import limit_on
from inexact_muon.schedules.published import JORDAN
from inexact_muon_lab.bench.oracles import ACCURATE, FAST, GPT2_LAYER, RECORDED, quintics, with_spectrum, worst
from inexact_muon_lab.bench.peers import PEERS, TORCH, in_float32
from inexact_muon_lab.bench.timing import CPU, Work, interleaved, native_bfloat16, peak_memory, ratio

SMALL = ((128, 128),) * 12 + ((512, 128),) * 3 + ((128, 512),) * 3
"""The hidden matrices of a GPT of 3 layers, 128 wide."""

MIDDLE = ((256, 256),) * 16 + ((1024, 256),) * 4 + ((256, 1024),) * 4
"""The same for 4 layers, 256 wide."""

SETS = {"18 small matrices": SMALL, "24 of width 256": MIDDLE, "GPT-2 layer": GPT2_LAYER}
ADAMW, PLAIN, BATCHED = "torch.optim.AdamW", "five quintics, one matrix at a time", "five quintics, batched"
LR = 1e-3

MATRICES = (("*", "lmo"),)


class Plain(torch.optim.Optimizer):
    """Muon as in a short script: float32, five direct quintic steps, one matrix at a time."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": LR})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Momentum with Nesterov, five quintic steps, decay, update."""
        for p in self.param_groups[0]["params"]:
            buffer = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
            buffer.lerp_(p.grad, 0.05)
            update = quintics([p.grad.lerp(buffer, 0.95)], [JORDAN] * 5)[0]
            p.mul_(1.0 - 1e-4)
            p.add_(update, alpha=-LR * max(1.0, p.shape[0] / p.shape[1]) ** 0.5)


class Bag(nn.Module):
    """A module that consists of matrices with gradients; `rules=MATRICES` routes all of them to the LMO."""

    def __init__(self, shapes: tuple[tuple[int, int], ...], device: torch.device = CPU) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        for i, shape in enumerate(shapes):
            p = nn.Parameter((0.02 * torch.randn(shape, generator=generator)).to(device))
            p.grad = p.fixed_grad = torch.randn(shape, generator=generator).to(device)  # type: ignore[attr-defined]
            self.register_parameter(f"p{i}", p)


@dataclass(frozen=True)
class Contender:
    """An optimizer of the comparison, and what modifies its step. A `peer` is from another package, which may be
    missing; one that is `emulated` multiplies in bfloat16, which this CPU emulates."""

    make: Callable[[Bag], torch.optim.Optimizer]
    wrapped: Callable[[Work], Work] = lambda work: work
    peer: bool = False
    emulated: bool = False

    def step(self, bag: Bag) -> Work:
        """The step of a new optimizer, after it has run once."""
        work = self.wrapped(stepping(self.make(bag)))
        work()
        return work


def ours(text: str) -> str:
    """Name of the row of `Muon.for_model` with this oracle."""
    return f"Muon.for_model(polar={text})"


def contenders(device: torch.device = CPU, peers: bool = False) -> dict[str, Contender]:
    """Name -> optimizer. Where bfloat16 is emulated peers run in float32, and torch's also unmodified."""

    def for_model(text: str) -> Contender:
        return Contender(lambda bag: Muon.for_model(bag, LR, rules=MATRICES, polar=text))

    rows = {
        ADAMW: Contender(lambda bag: torch.optim.AdamW(bag.parameters())),
        PLAIN: Contender(lambda bag: Plain(bag.parameters())),
        BATCHED: Contender(lambda bag: Muon(bag.parameters(), lr=LR, polar=Jordan(5, form="direct"))),
        **{ours(text): for_model(text) for text in (FAST, ACCURATE)},
        "Muon(polar-express:5)": Contender(lambda bag: Muon(bag.parameters(), lr=LR)),
    }
    emulated = device.type == "cpu" and not native_bfloat16()
    for name, peer in PEERS.items():
        if not (peers or name == TORCH):
            continue

        def make(bag: Bag, peer: Any = peer) -> torch.optim.Optimizer:
            return peer.make(list(bag.parameters()), device, LR)

        if emulated:
            rows[f"{name}, in float32"] = Contender(make, partial(in_float32, peer), peer=True)
        if not emulated or name == TORCH:
            label = f"{name}, bfloat16 emulated" if emulated else name
            rows[label] = Contender(make, peer=True, emulated=emulated)
    return rows


ABSENT = (ImportError, RuntimeError, TypeError, ValueError, AttributeError, AssertionError)
"""Exceptions of peers that are not installed or do not work on this machine."""


def stepping(optimizer: torch.optim.Optimizer) -> Work:
    """A step that sets the gradients first, because some optimizers delete them."""
    params = [p for group in optimizer.param_groups for p in group["params"]]

    def work() -> None:
        for p in params:
            p.grad = p.fixed_grad
        optimizer.step()

    return work


def compare(
    rounds: int, peers: bool, tick: Callable[[], object], device: torch.device = CPU
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """(rows of time over ours and over AdamW's with accuracy, per optimizer and set; peers without row -> reason)"""
    rows: list[dict[str, Any]] = []
    absent: dict[str, str] = {}
    for name, shapes in SETS.items():
        works: dict[str, Work] = {}
        judged: dict[str, dict[str, float]] = {}
        for key, contender in contenders(device, peers).items():
            if contender.emulated and shapes != SMALL:
                continue  # half a minute a step
            try:
                works[key] = contender.step(Bag(shapes, device))
                judged[key] = accuracy(contender, min(shapes[0]), device) if key != ADAMW else {}
            except ABSENT as error:
                if not contender.peer:
                    raise
                works.pop(key, None)
                absent[key] = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        times = interleaved(works, 5 * rounds if shapes == SMALL else rounds, tick, device)
        for key in works:
            over = {text: ratio(times, key, ours(text)) for text in (FAST, ACCURATE)}
            adamw = ratio(times, key, ADAMW)["time"]
            rows.append({"set": name, "optimizer": key, "adamw": adamw, **over, **judged[key]})
    return rows, absent


def accuracy(contender: Contender, n: int, device: torch.device = CPU) -> dict[str, float]:
    """Gap, overshoot and smallest singular value of -step/lr from zero weights, on recorded momentum.

    The matrix is square, where the scale factors of all of these optimizers are 1.
    """
    bag = Bag(((n, n),), device)
    (p,) = bag.parameters()
    m = with_spectrum((n, n), RECORDED, 0)
    p.data.zero_()
    p.fixed_grad = m.to(device)  # type: ignore[attr-defined]
    contender.step(bag)
    accuracy = worst([m], [p.detach().double().cpu() / -LR])
    return {key: accuracy[key] for key in ("gap", "overshoot", "smallest")}


def memory(device: torch.device = CPU) -> list[dict[str, Any]]:
    """Peak bytes of a step of `Muon.for_model`, in copies of the largest matrix; allowed are six, or the limit."""
    rows = []
    more = {"4 of 2048x2048": ((2048, 2048),) * 4, "64 experts of 256x512": ((256, 512),) * 64}
    for name, shapes in {**SETS, **more}.items():
        optimizer = Muon.for_model(Bag(shapes, device), LR, rules=MATRICES)
        peak = peak_memory(optimizer.step, device)
        largest = max(n * m for n, m in shapes) * 4
        allowed = max(6 * largest, limit_on(device, None))
        rows.append({"set": name, "peak": peak, "copies of the largest": peak / largest, "allowed": allowed})
    return rows
