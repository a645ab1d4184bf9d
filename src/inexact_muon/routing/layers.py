"""What modules and their names tell: the kind of a layer, how it stores its matrix, where a parameter is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from inexact_muon.views import Flatten, Split, Transposed, View, Whole
from inexact_muon.wrappers import WRAPPERS

WORDS = {
    *("head", "heads", "classifier", "classifiers", "score", "scores", "logit", "logits", "unembed", "unembedding"),
    *("output", "outputs", "pred", "preds", "prediction", "predictions", "predictor"),
}
"""Words that mark the name of an output layer, or of a module that ends in one."""

WEAK = {"out", "fc", "final", "last", "outc", "generator"}
"""Words that decide only if the widths are inconclusive."""

INSIDE = {"attn", "attention", "mha", "sa", "self", "cross", "multihead", "lora", "router", "expert", "experts"}
"""Words that mark modules whose layers are never outputs."""

INNER = {
    *("qkv", "kv", "wq", "wk", "wv", "wqkv", "q_proj", "k_proj", "v_proj", "qkv_proj", "kv_proj", "to_q", "to_k"),
    *("to_v", "to_qkv", "to_kv", "c_attn", "query_key_value", "in_proj", "gate_proj", "up_proj", "gate_up_proj"),
    *("router", "gate", "gating"),
}
"""Names of layers inside attention, a gated network or a router."""

LETTERS = {"q", "k", "v", "query", "key", "value", "queries", "keys", "values"}
"""Also inner if there are two of them; a single `q` or `value` is the output of a critic."""

ROLES = {
    "query": {"q", "xq", "query", "queries", "qs"},
    "key": {"k", "xk", "key", "keys", "ks"},
    "value": {"v", "xv", "value", "values", "vs"},
    "gate": {"gate", "gates"},
}
"""Words in the names of layers and variables for what attention takes: its three arguments, and gates of its output."""

GENERIC = ("linear", "proj", "fc", "c", "0")
"""Uninformative layer names; the enclosing module's name is used instead."""


def role(name: str) -> str:
    """query, key, value or gate if exactly one of them is in a name: "q_proj", "key_states", "wq"; else empty."""
    parts = {part[1:] if part in ("wq", "wk", "wv") else part for part in words(name)}
    kinds = [kind for kind, names in ROLES.items() if names & parts]
    return kinds[0] if len(kinds) == 1 else ""


