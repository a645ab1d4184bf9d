"""Detects the output layers of a model.

Evidence, in this order: `get_output_embeddings()` of the model or a part of it; the source of the forward pass, which
says whose output is returned and whose is taken by another layer (`flow`); a name such as `classifier` or
`policy_head`; a layer whose output no other layer takes, judging by widths; the last layer of a Sequential model. All
of this outside repeated blocks: every BERT layer has an `output`. The order of definition alone is never used: if the
output is tied, frozen or absent, the last layer is a hidden one. If there is no evidence at all it is doubtful.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from inexact_muon.routing.flow import Flow, flow_of
from inexact_muon.routing.layers import Chain, chains, is_convolution, is_embedding, is_norm, linear_sides, widths
from inexact_muon.routing.words import INNER, INSIDE, LETTERS, WEAK, WORDS, words


@dataclass(frozen=True)
class _Layer:
    path: tuple[str, ...]
    module: nn.Module
    out: int
    into: int
    block: bool
    inner: bool


@dataclass(frozen=True)
class _Model:
    layers: tuple[_Layer, ...]
    norms: frozenset[int]
    vocabularies: frozenset[int]
    embedded: frozenset[int]

    @property
    def candidates(self) -> list[_Layer]:
        return [layer for layer in self.layers if not layer.block and not layer.inner]


@dataclass(frozen=True)
class Heads:
    """The output layers of a model.

    Attributes:
        reasons: id of each -> reason.
        doubtful: ids of layers that may be outputs: no single layer takes their width, but several together might; or
            the last one, and others as wide as their input, if the forward pass cannot be read.
    """

    reasons: Mapping[int, str]
    doubtful: frozenset[int]


def find_heads(model: nn.Module) -> Heads:
    """Detect the output layers, trainable or not."""
    blocks = frozenset(id(chain[-1][1]) for _, chain in chains(model) if in_block(chain))
    read, flow = _read(model), flow_of(model, blocks)
    reasons: dict[int, str] = {}
    for key, why in (*_declared(model, read), *_returned(model, read, flow, blocks), *_judged(model, read, flow)):
        reasons.setdefault(key, why)
    if not reasons and not flow.returned:
        reasons = {id(layer.module): "output layer: as wide as the input" for layer in _input_sized(read)}
    untaken = [layer for layer in read.candidates if id(layer.module) not in flow.consumed]
    doubtful = [layer for layer in untaken if not _follows(layer, read) and not is_convolution(layer.module)]
    guess = untaken[-1:] if not reasons and not flow.returned else []
    uncalled = [layer for layer in untaken if id(layer.module) not in flow.called]
    known = [layer for layer in read.layers if id(layer.module) in reasons]
    doubtful += [*guess, *(uncalled if flow.called else _unread(read, guess, known))]
    return Heads(reasons, frozenset(id(layer.module) for layer in doubtful) - set(reasons))


def _unread(read: _Model, guess: Sequence[_Layer], known: Sequence[_Layer]) -> list[_Layer]:
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
        ends += inside[-1:] if any(b[-1] in (*guess, *known) for b in twins) else []
    return [layer for layer in ends if layer is not read.layers[0] and layer.out in (layer.into, read.layers[0].into)]


def _returned(model: nn.Module, read: _Model, flow: Flow, blocks: frozenset[int]) -> Iterator[tuple[int, str]]:
    """Output layers by the forward pass: known layers, and modules that hold matrices of their own."""
    why, sides = "output layer: the model returns its output", {id(x.module): (x.out, x.into) for x in read.layers}
    for layer in read.layers:
        key = id(layer.module)
        added = key in flow.added and sides.get(flow.added[key]) == (layer.out, layer.out)
        if (added or key in flow.outputs) and not layer.block and not _pools(layer):
            yield key, why
    for part in (*model.modules(), *model.parameters()):
        if id(part) in flow.outputs - blocks and not (isinstance(part, nn.Module) and (widths(part) or is_norm(part))):
            yield id(part), why
    for layer in _last_block(model, read, flow):
        yield id(layer.module), "output layer: the model returns the output of its block"


def _judged(model: nn.Module, read: _Model, flow: Flow) -> Iterator[tuple[int, str]]:
    """Output layers by names and widths, unless another layer takes their output and the model does not return it."""
    taken = flow.consumed - flow.returned
    for layer in _named(read):
        if id(layer.module) not in taken:
            yield id(layer.module), "output layer by name"
    for layer in read.candidates:
        if id(layer.module) in taken:
            continue
        if layer.out in read.vocabularies and not _follows(layer, read):
            yield id(layer.module), "output layer: one row for each embedding"
        elif _unconsumed(layer, read):
            yield id(layer.module), "output layer: no other layer takes its output"
    last = _last(_unwrapped(model))
    if last is not None and id(last) not in flow.consumed:
        yield id(last), "output layer: the last one of the model"


def _last_block(model: nn.Module, read: _Model, flow: Flow) -> Iterator[_Layer]:
    """Output layers inside of blocks: the last of a graph network, or one returned beside the hidden state.

    A block that adds to its input continues the model's hidden state, unless no layer takes its width.
    """
    for block in (module for module in model.modules() if id(module) in flow.returned):
        inside = flow_of(block, frozenset())
        for layer in (layer for layer in read.layers if layer.block and id(layer.module) in inside.outputs):
            ends = not inside.residual or not (_follows(layer, read) or _may_be_consumed(layer, read))
            if inside.beside(id(layer.module)) or (ends and id(block) in flow.outputs):
                yield layer


def _pools(layer: _Layer) -> bool:
    """Whether a layer belongs to the pooler of a model without an output, such as a bare BERT."""
    return any({"pool", "pooler", "pooling"} & words(part) for part in layer.path)


def _read(model: nn.Module) -> _Model:
    layers: list[_Layer] = []
    norms, vocabularies, embedded = set[int](), set[int](), set[int]()
    for _, chain in chains(model):
        path, module = tuple(attribute for attribute, _ in chain[1:]), chain[-1][1]
        if is_embedding(module):
            vocabularies.add(int(module.num_embeddings))  # type: ignore[arg-type]
            embedded.add(int(module.embedding_dim))  # type: ignore[arg-type]
        elif is_norm(module):
            norms.update(p.numel() for p in module.parameters(recurse=False) if p.ndim == 1)
        elif (sides := widths(module)) is not None:
            if layers and layers[-1].path == path:  # a wrapper around the same layer
                layers.pop()
            layers.append(_Layer(path, module, *sides, in_block(chain), _inner(chain)))
    return _Model(tuple(layers), frozenset(norms), frozenset(vocabularies), frozenset(embedded))


def _inner(chain: Chain) -> bool:
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
        if type(child) is not nn.Sequential and _composite(child) and (alike > 1 or isinstance(parent, nn.ModuleList)):
            return True
    return False


def _composite(module: nn.Module) -> bool:
    return widths(module) is None and any(next(child.parameters(), None) is not None for child in module.children())


def _declared(model: nn.Module, read: _Model) -> Iterator[tuple[int, str]]:
    for module in model.modules():
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


def _named(read: _Model) -> Iterator[_Layer]:
    """Output layers by name, outside blocks."""
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
        others = [layer for other, last in ends.items() if other != scope for layer in last]
        yield from (layer for layer in layers if not _feeds(layer, others, scope, read))


def _feeds(layer: _Layer, others: Sequence[_Layer], scope: tuple[str, ...], read: _Model) -> bool:
    """Whether another output takes this width and no layer outside the module produces it: timm's `conv_head`."""
    givers = [other for other in read.layers if other.out == layer.out and other.path[: len(scope)] != scope]
    return any(other.into == layer.out for other in others) and not givers and layer.out not in read.embedded


