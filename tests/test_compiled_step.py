"""A step inside of `torch.compile` is the step without it, bit for bit, and no learning rate compiles it again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from inexact_muon import Muon, Scion
from inexact_muon.optim import LMOOptimizer
from tiers import at_length

STEPS = 5
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit"),  # torch's own, on importing Inductor
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),  # dynamo looks at the loss
]


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    """A second compilation of any function is an error."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=True):
        yield
    torch._dynamo.reset()


def matrices(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.ndim == 2]


OPTIMIZERS: dict[str, Callable[[nn.Module], LMOOptimizer]] = {
    "Muon": lambda model: Muon(matrices(model), lr=0.02),
    "Scion": lambda model: Scion(matrices(model), lr=0.02),
    "for_model": lambda model: Muon.for_model(model, lr=0.02),
    "measured": lambda model: Muon.for_model(model, lr=0.02, sample_every=2),
    "a tensor as lr": lambda model: Muon(matrices(model), lr=torch.tensor(0.02)),
}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, 11))


def batch(k: int) -> Tensor:
    return torch.randint(0, 11, (32,), generator=torch.Generator().manual_seed(k))


def trained(make: Callable[[nn.Module], LMOOptimizer], inside: bool) -> list[Tensor]:
    """Weights and states after steps whose learning rates differ."""
    model = network()
    optimizer = make(model)
    step = torch.compile(optimizer.step) if inside else optimizer.step
    for k in range(STEPS):
        cross_entropy(model(batch(k)), (batch(k) + 1) % 11).backward()
        step()
        optimizer.zero_grad()
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
    states = [value for state in optimizer.state.values() for value in state.values()]
    return [*(p.detach() for p in model.parameters()), *states]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_compiled_step_is_the_step(name: str) -> None:
    for a, b in zip(*(trained(OPTIMIZERS[name], inside) for inside in (False, True)), strict=True):
        assert torch.equal(a, b)


def test_hooks_and_closures_are_called() -> None:
    model, calls = network(), []
    optimizer = Muon(matrices(model), lr=0.02)
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))

    def closure() -> Tensor:
        calls.append("closure")
        loss = cross_entropy(model(batch(0)), batch(0))
        loss.backward()
        return loss

    before = [p.detach().clone() for p in matrices(model)]
    loss = torch.compile(optimizer.step)(closure)
    assert calls == ["before", "closure", "after"]
    assert loss.item() > 0.0
    assert not any(torch.equal(a, b) for a, b in zip(before, matrices(model), strict=True))


def test_an_error_is_the_same_sentence() -> None:
    p = nn.Parameter(torch.eye(4))
    optimizer = Muon([("layer", p)], lr=0.1, on_nonfinite="raise")
    p.grad = torch.full((4, 4), float("nan"))
    with pytest.raises(ValueError, match="not finite"):
        torch.compile(optimizer.step)()
    assert torch.equal(p.detach(), torch.eye(4))


def loop(compiler: Callable[[Any], Any], make: Callable[[nn.Module], LMOOptimizer]) -> list[Tensor]:
    """A training function compiled whole, its step inside."""
    model = network()
    optimizer = make(model)

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    run = compiler(train)
    losses = []
    for k in range(STEPS):
        losses.append(run(batch(k), (batch(k) + 1) % 11))
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
    return [*losses, *(p.detach() for p in model.parameters())]


@pytest.mark.parametrize("name", ["Muon", "Scion", "for_model"])
def test_a_training_function(name: str) -> None:
    for a, b in zip(*(loop(c, OPTIMIZERS[name]) for c in (lambda f: f, captured)), strict=True):
        assert torch.equal(a, b)


def captured(function: Any) -> Any:
    return torch.compile(function, backend="eager")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler here: install g++")
@pytest.mark.parametrize("name", at_length(["for_model"], "Muon", "Scion"))
def test_a_training_function_for_real(name: str) -> None:
    """Inductor rounds the forward and backward pass in another order."""
    for a, b in zip(*(loop(c, OPTIMIZERS[name]) for c in (lambda f: f, torch.compile)), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-4)
