"""A step that a CUDA graph can repeat: the same operations every time, tensors in place of numbers, what is refused.

No GPU is needed: operations are compared on fake CUDA tensors, and a stand-in runs the step again where a graph would.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from inexact_muon import Muon
from inexact_muon.optim import CapturedStep, LMOOptimizer, MomentumSchedule, Observer, finite
from inexact_muon.optim import capture as capturing
from inexact_muon_lab.plan.recorder import Recorder, fake_h100
from test_optim_equations import problem

SHAPES = ((6, 9), (9, 6), (6, 9), (5,))

OPTIONS: dict[str, dict[str, Any]] = {
    "muon": {"nesterov": True, "momentum_init": "zero", "weight_decay": 0.1},
    "first gradient": {"nesterov": True, "momentum_init": "first-gradient"},
    "heavy ball, first gradient": {"momentum_init": "first-gradient", "weight_decay": 0.1},
    "steepest": {"length": "steepest"},
    "maximize": {"maximize": True, "scale": "original"},
    "constrained": {"constrained": True},
}


def groups(params: list[nn.Parameter], lr: Any, momentum: Any) -> list[dict[str, Any]]:
    """Matrices for the LMO in two groups, and AdamW for the vector."""
    adamw = {"params": params[3:], "algorithm": "adamw", "lr": 0.003, "weight_decay": 0.0, "constrained": False}
    adamw |= {"length": "fixed", "scale": "none", "momentum": 0.9}
    return [
        {"params": params[:2], "lr": lr, "momentum": momentum},
        {"params": params[2:3], "lr": 0.01, "momentum": 0.8},
        adamw,
    ]


def made(params: list[nn.Parameter], lr: Any = 0.02, momentum: Any = 0.9, **options: Any) -> LMOOptimizer:
    ball = options.pop("ball", "spectral(polar-express:5)")
    return LMOOptimizer(groups(params, lr, momentum), 0.02, 0.9, ball=ball, **options)


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_consecutive_steps_are_the_same_operations(name: str, tensors: bool) -> None:
    """Names, shapes and numbers; nothing waits for the device. The first step also makes the states."""
    steps = []
    with fake_h100():
        params = [nn.Parameter(torch.empty(shape, device="cuda")) for shape in SHAPES]
        optimizer = made(params, **OPTIONS[name])
        if tensors:  # not at construction, where values are checked
            for group in optimizer.param_groups:
                group["lr"], group["momentum"] = (torch.empty((), device="cuda") for _ in range(2))
        for _ in range(4):
            for p in params:
                p.grad = torch.empty_like(p)
            with Recorder() as recorder:
                optimizer.step()
            steps.append(recorder)
    assert steps[1].operations == steps[2].operations == steps[3].operations
    assert len(steps[1].operations) > 50
    assert all(step.waits == [] for step in steps)
    assert all(step.copies == [] for step in steps[1:])


@pytest.mark.parametrize("name", OPTIONS)
def test_what_is_captured_is_what_a_step_launches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On fake CUDA tensors: every operation, no wait, no copy from the host, no message; then none but the replay."""
    monkeypatch.setattr(capturing, "_value_or_address", lambda x: id(x) if isinstance(x, torch.Tensor) else x)
    graphs = []

    class Graph(Recorder):
        replays = 0

        def replay(self) -> None:
            self.replays += 1

    def capture(run: Callable[[], Any]) -> Graph:
        graphs.append(Graph())
        with graphs[-1]:
            run()
        return graphs[-1]

    with fake_h100():
        params = [nn.Parameter(torch.empty(shape, device="cuda")) for shape in SHAPES]
        optimizer = made(params, **OPTIONS[name])
        for p in params:
            p.grad = torch.empty_like(p)
        step = CapturedStep(optimizer, capture=capture)
        for _ in range(capturing.WARM):
            step()
        with Recorder() as eager:
            optimizer.step()
        step()
        with Recorder() as later:
            step()
    (graph,) = graphs
    assert graph.operations == eager.operations
    assert (graph.waits, graph.copies, graph.messages) == ([], [], [])
    assert (graph.replays, later.events) == (2, [])


