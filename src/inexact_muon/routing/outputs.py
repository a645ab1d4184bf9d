"""Detects the output layers of a model.

Evidence, in this order: `get_output_embeddings()` of the model or a part of it; the source of the forward pass, which
says whose output is returned and whose is taken by another layer (`flow`); a name such as `classifier` or
`policy_head`; a layer whose output no other layer takes, judging by widths; the last layer of a Sequential model. All
of this outside repeated blocks: every BERT layer has an `output`. The order of definition alone is never used: if the
output is tied, frozen or absent, the last layer is a hidden one. If there is no evidence at all it is doubtful.

The forward pass is not read if each layer outside blocks is one that the model declares, or has one row for each
embedding and a width that nothing takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from inexact_muon.routing.flow import Code, Flow, flow_of
from inexact_muon.routing.layers import WEAK, WORDS, Chain, in_block, inner, layer_of, words
from inexact_muon.routing.reading.forward import INPUT

ROWS = "output layer: one row for each embedding"
RETURNED = "output layer: the model returns its output"


@dataclass(frozen=True, eq=False)
class _Layer:
    path: tuple[str, ...]
    module: nn.Module
    out: int
    into: int
    block: bool
    inner: bool


@dataclass(frozen=True)
class Facts:
    """Properties of the whole model.

    Attributes:
        outputs: id of each output layer, trainable or not -> reason.
        doubtful: ids of layers that may be outputs: no single layer takes their width, but several together might; or
            the last one, and others as wide as their input, if the forward pass cannot be read.
        embeddings: ids of the weights of embeddings; those that other layers have too are `tied`.
        code: what the modules around layers do.
    """

    outputs: Mapping[int, str]
    doubtful: frozenset[int]
    embeddings: frozenset[int]
    tied: frozenset[int]
    code: Code = field(default_factory=Code)


@dataclass(eq=False)
class _Model:
    """Layers of a model, and the widths that occur in it.

    Attributes:
        candidates: layers outside blocks, attention and the like.
        blocks: ids of modules in repeated blocks.
        vocabularies, embedded: rows and columns of embeddings; ids of their weights are `tables`.
        others: ids of the parameters of other modules.
        loose: whether matrices belong to no layer of a known kind.
    """

    model: nn.Module
    layers: list[_Layer] = field(default_factory=list)
    candidates: list[_Layer] = field(default_factory=list)
    blocks: set[int] = field(default_factory=set)
    norms: set[int] = field(default_factory=set)
    vocabularies: set[int] = field(default_factory=set)
    embedded: set[int] = field(default_factory=set)
    tables: set[int] = field(default_factory=set)
    others: set[int] = field(default_factory=set)
    loose: bool = False

    def follows(self, layer: _Layer) -> bool:
        """Whether a layer or normalisation takes exactly this width."""
        return layer.out in self.norms or any(
            other.into == layer.out for other in self.layers if other is not layer and other.path != layer.path
        )


def facts_of(model: nn.Module, modules: Iterable[tuple[str, Chain]]) -> Facts:
    """Inspect a model, given with its `chains`, without running it."""
    read = _read(model, modules)
    declared = dict(_declared(read))
    certain = {id(x.module): ROWS for x in read.candidates if x.out in read.vocabularies and not read.follows(x)}
    certain |= declared
    doubtful = frozenset[int]()
    if read.loose or not certain or any(id(layer.module) not in certain for layer in read.candidates):
        certain, doubtful = _by_code(read, declared)
    return Facts(certain, doubtful, frozenset(read.tables), frozenset(read.tables & read.others))


def _read(model: nn.Module, modules: Iterable[tuple[str, Chain]]) -> _Model:
    read = _Model(model)
    for _, chain in modules:
        module, own = chain[-1][1], chain[-1][1]._parameters
        path, layer, block = tuple(attribute for attribute, _ in chain[1:]), layer_of(module), in_block(chain)
        read.blocks.update([id(module)] * block)
        weights = {id(p): p for p in own.values() if p is not None}
        if layer.type == "embedding":
            read.vocabularies.add(int(module.num_embeddings))  # type: ignore[arg-type]
            read.embedded.add(int(module.embedding_dim))  # type: ignore[arg-type]
            read.tables.add(id(own.get("weight")))
            continue
        read.others.update(weights)
        if layer.type == "norm":
            read.norms.update(p.numel() for p in weights.values() if p.ndim == 1)
        elif layer.widths is not None:
            if read.layers and read.layers[-1].path == path:  # a wrapper around the same layer
                read.layers.pop()
            read.layers.append(_Layer(path, module, *layer.widths, block, inner(chain)))
        else:
            read.loose |= any(p.ndim > 1 for p in weights.values())
    read.candidates = [layer for layer in read.layers if not layer.block and not layer.inner]
    return read


def _declared(read: _Model) -> Iterator[tuple[int, str]]:
    for module in read.model.modules():
        ask = getattr(type(module), "get_output_embeddings", None)
        try:
            head = ask(module) if callable(ask) else None
        except (AttributeError, NotImplementedError, TypeError):
            continue
        if isinstance(head, nn.Module):
            scope = {id(part) for part in head.modules()}
            inside = [layer for layer in read.layers if id(layer.module) in scope]
            for layer in _last_layers(inside, read) if len(inside) > 1 else inside:
                yield id(layer.module), "output layer by get_output_embeddings()"


def _by_code(read: _Model, declared: Mapping[int, str]) -> tuple[dict[int, str], frozenset[int]]:
    """Output layers and doubtful ones, by the forward pass, names and widths."""
    flow, reasons = flow_of(read.model, frozenset(read.blocks)), dict(declared)
    for key, why in (*_returned(read, flow), *_last_block(read, flow), *_judged(read, flow)):
        reasons.setdefault(key, why)
    if not reasons and not flow.returned:
        reasons = {id(layer.module): "output layer: as wide as the input" for layer in _input_sized(read)}
    untaken = [layer for layer in read.candidates if id(layer.module) not in flow.consumers]
    doubtful = [x for x in untaken if not read.follows(x) and layer_of(x.module).type != "convolution"]
    guess = untaken[-1:] if not reasons and not flow.returned else []
    uncalled = [layer for layer in untaken if id(layer.module) not in flow.called]
    doubtful += [*guess, *(uncalled if flow.called else _unread(read, guess, reasons))]
    return reasons, frozenset(id(layer.module) for layer in doubtful) - set(reasons)


def _unread(read: _Model, guess: Sequence[_Layer], known: Mapping[int, str]) -> list[_Layer]:
    """Layers that may be outputs too if the forward pass cannot be read: as wide as their input or the model's.

    Those are attributes beside a guess that have its sides, and the last layers of modules with as many layers, of the
    same input, as one beside them that ends in an output: an actor and its critic.
    """
    modules: dict[tuple[str, ...], list[_Layer]] = {}
    for layer in read.candidates:
        modules.setdefault(layer.path[:-1], []).append(layer)
    alike = [a for b in guess for a in modules[b.path[:-1]] if (a.out, a.into) == (b.out, b.into)]
    ends = [layer for layer in alike if not layer.path[-1].isdigit()]
    for path, inside in modules.items():
        beside = [b for a, b in modules.items() if path and a != path and a[:-1] == path[:-1]]
        twins = [b for b in beside if (len(b), b[0].into) == (len(inside), inside[0].into)]
        ends += inside[-1:] if any(b[-1] in guess or id(b[-1].module) in known for b in twins) else []
    return [layer for layer in ends if layer is not read.layers[0] and layer.out in (layer.into, read.layers[0].into)]


def _returned(read: _Model, flow: Flow) -> Iterator[tuple[int, str]]:
    """Output layers by the forward pass: known layers, modules that hold matrices of their own, and parameters.

    The pooler of a model without an output, such as a bare BERT, is none.
    """
    sides = {id(layer.module): (layer.out, layer.into) for layer in read.layers}
    for layer in read.layers:
        key = id(layer.module)
        added = key in flow.added and sides.get(flow.added[key]) == (layer.out, layer.out)
        pools = any({"pool", "pooler", "pooling"} & words(part) for part in layer.path)
        if (added or key in flow.outputs) and not layer.block and not pools:
            yield key, RETURNED
    for part in (*read.model.modules(), *read.model.parameters()):
        known = isinstance(part, nn.Module) and layer_of(part).type not in ("", "embedding")
        if id(part) in flow.outputs - read.blocks and not known:
            yield id(part), RETURNED


def _last_block(read: _Model, flow: Flow) -> Iterator[tuple[int, str]]:
    """Output layers inside of blocks: the last of a graph network, or one returned beside the hidden state.

    A block that adds to its input continues the model's hidden state, unless no layer takes its width.
    """
    for block in (module for module in read.model.modules() if id(module) in flow.returned):
        inside = flow_of(block)
        for layer in (layer for layer in read.layers if layer.block and id(layer.module) in inside.outputs):
            adds = any(INPUT in entry for entry in inside.entries)  # to the block's own input
            ends = not adds or not (read.follows(layer) or _may_be_consumed(layer, read))
            hidden, *rest = inside.entries
            if (rest and id(layer.module) not in hidden) or (ends and id(block) in flow.outputs):
                yield id(layer.module), "output layer: the model returns the output of its block"


def _judged(read: _Model, flow: Flow) -> Iterator[tuple[int, str]]:
    """Output layers by names and widths, unless another layer takes their output and the model does not return it."""
    taken = flow.consumers.keys() - flow.returned
    for layer in _named(read):
        if id(layer.module) not in taken:
            yield id(layer.module), "output layer by name"
    for layer in read.candidates:
        if id(layer.module) in taken or read.follows(layer):
            continue
        weak = bool(layer.path) and bool(WEAK & words(layer.path[-1]))
        if layer.out in read.vocabularies:
            yield id(layer.module), ROWS
        elif weak or not _may_be_consumed(layer, read):
            yield id(layer.module), "output layer: no other layer takes its output"
    if (last := _last(read.model)) is not None and id(last) not in flow.consumers:
        yield id(last), "output layer: the last one of the model"


def _named(read: _Model) -> Iterator[_Layer]:
    """Output layers by name, outside blocks.

    One whose width another output takes, and no layer outside its module gives, is none: timm's `conv_head`.
    """
    scopes: dict[tuple[str, ...], list[_Layer]] = {}
    for layer in read.candidates:
        for i, part in enumerate(layer.path):
            if WORDS & words(part) and "pre" not in words(part):
                scopes.setdefault(layer.path[: i + 1], []).append(layer)
                break
    ends = {
        scope: inside if inside[0].path == scope else _last_layers(inside, read) for scope, inside in scopes.items()
    }
    for scope, layers in ends.items():
        others = {layer.into for other, last in ends.items() if other != scope for layer in last}
        produced = {other.out for other in read.layers if other.path[: len(scope)] != scope} | read.embedded
        yield from (layer for layer in layers if layer.out in produced or layer.out not in others)


def _last_layers(inside: Sequence[_Layer], read: _Model) -> list[_Layer]:
    """Layers of a module whose output none of its layers takes; the last one if there is none."""
    ends = [a for a in inside if not any(b.into == a.out for b in inside if b is not a) and a.out not in read.norms]
    return ends if ends or inside[-1].out in read.norms else [inside[-1]]


def _may_be_consumed(layer: _Layer, read: _Model) -> bool:
    """Whether the output may be split, flattened or concatenated before another layer takes it."""
    produced = {other.out for other in read.layers} | read.embedded
    others = [other for other in read.layers if other.path != layer.path]
    if any(layer.out == times * other.into for other in others for times in (2, 3, 4, 6) if other.into > 1):
        return True
    if layer_of(layer.module).type == "convolution":
        flattened = {other.into for other in others if layer_of(other.module).linear} - produced
        shuffled = any(layer.out == r * r * other.into for other in others for r in (2, 3, 4))
        return shuffled or any(width % layer.out == 0 for width in flattened)
    unexplained = [other.into for other in read.layers if other.into not in produced]
    pairs = {layer.out + other.out for other in others}
    return any(
        layer.out < width < 2 * layer.out or width in pairs or (layer.out >= 8 and width % layer.out == 0)
        for width in set(unexplained) - set(unexplained[:1])
    )


def _last(model: nn.Module) -> nn.Module | None:
    """The last layer of a Sequential, perhaps inside of modules that only wrap it."""
    while not isinstance(model, nn.Sequential) and next(model.parameters(recurse=False), None) is None:
        inside = [child for child in model.children() if next(child.parameters(), None) is not None]
        if len(inside) != 1 or layer_of(model).widths is not None:
            break
        model = inside[0]
    for child in reversed(list(model.children())) if isinstance(model, nn.Sequential) else ():
        layer = layer_of(child)
        if layer.linear or layer.type == "convolution":
            return child
        if next(child.parameters(), None) is not None and layer.type != "norm":
            return _last(child) if isinstance(child, nn.Sequential) else None
    return None


def _input_sized(read: _Model) -> list[_Layer]:
    """The only layer as wide as the model's input: an autoencoder or denoiser."""
    if not read.layers or read.layers[0].block or read.layers[0].into in read.norms | read.embedded:
        return []
    first, *rest = read.layers
    back = [layer for layer in rest if layer.out == first.into != first.out]
    return back if len(back) == 1 and back[0] in read.candidates else []
