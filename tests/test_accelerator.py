"""What a step costs on an accelerator, counted on fake CUDA tensors: budgets that a launch more would break."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from fake_cuda import Recorder, fake_h100, on_fake_cuda, second_step
from inexact_muon import Muon, polar
from inexact_muon.polar.batching import ACCELERATOR_LIMIT


class Stacks(nn.Module):
    """Repeated blocks of matrices, each with a norm, between an embedding and an output layer."""

    def __init__(
        self, layers: int, matrices: dict[str, tuple[int, int]], vocabulary: int, tied: bool, bias: bool
    ) -> None:
        super().__init__()
        width = next(iter(matrices.values()))[1]
        self.tokens, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary, bias=bias)
        if tied:
            self.head.weight = self.tokens.weight
        self.norm = nn.LayerNorm(width, bias=bias)
        self.blocks = nn.ModuleList()
        for _ in range(layers):
            block = {name: nn.Linear(into, out, bias=bias) for name, (out, into) in matrices.items()}
            norms = {name: nn.LayerNorm(width, bias=bias) for name in ("first", "second")}
            self.blocks.append(nn.ModuleDict({**block, **norms}))


class Experts(nn.Module):
    """Layers of 3-D weights, up and down, of 64 experts."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.up = nn.ParameterList([nn.Parameter(torch.empty(64, 1408, 2048)) for _ in range(layers)])
        self.down = nn.ParameterList([nn.Parameter(torch.empty(64, 2048, 1408)) for _ in range(layers)])


GPT2 = {"c_attn": (2304, 768), "attn_proj": (768, 768), "fc": (3072, 768), "mlp_proj": (768, 3072)}
LLAMA = {
    "q_proj": (4096, 4096),
    "k_proj": (1024, 4096),
    "v_proj": (1024, 4096),
    "o_proj": (4096, 4096),
    "gate_proj": (14336, 4096),
    "up_proj": (14336, 4096),
    "down_proj": (4096, 14336),
}


def gpt2(layers: int = 12, bias: bool = False) -> nn.Module:
    return Stacks(layers, GPT2, 50304, tied=True, bias=bias)


def llama(layers: int = 32) -> nn.Module:
    return Stacks(layers, LLAMA, 128256, tied=False, bias=False)


def recorded(build: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch) -> tuple[Recorder, int]:
    """(the second step of `Muon.for_model`, the number of parameters)"""
    with fake_h100(monkeypatch):
        model = on_fake_cuda(build)
        return second_step(Muon.for_model(model, lr=0.02)), sum(p.numel() for p in model.parameters())


BUDGETS = {
    "gpt2": (gpt2, 186, 65.0),
    "gpt2 with biases": (lambda: gpt2(bias=True), 186, 65.0),
    "a quarter of llama": (lambda: llama(8), 445, 61.0),
    "llama": (llama, 1370, 72.5),
    "experts": (Experts, 236, 81.5),
}
"""Model -> most launches, most bytes of elementwise traffic a parameter. What is over it has to be argued for."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == "llama" else []) for name in BUDGETS]
)
def test_a_step_stays_within_its_budget(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    build, most, traffic = BUDGETS[name]
    found, count = recorded(build, monkeypatch)
    assert found.launches <= most
    assert found.bytes / count <= traffic
    assert found.waits == []
    assert found.copies == []
    assert found.peak <= ACCELERATOR_LIMIT


@pytest.mark.parametrize("bias", [False, True])
def test_nothing_waits_and_nothing_is_copied_to_the_device(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = recorded(lambda: gpt2(2, bias), monkeypatch)
    assert found.waits == []
    assert found.copies == []


def test_a_matrix_more_is_two_launches_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for its flag and one for its update; everything else is done on stacks by shape."""
    few, many = (recorded(lambda n=layers: gpt2(n), monkeypatch)[0].launches for layers in (2, 6))  # type: ignore[misc]
    assert many - few == 2 * 4 * 4


def test_biases_add_launches_by_kinds_and_not_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, biased = (
        [recorded(lambda n=layers, b=bias: gpt2(n, b), monkeypatch)[0].launches for layers in (2, 6)]  # type: ignore[misc]
        for bias in (False, True)
    )
    assert biased[1] - biased[0] == plain[1] - plain[0]
    assert biased[0] - plain[0] <= 8


ORACLES = {
    "auto": "auto",
    "float32": polar.PolarExpress(5, dtype=torch.float32),
    "float32, direct": polar.PolarExpress(5, dtype=torch.float32, form="direct"),
    "degree 9": polar.PolarExpress(4, degree=9, safety=1.06),
    "frobenius": polar.Jordan(5),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ORACLES)
def test_work_space_stays_within_the_limit(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 128 * 2**20
    with fake_h100(monkeypatch):
        model = on_fake_cuda(lambda: gpt2(2), dtype)
        found = second_step(Muon.for_model(model, lr=0.02, polar=ORACLES[name], memory_limit=limit))
    assert limit / 4 < found.peak <= limit
    assert found.waits == []
