"""How far a gradient walks until W changes, and a model until it has an optimizer: few files and functions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from fake_models import on_fake_cuda
from inexact_muon import Muon
from inexact_muon.optim import finite
from inexact_muon_lab.plan.recorder import fake_h100
from ranks import on_ranks

FRAMES = 8
ON_CPU, ON_ACCELERATOR, ON_RANKS = (13, 38), (16, 44), (19, 59)
"""Most files and functions; on ranks where two of them share every matrix."""
MODEL_FILES, MODEL_FUNCTIONS = 14, 60
"""Of `for_model` on a GPT of two blocks, whose code need not be read."""
CALLS = 1300
"""Most calls of Python functions in a step of 256 matrices."""


def walk(step: Callable[[], Any]) -> tuple[set[tuple[str, str]], int]:
    """(file and function of the package that a step enters, frames from it to the oracle's solve or 0)"""
    seen: set[tuple[str, str]] = set()
    depths: list[int] = []

    def profile(frame: FrameType, event: str, _: Any) -> None:
        path, code = frame.f_code.co_filename, frame.f_code
        if event != "call" or "inexact_muon/" not in path or code.co_name.startswith("<"):
            return
        where = path.rpartition("inexact_muon/")[2]
        seen.add((where, code.co_qualname))
        if where.startswith("polar/") and "solve" in code.co_name and not depths:
            depth, above = 0, frame
            while above.f_back is not None and above.f_code.co_name != "step":
                depth += "inexact_muon/" in above.f_code.co_filename
                above = above.f_back
            depths.append(depth)

    sys.setprofile(profile)
    try:
        step()
    finally:
        sys.setprofile(None)
    return seen, depths[0] if depths else 0


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, 4))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.normed = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.proj(nn.functional.scaled_dot_product_attention(q, k, v))
        return x + self.down(self.up(self.normed(x)).relu())


class GPT(nn.Module):
    def __init__(self, width: int = 16, tokens: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def check(optimizer: Muon, most: tuple[int, int]) -> None:
    optimizer.step()
    seen, frames = walk(optimizer.step)
    files = {file for file, _ in seen}
    assert len(files) <= most[0], files
    assert len(seen) <= most[1], sorted(seen)
    assert frames <= FRAMES
    assert not {file for file in files if file.startswith("parallel/")}


def test_from_a_model() -> None:
    Muon.for_model(GPT(), lr=0.02)  # the first call imports
    gpt = GPT()
    seen, _ = walk(lambda: Muon.for_model(gpt, lr=0.02))
    assert len({file for file, _ in seen}) <= MODEL_FILES, {file for file, _ in seen}
    assert len(seen) <= MODEL_FUNCTIONS, sorted(seen)


def test_on_a_cpu() -> None:
    made = model()
    for p in made.parameters():
        p.grad = torch.randn_like(p)
    check(Muon.for_model(made, lr=0.02), ON_CPU)


def test_on_an_accelerator() -> None:
    with fake_h100():
        check(Muon.for_model(on_fake_cuda(model), lr=0.02), ON_ACCELERATOR)


def on_fsdp(rank: int, world: int) -> set[tuple[str, str]]:
    sharded = fully_shard(model())
    optimizer = Muon.for_model(sharded, lr=0.02)
    for _ in range(3):
        optimizer.zero_grad()
        sharded(torch.ones(8, 16)).square().mean().backward()
        seen, _ = walk(optimizer.step)
    return seen


def test_on_two_ranks() -> None:
    for seen in on_ranks(on_fsdp, 2):
        assert len({file for file, _ in seen}) <= ON_RANKS[0], sorted(seen)
        assert len(seen) <= ON_RANKS[1], sorted(seen)


def test_one_process_imports_nothing_for_several() -> None:
    code = """
import sys, torch
from inexact_muon import Muon
from inexact_muon.optim import finite
p = torch.nn.Parameter(torch.eye(4)); p.grad = torch.eye(4)
Muon([p]).step()
assert not [name for name in sys.modules if name.startswith("inexact_muon.parallel")]
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def python_calls(step: Callable[[], Any]) -> int:
    """Calls of Python functions, of any package."""
    count = 0

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        step()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("readable", [("cpu",), ()], ids=["host", "accelerator"])
def test_calls_grow_with_the_number_of_matrices_and_little(
    readable: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finite, "HOST_READABLE", readable)
    found = []
    for count in (64, 128, 256):
        ps = [nn.Parameter(torch.ones(8, 8)) for _ in range(count)]
        for p in ps:
            p.grad = torch.eye(8)
        optimizer = Muon(ps, lr=0.02, polar="jordan:1")
        for _ in range(2):
            optimizer.step()
        found.append(python_calls(optimizer.step))
    assert found[2] <= CALLS
    assert found[2] - found[0] <= (256 - 64) / 8, "lists are passed whole: a matrix more adds no call of its own"