@pytest.mark.filterwarnings("ignore:all groups now have lr")
@pytest.mark.parametrize("name", OPTIONS)
def test_tensors_move_as_numbers_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """lr and momentum as tensors and as floats that change, with flags; a gradient is not finite now and then."""
    monkeypatch.setattr(finite, "HOST_READABLE", ())
    ends = []
    for tensors in (False, True):
        params, gradients = problem(list(SHAPES), 6, torch.float64)
        gradients[0][0][0, 0], gradients[3][1][2, 2], gradients[4][3][0] = torch.nan, torch.inf, torch.nan
        optimizer = made(params, **OPTIONS[name])
        if tensors:
            for group in optimizer.param_groups:
                group["lr"], group["momentum"] = (
                    torch.tensor(group[k], dtype=torch.float64) for k in ("lr", "momentum")
                )
        for k, step in enumerate(gradients):
            for group in optimizer.param_groups:
                for key, value in (("lr", 0.02 / (k + 1)), ("momentum", 0.9 - 0.1 / (k + 1))):
                    group[key] = group[key].fill_(value) if tensors else value
            for p, g in zip(params, step, strict=True):
                p.grad = g.clone()
            optimizer.step()
        ends.append([*params, *(value for p in params for value in optimizer.state[p].values())])
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=1e-9, atol=1e-9)


class StandIn:
    """In the place of a CUDA graph: a capture changes no tensor, a replay runs the step and nothing of the host's."""

    def __init__(self, optimizer: LMOOptimizer) -> None:
        self.optimizer, self.captures, self.replays = optimizer, 0, 0

    def tensors(self) -> list[torch.Tensor]:
        ps = [p for _, p, _ in self.optimizer.named()]
        return [*(p.data for p in ps), *(value for p in ps for value in self.optimizer.state[p].values())]

    def capture(self, run: Callable[[], Any]) -> StandIn:
        before = [x.clone() for x in self.tensors()]
        run()
        for x, old in zip(self.tensors(), before, strict=True):
            x.copy_(old)
        self.captures += 1
        return self

    def replay(self) -> None:
        turns = [group["turn"] for group in self.optimizer.param_groups]
        self.optimizer.step()
        for group, turn in zip(self.optimizer.param_groups, turns, strict=True):
            group["turn"] = turn
        self.replays += 1


def captured(optimizer: LMOOptimizer) -> tuple[CapturedStep, StandIn]:
    graph = StandIn(optimizer)
    return CapturedStep(optimizer, capture=graph.capture), graph


def feed(params: list[nn.Parameter], gradients: list[torch.Tensor]) -> None:
    """Gradients in the place where they were."""
    for p, g in zip(params, gradients, strict=True):
        if p.grad is None:
            p.grad = torch.empty_like(p)
        p.grad.copy_(g)


def test_a_captured_step_trains_as_a_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """With schedules that write into the tensors; every call is one step, the capture too."""
    monkeypatch.setattr(finite, "HOST_READABLE", ())
    ends = []
    for capture in (False, True):
        params, gradients = problem(list(SHAPES), 7, torch.float32)
        optimizer = made(params, lr=torch.tensor(0.1), momentum=torch.tensor(0.9), weight_decay=0.1)
        rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 1.0 / (k + 1) if k < 6 else 0.0)
        for group in optimizer.param_groups[1:]:  # LambdaLR writes every lr
            group["lr"] = torch.tensor(group["lr"])
        momenta = MomentumSchedule(optimizer, lambda k: 0.9 - 0.1 / (k + 1))
        for group in optimizer.param_groups:
            group["momentum"] = torch.as_tensor(group["momentum"])
        step, graph = captured(optimizer) if capture else (optimizer.step, None)
        for gradient in gradients:
            feed(params, gradient)
            step()
            rates.step()
            momenta.step()
        assert optimizer.param_groups[0]["turn"] == 7
        if graph is not None:
            assert (graph.captures, graph.replays) == (1, 5)
        ends.append([*params, *(value for p in params for value in optimizer.state[p].values())])
    for a, b in zip(*ends, strict=True):
        assert torch.equal(a, b)


