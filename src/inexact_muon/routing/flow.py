"""Which layers' outputs a model returns, and which other layers take, from the source of its forward pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import FunctionType

from torch import nn

from inexact_muon.routing.layers import Site, is_embedding, is_norm, widths
from inexact_muon.routing.reading.cuts import ChannelCut
from inexact_muon.routing.reading.forward import INPUT, OTHER, Reader
from inexact_muon.routing.reading.frames import TooLong, Unreadable
from inexact_muon.routing.reading.rows import WeightRows
from inexact_muon.wrappers import WRAPPERS

ENTRIES = ("forward", "training_step")
"""Methods that compute a model's outputs: of a module, of Lightning's."""

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
        cuts: how their output is cut along its channels.
    """

    called: frozenset[int] = frozenset()
    entries: tuple[frozenset[int], ...] = ()
    consumers: Mapping[int, frozenset[int]] = field(default_factory=dict)
    cuts: Mapping[int, ChannelCut] = field(default_factory=dict)

    @cached_property
    def consumed(self) -> frozenset[int]:
        """Layers whose output another one takes."""
        return frozenset(self.consumers)

    @cached_property
    def returned(self) -> frozenset[int]:
        """Layers whose output is returned."""
        return frozenset().union(*self.entries) - {INPUT, OTHER}

    @cached_property
    def residual(self) -> bool:
        """Whether the model returns its own input, perhaps with something added."""
        return any(INPUT in entry for entry in self.entries)

    @cached_property
    def outputs(self) -> frozenset[int]:
        """Layers whose output is the model's and no other layer's input."""
        return self.returned - self.consumed

    def beside(self, key: int) -> bool:
        """Whether an output is returned after the first tensor, which is a block's hidden state, and is not in it."""
        return len(self.entries) > 1 and key not in self.entries[0]

    @cached_property
    def added(self) -> dict[int, int]:
        """Layers whose output is returned with that of a last layer added that takes it -> the last layer."""
        return {
            key: next(iter(takers))
            for entry in self.entries
            for key, takers in self.consumers.items()
            if key in entry and len(takers) == 1 and takers <= entry & self.outputs
        }


def flow_of(model: nn.Module, blocks: frozenset[int]) -> Flow:
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
        called, entries, cuts = frozenset[int](), list[frozenset[int]](), dict[int, ChannelCut]()
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
            cuts |= reader.cuts
        if called:
            return Flow(called, tuple(entries), consumers, cuts)
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


def cut_by(site: Site) -> int | None:
    """Number of equal parts into which the modules around a convolution cut its channels; None if it is not known."""
    for _, module in site.chain[-3:-1][::-1]:
        cut = flow_of(module, frozenset()).cuts.get(id(site.module))
        if cut is not None:
            return cut.count(site.module.out_channels)  # type: ignore[arg-type]
    return None


@dataclass(frozen=True)
class Uses:
    """What a module does with the outputs of its linear layers.

    Attributes:
        rows: rows of their weights as functions take them.
        givers: id of a layer -> ids of those whose output it takes.
    """

    rows: tuple[WeightRows, ...] = ()
    givers: Mapping[int, frozenset[int]] = field(default_factory=dict)


def uses_in(module: nn.Module) -> Uses:
    """Read the forward pass of a module; empty if its source is missing."""
    rows, givers = list[WeightRows](), dict[int, frozenset[int]]()
    for functions in _entries(type(module)):
        for function in functions:
            reader = Reader(lambda part: part is not module and _is_layer(part))
            try:
                reader.entry(module, function)
            except (Unreadable, TooLong, RecursionError):
                continue
            rows += reader.uses
            for giver, takers in reader.consumers.items():
                givers |= {taker: givers.get(taker, frozenset()) | {giver} for taker in takers}
    return Uses(tuple(dict.fromkeys(rows)), givers)


def _is_layer(module: nn.Module) -> bool:
    """Whether a module is one layer: of a known kind, or with a matrix of its own and no layers inside."""
    if widths(module) is not None or is_embedding(module):
        return True
    if isinstance(module, nn.ParameterList | nn.ParameterDict):
        return False
    inside = any(p.ndim > 1 for child in module.children() for p in child.parameters())
    return not inside and (is_norm(module) or any(p.ndim > 1 for p in module.parameters(recurse=False)))


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model without compilers, data parallelism and modules that only hold another one."""
    while True:
        children = dict(model.named_children())
        wrapped = next((child for name, child in children.items() if name in WRAPPERS), None)
        if wrapped is None or len(children) > 1:
            return model
        model = wrapped
