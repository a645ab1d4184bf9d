"""The position of a parameter in a model; widths and storage of layers whose weights are matrices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from inexact_muon.views import Flatten, Split, Transposed, View, Whole
from inexact_muon.wrappers import WRAPPERS

Chain = tuple[tuple[str, nn.Module], ...]


@dataclass(frozen=True, eq=False)
class Site:
    """The position of a parameter in a model.

    Attributes:
        name: name of the parameter in the model.
        own: its name in its module, or that of the weight that it parametrises.
        parameter: the parameter.
        chain: (attribute, module) from the model to the parameter's module, without wrappers.
    """

    name: str
    own: str
    parameter: nn.Parameter
    chain: Chain

    @property
    def module(self) -> nn.Module:
        """The layer."""
        return self.chain[-1][1]

    @property
    def parent(self) -> nn.Module | None:
        """The module that contains the layer."""
        return self.chain[-2][1] if len(self.chain) > 1 else None

    @cached_property
    def path(self) -> tuple[str, ...]:
        """The attribute path to the layer."""
        return tuple(attribute for attribute, _ in self.chain[1:])

    @property
    def kind(self) -> str:
        """Class name of the layer."""
        return type(self.module).__name__

    def up(self, levels: int, own: str) -> Site:
        """The same parameter, as one of an enclosing module."""
        return replace(self, chain=self.chain[:-levels], own=own)

    def number(self, *names: str) -> int | None:
        """The first of these attributes in the enclosing modules or their configs, innermost first."""
        for _, module in reversed(self.chain):
            for owner in (module, getattr(module, "config", None)):
                for name in names:
                    value = owner.get(name) if isinstance(owner, dict) else getattr(owner, name, None)
                    if isinstance(value, int) and not isinstance(value, bool):
                        return value
        return None

    def flag(self, name: str) -> bool:
        """Whether the layer's parent has this attribute and it is true."""
        return bool(getattr(self.parent, name, False))


def chains(model: nn.Module) -> Iterator[tuple[str, Chain]]:
    """(name, chain) of every module, each once."""
    modules: dict[str, nn.Module] = dict(model.named_modules())
    for name, module in modules.items():
        chain: list[tuple[str, nn.Module]] = [("", model)]
        prefix = ""
        for attribute in name.split(".") if name else ():
            prefix = f"{prefix}.{attribute}" if prefix else attribute
            inner = modules.get(prefix, module)
            wrapped = attribute in WRAPPERS
            chain[-1:] = [(chain[-1][0], inner)] if wrapped else [chain[-1], (attribute, inner)]
        yield name, tuple(chain)


def sites(model: nn.Module) -> Iterator[Site]:
    """Every trainable parameter, each once; tied parameters under their first name."""
    seen: set[int] = set()
    for prefix, chain in chains(model):
        module = model.get_submodule(prefix)
        for own, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in seen and parameter.requires_grad:
                seen.add(id(parameter))
                yield Site(f"{prefix}.{own}" if prefix else own, own, parameter, chain)


def _int(module: Any, *names: str) -> tuple[int, ...] | None:
    values = tuple(getattr(module, name, None) for name in names)
    return values if all(isinstance(value, int) for value in values) else None  # type: ignore[return-value]


def is_embedding(module: nn.Module) -> bool:
    """Whether a module is an embedding table."""
    return _int(module, "num_embeddings", "embedding_dim") is not None


def linear_sides(module: nn.Module) -> tuple[int, int] | None:
    """(out, in) of a linear layer: nn.Linear and similar, Conv1D of transformers, Linear of torch_geometric."""
    if is_embedding(module):
        return None
    sides = _int(module, "out_features", "in_features") or _int(module, "nf", "nx")
    if sides is None and type(module).__name__.endswith("Linear"):
        sides = _int(module, "output_size", "input_size") or _int(module, "out_channels", "in_channels")
    return sides  # type: ignore[return-value]


def is_convolution(module: nn.Module) -> bool:
    """Whether a module is a convolution, transposed or not."""
    return _int(module, "in_channels", "out_channels", "groups") is not None and hasattr(module, "kernel_size")


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a normalisation layer, judging by its class."""
    return "norm" in type(module).__name__.lower() and not is_convolution(module) and linear_sides(module) is None


def widths(module: nn.Module) -> tuple[int, int] | None:
    """(out, in) of any layer that maps features to features."""
    if isinstance(module, nn.RNNBase):
        return (module.proj_size or module.hidden_size) * (2 if module.bidirectional else 1), module.input_size
    if isinstance(module, nn.MultiheadAttention):
        return module.embed_dim, module.embed_dim
    if is_convolution(module):
        return _int(module, "out_channels", "in_channels")  # type: ignore[return-value]
    return linear_sides(module)


def stored(module: nn.Module, own: str, weight: Tensor) -> View | None:
    """View of the weight of a known layer; None if the layer is unknown or this is not its weight."""
    if isinstance(module, nn.RNNBase | nn.RNNCellBase):
        gates = 4 if isinstance(module, nn.LSTM | nn.LSTMCell) else 3 if isinstance(module, nn.GRU | nn.GRUCell) else 1
        return Split(gates) if gates > 1 and not own.startswith("weight_hr") else Whole()
    if isinstance(module, nn.MultiheadAttention):
        if own == "in_proj_weight":
            return Split(3)
        return Whole() if own.endswith("_proj_weight") else None
    if is_convolution(module):
        groups: int = module.groups  # type: ignore[assignment]
        transposed = bool(getattr(module, "transposed", False))
        return Flatten(groups=groups, transposed=transposed) if own == "weight" and weight.ndim > 2 else None
    sides = linear_sides(module)
    if sides is None or weight.ndim != 2:
        return None
    shape = tuple(weight.shape)
    if shape == sides and not hasattr(module, "nf"):
        return Whole()
    return Transposed() if shape == sides[::-1] else None