def replaced(optimizer: LMOOptimizer) -> None:
    optimizer.param_groups[0]["lr"] = 0.05


def decayed(optimizer: LMOOptimizer) -> None:
    optimizer.param_groups[0]["weight_decay"] = 0.05


def another_tensor(optimizer: LMOOptimizer) -> None:
    optimizer.param_groups[0]["lr"] = torch.tensor(0.1)


def no_gradients(optimizer: LMOOptimizer) -> None:
    optimizer.zero_grad()


def loaded(optimizer: LMOOptimizer) -> None:
    optimizer.load_state_dict(optimizer.state_dict())


def more_parameters(optimizer: LMOOptimizer) -> None:
    p = nn.Parameter(torch.ones(3, 4))
    p.grad = torch.ones(3, 4)
    optimizer.add_param_group({"params": [p], "name": "new"})


CHANGES = {
    "lr of group 'lmo' is 0.05 and was a tensor at": replaced,
    "weight_decay of group 'lmo' is 0.05 and was 0.1": decayed,
    "lr of group 'lmo' is a tensor at": another_tensor,
    "the gradient of 0 is None and was a tensor at": no_gradients,
    "is a tensor at": loaded,
    "of group 'new' is": more_parameters,
}


@pytest.mark.parametrize("message", CHANGES)
def test_what_was_changed_is_not_replayed(message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finite, "HOST_READABLE", ())
    params, gradients = problem(list(SHAPES), 6, torch.float32)
    optimizer = made(params, lr=torch.tensor(0.1), weight_decay=0.1)
    step, graph = captured(optimizer)
    for gradient in gradients[:4]:
        feed(params, gradient)
        step()
    CHANGES[message](optimizer)
    before = [p.detach().clone() for p in params]
    with pytest.raises(RuntimeError, match=message):
        step()
    assert all(torch.equal(p, old) for p, old in zip(params, before, strict=True))
    assert graph.replays == 2
    step.reset()
    feed(params, gradients[4])
    for _ in range(3):
        step()
    assert (graph.captures, graph.replays) == (2, 3)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "raise": ({"on_nonfinite": "raise"}, 'on_nonfinite="raise" reads values'),
    "sampling": ({"sample_every": 10}, "sampling measures on the host: set sample_every=0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_graph_cannot_repeat_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finite, "HOST_READABLE", ())
    options, message = REFUSED[name]
    optimizer = Muon([nn.Parameter(torch.ones(4, 5))], **options)
    with pytest.raises(ValueError, match=message) as error:
        CapturedStep(optimizer)
    assert str(error.value).startswith("this optimizer's step cannot be captured: ")


def test_what_is_not_there_yet_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    p = nn.Parameter(torch.ones(4, 5))
    with pytest.raises(ValueError, match="parameter 0 is on the cpu: move the model to a GPU first"):
        CapturedStep(Muon([p]))
    with pytest.raises(TypeError, match="expected an optimizer of this library, got SGD"):
        CapturedStep(torch.optim.SGD([p], lr=0.1))  # type: ignore[arg-type]
    monkeypatch.setattr(finite, "HOST_READABLE", ())
    optimizer = Muon([p])
    optimizer.param_groups[0]["lr"] = torch.empty((), device="meta")
    with pytest.raises(ValueError, match="lr of group 'lmo' is a tensor on the meta: put it on cpu"):
        CapturedStep(optimizer)
    with pytest.raises(ValueError, match="0 has no gradient: set it to zeros"):
        CapturedStep(Muon([p]))()
    with pytest.raises(ValueError, match=r"keep=0\.5 selects parameters on the host"):
        CapturedStep(Muon([{"params": [p], "keep": 0.5}]))
    optimizer = Muon([p])
    optimizer.observers.append(Observer())
    with pytest.raises(ValueError, match="it has observers, which a replay does not call"):
        CapturedStep(optimizer)
    optimizer = Muon([p])
    optimizer.register_step_post_hook(lambda *_: None)
    with pytest.raises(ValueError, match="it has step hooks"):
        CapturedStep(optimizer)