def words(part: str) -> frozenset[str]:
    """The words of a name: "policy_head1" -> policy, head; "LMHead" -> lm, head."""
    return frozenset(re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", part).lower()))


Chain = tuple[tuple[str, nn.Module], ...]


@dataclass(frozen=True)
class LayerKind:
    """What a module is.

    Attributes:
        type: embedding, recurrent, attention, convolution, linear, norm, or empty.
        widths: (out, in) of a layer that maps features to features.
        linear: the same of a linear layer: nn.Linear and similar, Conv1D of transformers, Linear of torch_geometric.
    """

    type: str = ""
    widths: tuple[int, int] | None = None
    linear: tuple[int, int] | None = None


def layer_of(module: nn.Module) -> LayerKind:
    """What a module is, judging by its attributes; a norm and some linear layers by the name of the class."""
    if isinstance(module, nn.RNNBase):
        out = (module.proj_size or module.hidden_size) * (2 if module.bidirectional else 1)
        return LayerKind("recurrent", (out, module.input_size))
    if isinstance(module, nn.MultiheadAttention):
        return LayerKind("attention", (module.embed_dim, module.embed_dim))
    if _ints(module, "num_embeddings", "embedding_dim"):
        return LayerKind("embedding")
    channels, name = _ints(module, "out_channels", "in_channels"), type(module).__name__
    if channels and hasattr(module, "kernel_size") and _ints(module, "groups", "groups"):
        return LayerKind("convolution", channels)
    sides = _ints(module, "out_features", "in_features") or _ints(module, "nf", "nx")
    if sides is None and name.endswith("Linear"):
        sides = _ints(module, "output_size", "input_size") or channels
    if sides is None:
        return LayerKind("norm" if "norm" in name.lower() else "")
    return LayerKind("linear", sides, sides)


def _ints(module: Any, *names: str) -> tuple[int, int] | None:
    values = tuple(getattr(module, name, None) for name in names)
    return values if all(isinstance(value, int) for value in values) else None  # type: ignore[return-value]


@dataclass(eq=False)
class Site:
    """The position of a parameter in a model.

    Attributes:
        own: its name in its module, or that of the weight that it parametrises.
        chain: (attribute, module) from the model to the parameter's module, without wrappers.
        path: the attributes.
        module: the last module, whose class has the name `kind`.
        label: the name that tells what the layer is, `levels` from the end: the enclosing module's for `to_out.0`.
    """

    name: str
    own: str
    parameter: nn.Parameter
    chain: Chain
    path: tuple[str, ...] = field(init=False)
    module: nn.Module = field(init=False)
    parent: nn.Module | None = field(init=False)
    kind: str = field(init=False)
    levels: int = field(init=False)
    label: str = field(init=False)

    def __post_init__(self) -> None:
        self.path, self.module = tuple(attribute for attribute, _ in self.chain[1:]), self.chain[-1][1]
        self.parent = self.chain[-2][1] if len(self.chain) > 1 else None
        self.kind = type(self.module).__name__
        self.levels = 2 if len(self.path) > 1 and self.path[-1].lower() in GENERIC else 1
        self.label = self.path[-self.levels] if self.path else ""

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


def chains(model: nn.Module) -> Iterator[tuple[str, Chain]]:
    """(name, chain) of every module, each once."""
    known: dict[str, Chain] = {}
    for name, module in model.named_modules():
        before, _, attribute = name.rpartition(".")
        outer = known.get(before, ()) if name else ()
        wrapped = outer and attribute in WRAPPERS
        known[name] = (*outer[:-1], (outer[-1][0], module)) if wrapped else (*outer, (attribute, module))
        yield name, known[name]


def sites(modules: Iterable[tuple[str, Chain]]) -> Iterator[Site]:
    """Every trainable parameter, each once; tied parameters under their first name."""
    seen: set[int] = set()
    for prefix, chain in modules:
        for own, parameter in chain[-1][1].named_parameters(recurse=False):
            if id(parameter) not in seen and parameter.requires_grad:
                seen.add(id(parameter))
                yield Site(f"{prefix}.{own}" if prefix else own, own, parameter, chain)


def inner(chain: Chain) -> bool:
    """Whether a layer is inside attention, a gated network, a router or an adapter, judging by names."""
    last, names = chain[-1][0].lower(), [name.lower() for name in (chain[-2][1]._modules if len(chain) > 1 else ())]
    attention = last in LETTERS and len(LETTERS.intersection(names)) > 1
    return attention or last in INNER or any(INSIDE & words(part) for part, _ in chain[1:])


def in_block(chain: Chain) -> bool:
    """Whether a module is in a repeated block: a composite module in a list with others of its class.

    A list whose name marks outputs does not hold blocks.
    """
    for i in range(1, len(chain)):
        parent, (attribute, child) = chain[i - 1][1], chain[i]
        numbered = isinstance(parent, nn.ModuleDict) and attribute[-1:].isdigit()
        if not (isinstance(parent, nn.ModuleList | nn.Sequential) or numbered):
            continue
        if any(WORDS & words(part) for part, _ in chain[1:i]):
            return False
        alike = sum(type(other) is type(parent._modules.get(attribute)) for other in parent.children())
        inside = any(next(part.parameters(), None) is not None for part in child.children())
        composite = inside and layer_of(child).widths is None and type(child) is not nn.Sequential
        if composite and (alike > 1 or isinstance(parent, nn.ModuleList)):
            return True
    return False


def stored(module: nn.Module, own: str, weight: Tensor) -> View | None:
    """View of the weight of a known layer; None if the layer is unknown or this is not its weight."""
    if isinstance(module, nn.RNNBase | nn.RNNCellBase):
        gates = 4 if isinstance(module, nn.LSTM | nn.LSTMCell) else 3 if isinstance(module, nn.GRU | nn.GRUCell) else 1
        return Split(gates) if gates > 1 and not own.startswith("weight_hr") else Whole()
    if isinstance(module, nn.MultiheadAttention):
        if own == "in_proj_weight":
            return Split(3)
        return Whole() if own.endswith("_proj_weight") else None
    layer = layer_of(module)
    if layer.type == "convolution":
        groups, transposed = int(module.groups), bool(getattr(module, "transposed", False))  # type: ignore[arg-type]
        return Flatten(groups=groups, transposed=transposed) if own == "weight" and weight.ndim > 2 else None
    shape = tuple(weight.shape)
    if layer.linear == shape and not hasattr(module, "nf"):
        return Whole()
    return Transposed() if layer.linear == shape[::-1] and weight.ndim == 2 else None
