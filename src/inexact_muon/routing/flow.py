"""Which layers' outputs a model returns, and which other layers take, from the source of its forward pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import FunctionType
from typing import Any

from torch import nn

from inexact_muon.routing.blocks import cut_of
from inexact_muon.routing.layers import Site, layer_of
from inexact_muon.routing.reading.expressions import TooLong
from inexact_muon.routing.reading.forward import INPUT, OTHER, Reader
from inexact_muon.routing.reading.frames import Unreadable
from inexact_muon.routing.reading.rows import WeightRows
from inexact_muon.views import Split
from inexact_muon.wrappers import WRAPPERS

ENTRIES = ("forward", "training_step")
"""Methods that compute a model's outputs: of a module, of Lightning's."""

NEAR = 3
"""Enclosing modules whose code is read."""

LIBRARIES = ("torch", "lightning", "pytorch_lightning")
"""Packages whose classes have methods that compute nothing by themselves."""


@dataclass(frozen=True)
class Flow:
    """What the forward pass does with the outputs of layers, each given by its id.

    A weight that is used outside of its layer, as in F.linear(x, layer.weight), is the layer; one that belongs to no
    layer has its own id.

    Attributes:
        called: they are called.
        entries: of each tensor that the model returns, the layers whose output it holds, perhaps through functions that
            are no layers; `INPUT` if it is the model's first argument, perhaps with something added.
        consumers: later layers that take their output.
        rows: rows of weights as functions take them; of weights outside of their layer too.
    """

    called: frozenset[int] = frozenset()
    entries: tuple[frozenset[int], ...] = ()
    consumers: Mapping[int, frozenset[int]] = field(default_factory=dict)
    rows: tuple[WeightRows, ...] = ()

    @cached_property
    def returned(self) -> frozenset[int]:
        """Layers whose output is returned."""
        return frozenset().union(*self.entries) - {INPUT, OTHER}

    @cached_property
    def outputs(self) -> frozenset[int]:
        """Layers whose output is the model's and no other layer's input."""
        return self.returned - self.consumers.keys()

    @cached_property
    def added(self) -> dict[int, int]:
        """Layers whose output is returned with that of a last layer added that takes it -> the last layer."""
        return {
            key: next(iter(takers))
            for entry in self.entries
            for key, takers in self.consumers.items()
            if key in entry and len(takers) == 1 and takers <= entry & self.outputs
        }


def flow_of(model: nn.Module, blocks: frozenset[int] = frozenset()) -> Flow:
    """Read the forward pass; empty if its source is missing or cannot be followed.

    Args:
        blocks: ids of modules in repeated blocks, each taken as one layer.
    """
    model = _unwrapped(model)
    layers = {id(module): module for module in model.modules() if id(module) in blocks or _is_layer(module)}
    owners = {id(p): key for key, module in layers.items() for p in module.parameters()}

    def owned(keys: Iterable[int]) -> frozenset[int]:
        return frozenset(owners.get(key, key) for key in keys)

    for functions in _entries(type(model)):
        called, entries, rows = frozenset[int](), list[frozenset[int]](), dict[Any, WeightRows]()
        consumers: dict[int, frozenset[int]] = {}
        for function in functions:
            reader = Reader(lambda module: module is not model and id(module) in layers)
            try:
                result = reader.entry(model, function)
            except (Unreadable, TooLong, RecursionError):
                continue
            for key, takers in reader.consumers.items():
                consumers[owners.get(key, key)] = consumers.get(owners.get(key, key), frozenset()) | owned(takers)
            called |= owned(reader.called)
            entries += map(owned, result.leaves())
            rows |= {use.key: use for use in reader.uses}
        if called:
            return Flow(called, tuple(entries), consumers, tuple(rows.values()))
    return Flow()


def _entries(kind: type[nn.Module]) -> Iterator[list[FunctionType]]:
    """Methods to read, the first that call layers; without a forward pass, as in an agent, all public ones."""
    computing = [getattr(kind, name, None) for name in ENTRIES]
    defined = [f for f in computing if f is not None and getattr(f, "__name__", "") != "_forward_unimplemented"]
    yield from ([function] for function in defined)
    if defined:
        return
    own = [base for base in kind.__mro__ if base.__module__.partition(".")[0] not in (*LIBRARIES, "builtins")]
    names = dict.fromkeys(name for base in own for name in vars(base) if not name.startswith("_"))
    methods = [getattr(kind, name) for name in names]
    yield [method for method in methods if isinstance(method, FunctionType)]


@dataclass(eq=False)
class Code:
    """The forward passes of the modules around layers, each read once: by the module's id."""

    flows: dict[int, Flow] = field(default_factory=dict)

    def around(self, site: Site) -> Iterator[tuple[nn.Module, Flow]]:
        """The enclosing modules, from the innermost on, and what they do."""
        for _, module in site.chain[-1 - NEAR : -1][::-1]:
            if id(module) not in self.flows:
                self.flows[id(module)] = flow_of(module)
            yield module, self.flows[id(module)]

    def uses(self, site: Site) -> list[WeightRows]:
        """What is done with a layer's output, by the innermost module that divides it, or does something with it."""
        first = list[WeightRows]()
        for _, flow in self.around(site):
            uses = [use for use in flow.rows if use.layer in (id(site.module), id(site.parameter))]
            if any(use.divided for use in uses):
                return uses
            first = first or uses
        return first

    def cut(self, site: Site, rows: int) -> Split | None:
        """The parts into which the modules around a layer cut its rows; None if that is not known."""
        return cut_of(self.uses(site), rows)


def _is_layer(module: nn.Module) -> bool:
    """Whether a module is one layer: of a known kind, or with a matrix of its own and no layers inside."""
    kind = layer_of(module).type
    if kind not in ("", "norm") or isinstance(module, nn.ParameterList | nn.ParameterDict):
        return kind != ""
    inside = any(p.ndim > 1 for child in module.children() for p in child.parameters())
    return not inside and (kind == "norm" or any(p.ndim > 1 for p in module.parameters(recurse=False)))


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model without compilers, data parallelism and modules that only hold another one."""
    while True:
        children = dict(model.named_children())
        wrapped = next((child for name, child in children.items() if name in WRAPPERS), None)
        if wrapped is None or len(children) > 1:
            return model
        model = wrapped