def _last_layers(inside: Sequence[_Layer], read: _Model) -> list[_Layer]:
    """Layers of a module whose output none of its layers takes; the last one if there is none."""
    ends = [a for a in inside if not any(b.into == a.out for b in inside if b is not a) and a.out not in read.norms]
    return ends if ends or inside[-1].out in read.norms else [inside[-1]]


def _follows(layer: _Layer, read: _Model) -> bool:
    """Whether a layer or normalisation takes exactly this width."""
    return layer.out in read.norms or any(
        other.into == layer.out for other in read.layers if other is not layer and other.path != layer.path
    )


def _unconsumed(layer: _Layer, read: _Model) -> bool:
    if _follows(layer, read):
        return False
    weak = bool(layer.path) and bool(WEAK & words(layer.path[-1]))
    return weak or not _may_be_consumed(layer, read)


def _may_be_consumed(layer: _Layer, read: _Model) -> bool:
    """Whether the output may be split, flattened or concatenated before another layer takes it."""
    produced = {other.out for other in read.layers} | read.embedded
    others = [other for other in read.layers if other.path != layer.path]
    if any(layer.out == times * other.into for other in others for times in (2, 3, 4, 6) if other.into > 1):
        return True
    unexplained = [other for other in read.layers if other.into not in produced]
    open_widths = {other.into for other in unexplained if other.into != unexplained[0].into}
    if is_convolution(layer.module):
        flattened = {other.into for other in others if linear_sides(other.module)} - produced
        shuffled = any(layer.out == r * r * other.into for other in others for r in (2, 3, 4))
        return shuffled or any(width % layer.out == 0 for width in flattened)
    pairs = {layer.out + other.out for other in others}
    return any(
        layer.out < width < 2 * layer.out or width in pairs or (layer.out >= 8 and width % layer.out == 0)
        for width in open_widths
    )


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model without modules that only wrap another one."""
    while not isinstance(model, nn.Sequential) and next(model.parameters(recurse=False), None) is None:
        inside = [child for child in model.children() if next(child.parameters(), None) is not None]
        if len(inside) != 1 or widths(model) is not None:
            break
        model = inside[0]
    return model


def _last(model: nn.Module) -> nn.Module | None:
    """The last layer of a Sequential."""
    for child in reversed(list(model.children())) if isinstance(model, nn.Sequential) else ():
        if linear_sides(child) is not None or is_convolution(child):
            return child
        if next(child.parameters(), None) is not None and not is_norm(child):
            return _last(child)
    return None


def _input_sized(read: _Model) -> list[_Layer]:
    """The only layer as wide as the model's input: an autoencoder or denoiser."""
    if not read.layers or read.layers[0].block or read.layers[0].into in read.norms | read.embedded:
        return []
    back = [layer for layer in read.layers[1:] if layer.out == read.layers[0].into]
    return back if len(back) == 1 and back[0] in read.candidates and read.layers[0].out != read.layers[0].into else []
