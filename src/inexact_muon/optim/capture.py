"""optimizer.step() as a CUDA graph: captured once, replayed without the host's work of launching its kernels.

Not run on hardware: the sequence of operations was compared between steps on fake CUDA tensors, and what is checked
before a replay with a stand-in for the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from inexact_muon.optim.core import LMOOptimizer
from inexact_muon.optim.finite import hosted

WARM = 2
"""Steps before the capture: they make states and batches, and let libraries allocate what they need."""


class Graph(Protocol):
    """What was captured; `torch.cuda.CUDAGraph` is one."""

    def replay(self) -> None:
        """Runs it on the tensors that it was captured with."""


def cuda_graph(run: Callable[[], Any]) -> Graph:
    """What `run` launches, on the current device."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


class CapturedStep:
    """Calls of `optimizer.step()`: the first two as they are, the third captured, later ones replayed.

    A graph repeats the numbers that it was captured with. What changes in training must be a tensor on the device whose
    value is written in place: `lr` and `momentum` may be, and torch's schedulers write into them. Before each replay
    groups, parameters, gradients and states are compared with those captured. Gradients must stay where they are:
    `optimizer.zero_grad(set_to_none=False)`. The work space of a step stays allocated.

    Args:
        optimizer: all of whose parameters are on the current CUDA device.
        capture: makes a graph of what a function launches.

    Raises:
        ValueError: the optimizer does something in a step that a graph cannot repeat.
    """

    def __init__(self, optimizer: LMOOptimizer, capture: Callable[[Callable[[], Any]], Graph] = cuda_graph) -> None:
        for reason in _obstacles(optimizer):
            raise ValueError(f"this optimizer's step cannot be captured: {reason}")
        self.optimizer = optimizer
        self._capture = capture
        self.reset()

    def reset(self) -> None:
        """Forgets the graph: the next calls warm up and capture again."""
        self._graph: Graph | None = None
        self._captured: dict[str, Any] = {}
        self._made = 0

    def __call__(self) -> None:
        """One step.

        Raises:
            ValueError: a parameter has no gradient.
            RuntimeError: something is not as it was captured.
        """
        if self._graph is not None:
            self._compare()
            for group in self.optimizer.param_groups:
                group["turn"] += 1
            self._graph.replay()
            return
        for name, p, _ in self.optimizer.named():
            if p.grad is None:
                raise ValueError(f"a captured step moves every parameter, and {name} has no gradient: give it zeros")
        if self._made < WARM:
            self.optimizer.step()
            self._made += 1
            return
        graph = self._capture(self.optimizer.step)
        self._graph, self._captured = graph, dict(_facts(self.optimizer))
        graph.replay()

    def _compare(self) -> None:
        found = dict(_facts(self.optimizer))
        for what in (*self._captured, *found):
            old, new = (facts.get(what, "missing") for facts in (self._captured, found))
            if old != new:
                raise RuntimeError(
                    f"{what} is {new} and was {old} when the step was captured; nothing was changed: call reset() to "
                    "capture the step again, or write into the tensor that was captured"
                )


def _facts(optimizer: LMOOptimizer) -> Iterator[tuple[str, Any]]:
    """What a graph has taken down, by name: numbers and words as they are, tensors by their address."""
    for group in optimizer.param_groups:
        for key, value in group.items():
            if key not in ("params", "param_names", "turn", "initial_lr", "initial_momentum"):
                yield f"{key} of group {group['name']!r}", _fact(value)
    for name, p, _ in optimizer.named():
        yield f"parameter {name}", _fact(p)
        yield f"the gradient of {name}", _fact(p.grad)
        for key, value in optimizer.state[p].items():
            yield f"state {key} of {name}", _fact(value)


def _fact(value: Any) -> Any:
    return f"a tensor at {value.data_ptr():#x}" if isinstance(value, Tensor) else value


def _obstacles(optimizer: LMOOptimizer) -> Iterator[str]:
    """What a graph cannot repeat, one clause each."""
    if not isinstance(optimizer, LMOOptimizer):
        raise TypeError(f"an optimizer of this library is wanted, got {type(optimizer).__name__}")
    if optimizer.on_nonfinite == "raise":
        yield 'on_nonfinite="raise" reads values: use "skip"'
    if optimizer.telemetry.every:
        yield "sampling measures on the host: set sample_every=0"
    if optimizer.observers:
        yield "it has observers, which a replay does not call: remove them"
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        yield "it has step hooks (a probe), which a replay does not call: remove them"
    shared = optimizer.shared()
    for name, p, group in optimizer.named():
        if group["keep"] < 1.0:
            yield f"keep={group['keep']} draws parameters on the host: set keep=1"
        if shared is not None and shared.holds(p):
            yield f"parameter {name} is shared among ranks, which exchange values in a step: use a step of its own"
        if hosted(p):
            yield f"parameter {name} is on the {p.device.type}: move the model to a GPU first"
        for key in ("lr", "momentum"):
            if isinstance(group[key], Tensor) and group[key].device != p.device:
                yield f"{key} of group {group['name']!r} is a tensor on the {group[key].device}: put it on {p.device}"
