"""What a step costs on an accelerator, counted on fake CUDA tensors: budgets that a launch more would break."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from fake_models import Experts, gpt2, llama, on_fake_cuda
from inexact_muon import Muon, polar
from inexact_muon.polar.batching import ACCELERATOR_LIMIT
from inexact_muon_lab.plan.recorder import Recorder, fake_h100
from inexact_muon_lab.plan.step import second_step


def recorded(build: Callable[[], nn.Module]) -> tuple[Recorder, int]:
    """(the second step of `Muon.for_model`, the number of parameters), without Triton, whose kernel saves launches."""
    with fake_h100():
        model = on_fake_cuda(build)
        return second_step(Muon.for_model(model, lr=0.02)), sum(p.numel() for p in model.parameters())


BUDGETS = {
    "gpt2": (gpt2, 171, 64.5),
    "gpt2 with biases": (lambda: gpt2(bias=True), 171, 64.5),
    "a quarter of llama": (lambda: llama(8), 474, 62.0),
    "llama": (llama, 1366, 74.0),
    "experts": (Experts, 227, 81.0),
}
"""Model -> most launches, most bytes of elementwise traffic a parameter. What is over it has to be argued for."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == "llama" else []) for name in BUDGETS]
)
def test_a_step_stays_within_its_budget(name: str) -> None:
    build, most, traffic = BUDGETS[name]
    found, count = recorded(build)
    assert found.launches <= most
    assert found.bytes / count <= traffic
    assert found.waits == []
    assert found.copies == []
    assert found.peak <= ACCELERATOR_LIMIT


@pytest.mark.parametrize("bias", [False, True])
def test_nothing_waits_and_nothing_is_copied_to_the_device(bias: bool) -> None:
    found, _ = recorded(lambda: gpt2(2, bias))
    assert found.waits == []
    assert found.copies == []


def test_a_matrix_more_is_two_launches_more() -> None:
    """One for its flag and one for its update; everything else is done on stacks by shape."""
    few, many = (recorded(lambda n=layers: gpt2(n))[0].launches for layers in (2, 6))  # type: ignore[misc]
    assert many - few == 2 * 4 * 4


def test_biases_add_launches_by_kinds_and_not_by_number() -> None:
    plain, biased = (
        [recorded(lambda n=layers, b=bias: gpt2(n, b))[0].launches for layers in (2, 6)]  # type: ignore[misc]
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
def test_work_space_stays_within_the_limit(name: str, dtype: torch.dtype) -> None:
    limit = 128 * 2**20
    with fake_h100():
        model = on_fake_cuda(lambda: gpt2(2), dtype)
        found = second_step(Muon.for_model(model, lr=0.02, polar=ORACLES[name], memory_limit=limit))
    assert limit / 4 < found.peak <= limit
    assert found.waits == []


@pytest.mark.parametrize("installed", [False, True])
@pytest.mark.parametrize("shape", [(1024, 1560), (4096, 6400), (4096, 14336)])
def test_work_space_of_the_gram_form_stays_within_the_limit(shape: tuple[int, int], installed: bool) -> None:
    """It holds more n x n matrices than the direct one, most next to X where m is little more than 1.5 n."""
    limit = 2**30
    with fake_h100(triton=installed):
        count = 4 + limit // (4 * shape[0] * shape[1])
        ps = [nn.Parameter(torch.empty(shape, device="cuda")) for _ in range(count)]
        for p in ps:
            p.grad = torch.empty(shape, device="cuda")
        found = second_step(Muon(ps, lr=0.02, polar="auto", memory_limit=limit))
    assert limit / 4 < found.peak <= limit
