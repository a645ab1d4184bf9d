"""optimizer.step() as a CUDA graph, replayed without the launch overhead of the host.

Not run on hardware. Tests compare what is captured with what a step launches on fake CUDA tensors (the same operations
at each step, no wait for the device, no copy from the host), and exercise the checks before a replay with a stand-in
for the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from inexact_muon.optim.core import LMOOptimizer
from inexact_muon.optim.finite import is_host_readable

WARM = 2
"""Warm-up steps before the capture: they allocate states, batches and library work spaces."""


class Graph(Protocol):
    """A captured graph, such as `torch.cuda.CUDAGraph`."""

    def replay(self) -> None:
        """Run the graph on the tensors it was captured with."""


def cuda_graph(run: Callable[[], Any]) -> Graph:
    """Capture what `run` launches on the current device."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


class CapturedStep:
    """A callable `optimizer.step()`: two eager calls, then one that is captured, then replays of the graph.

    A graph repeats the numbers it was captured with. Values that change during training must be tensors on the device
    that are written in place: `lr` and `momentum` may be, and torch's schedulers do so. Groups, parameters, gradients
    and states are compared with the captured ones before each replay. Gradients must keep their memory: use
    `optimizer.zero_grad(set_to_none=False)`. The work space of the step stays allocated.

    Args:
        optimizer: an optimizer whose parameters are all on the current CUDA device.
        capture: makes a graph from the kernels that a function launches.

    Raises:
        ValueError: the step does something that a graph cannot repeat.
    """

    def __init__(self, optimizer: LMOOptimizer, capture: Callable[[Callable[[], Any]], Graph] = cuda_graph) -> None:
        for reason in _obstacles(optimizer):
            raise ValueError(f"this optimizer's step cannot be captured: {reason}")
        self.optimizer = optimizer
        self._capture = capture
        self.reset()

    def reset(self) -> None:
        """Discard the graph; the next calls warm up and capture again."""
        self._graph: Graph | None = None
        self._captured: dict[str, Any] = {}
        self._calls = 0

    def __call__(self) -> None:
        """Run one step.

        Raises:
            ValueError: a parameter has no gradient.
            RuntimeError: something differs from what was captured.
        """
        if self._graph is not None:
            self._compare()
            for group in self.optimizer.param_groups:
                group["turn"] += 1
            self._graph.replay()
            return
        for name, p, _ in self.optimizer.named():
            if p.grad is None:
                raise ValueError(f"a captured step updates all parameters, but {name} has no gradient: set it to zeros")
        if self._calls < WARM:
            self.optimizer.step()
            self._calls += 1
            return
        graph = self._capture(self.optimizer.step)
        self._graph, self._captured = graph, dict(_captured_values(self.optimizer))
        graph.replay()

    def _compare(self) -> None:
        current = dict(_captured_values(self.optimizer))
        for what in (*self._captured, *current):
            old, new = (values.get(what, "missing") for values in (self._captured, current))
            if old != new:
                raise RuntimeError(
                    f"{what} is {new} and was {old} when the step was captured; nothing was changed: call reset() to "
                    "capture the step again, or write into the tensor that was captured"
                )


def _captured_values(optimizer: LMOOptimizer) -> Iterator[tuple[str, Any]]:
    """(description, value) of everything the graph depends on; tensors are represented by their address."""
    for group in optimizer.param_groups:
        for key, value in group.items():
            if key not in ("params", "param_names", "turn", "initial_lr", "initial_momentum"):
                yield f"{key} of group {group['name']!r}", _value_or_address(value)
    for name, p, _ in optimizer.named():
        yield f"parameter {name}", _value_or_address(p)
        yield f"the gradient of {name}", _value_or_address(p.grad)
        for key, value in optimizer.state[p].items():
            yield f"state {key} of {name}", _value_or_address(value)


def _value_or_address(value: Any) -> Any:
    return f"a tensor at {value.data_ptr():#x}" if isinstance(value, Tensor) else value


def _obstacles(optimizer: LMOOptimizer) -> Iterator[str]:
    """Reasons why the step cannot be captured, as clauses."""
    if not isinstance(optimizer, LMOOptimizer):
        raise TypeError(f"expected an optimizer of this library, got {type(optimizer).__name__}")
    if optimizer.on_nonfinite == "raise":
        yield 'on_nonfinite="raise" reads values: use "skip"'
    if optimizer.telemetry.every:
        yield "sampling measures on the host: set sample_every=0"
    if optimizer.observers:
        yield "it has observers, which a replay does not call: remove them"
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        yield "it has step hooks (a probe), which a replay does not call: remove them"
    ranks = optimizer.ranks()
    for name, p, group in optimizer.named():
        if group["keep"] < 1.0:
            yield f"keep={group['keep']} selects parameters on the host: set keep=1"
        if ranks is not None and ranks.team.handles(p):
            yield f"parameter {name} is shared among ranks, which communicate in a step: call optimizer.step() instead"
        if is_host_readable(p):
            yield f"parameter {name} is on the {p.device.type}: move the model to a GPU first"
        for key in ("lr", "momentum"):
            if isinstance(group[key], Tensor) and group[key].device != p.device:
                yield f"{key} of group {group['name']!r} is a tensor on the {group[key].device}: put it on {p.device}"
