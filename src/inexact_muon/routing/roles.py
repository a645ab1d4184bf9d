"""The role of a parameter, and what follows from it: algorithm, view, weight decay."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from torch import nn

from inexact_muon.routing import experts, layouts
from inexact_muon.routing.experts import channel_weight
from inexact_muon.routing.layers import Site, layer_of, stored
from inexact_muon.routing.outputs import Facts
from inexact_muon.views import Flatten, Split, Transposed, View, Whole

LORA = ("lora_A", "lora_B")
LORA_EMBEDDINGS = ("lora_embedding_A", "lora_embedding_B")
TABLE = re.compile("pos|token|embed|bias|table|log|latent|probe|quer|scale|gamma|alpha|mask|prompt|decay|mix|time")
"""Names of parameters that are known not to be weight matrices."""

WEIGHT = re.compile(r"weights?\d*|kernel|[wW]\d?")


@dataclass(frozen=True)
class Decision:
    """Algorithm and view of a parameter, and why.

    Attributes:
        role: hidden, conv, expert, router, lora, head, embedding, norm, bias, vector or other.
        view: its matrices, also under AdamW: a rule may request the LMO.
        decay: whether weight decay applies.
        sure: False if the evidence is weak; shown by `explain`.
        may_be_output: whether it is unsure because it may be an output layer.
        unknown_heads: why the heads of this layer of attention are not known; empty for others.
    """

    role: str
    algorithm: str
    why: str
    view: View = field(default_factory=Whole)
    decay: bool = False
    sure: bool = True
    may_be_output: bool = False
    unknown_heads: str = ""


def decide(site: Site, facts: Facts) -> Decision:
    """The role of a parameter."""
    if id(site.parameter) in facts.embeddings:
        tied = id(site.parameter) in facts.tied
        return Decision("embedding", "adamw", "tied with an embedding" if tied else "embedding")
    if any(part in LORA_EMBEDDINGS for part in (*site.path, site.own)):
        return Decision("embedding", "adamw", "low-rank change of an embedding")
    if site.path[-2:-1] == ("parametrizations",):
        return _parametrised(site, facts)
    if layer_of(site.module).type == "norm":
        return Decision("norm", "adamw", f"norm ({site.kind})")
    if site.parameter.ndim < 2 or site.own.lower().endswith("bias"):
        return _vector(site)
    if site.own.endswith("_g") and hasattr(site.module, site.own[:-1] + "v"):
        return Decision("vector", "adamw", "length of a weight-normed weight")
    if site.own.endswith(("_v", "_orig")) and hasattr(site.module, site.own.rpartition("_")[0]):
        site = replace(site, own=site.own.rpartition("_")[0])
    decision = _matrix(site, facts)
    if decision.algorithm == "lmo":
        shapes = decision.view.shapes(site.parameter.shape)
        if len(shapes) == 1 and min(shapes[0][-2:]) == 1:  # its polar factor is the normalised vector
            return replace(decision, algorithm="adamw", why="a matrix with one row or column")
    return decision


def _vector(site: Site) -> Decision:
    if site.own.lower().endswith("bias"):
        return Decision("bias", "adamw", "bias")
    return Decision("vector", "adamw", f"{site.parameter.ndim}-D ({site.kind})")


def _parametrised(site: Site, facts: Facts) -> Decision:
    """torch.nn.utils.parametrize: a parameter from which the weight is computed.

    The direction of a weight norm and the matrix under a spectral norm are used up to a factor: they are treated like
    the weight. Under an orthogonal or another parametrisation an LMO step is not an LMO step of the weight.
    """
    kinds = [type(module).__name__ for module in site.module.children()]
    if kinds == ["_WeightNorm"] and site.own == "original0":
        return Decision("vector", "adamw", "length of a weight-normed weight")
    layer = site.up(2, site.path[-1])
    if kinds in (["_WeightNorm"], ["_SpectralNorm"]):
        return decide(layer, facts)
    if site.parameter.ndim < 2:
        return _vector(layer)
    named = "an orthogonal map" if kinds == ["_Orthogonal"] else " and ".join(kinds)
    why = f"the weight is computed from it by {named}"
    return Decision("other", "adamw", why, decay=False, sure=kinds == ["_Orthogonal"])


def _matrix(site: Site, facts: Facts) -> Decision:
    """A parameter of two or more dimensions."""
    view = stored(site.module, site.own, site.parameter)
    lora = any(part in LORA for part in (*site.path[-1:], site.own))
    if view is None:
        return _lora_of(site) if lora else _unknown_layer(site, facts)
    if lora:
        return Decision("lora", "lmo", "half of a low-rank change (LoRA)", view, True)
    if isinstance(view, Flatten):
        return _convolution(site, view, facts)
    if not isinstance(view, Whole | Transposed):
        return Decision("hidden", "lmo", f"fused gates or projections ({site.kind})", view, True)
    rows, columns = view.shapes(site.parameter.shape)[0]
    if site.own == "weight" and _is_router(site, rows):
        return Decision("router", "lmo", "router: either algorithm works", view, True)
    if id(site.module) in facts.outputs:
        return Decision("head", "adamw", facts.outputs[id(site.module)], view, True)
    fused = layouts.fused(site, rows, columns, facts.code)
    if fused is not None:
        cut, what = fused
        if cut is not None:
            return Decision("hidden", "lmo", f"fused {what}: split", layouts.within(cut, view), True)
        why = f"named like a fused {what}, but the sizes do not fit: not split"
        return Decision("hidden", "lmo", why, view, True, sure=False)
    return _doubted(Decision("hidden", "lmo", f"hidden matrix ({site.kind})", view, True), site, facts)


def _is_router(site: Site, outputs: int) -> bool:
    """Whether a matrix scores experts: by its name, or a gate with one row per expert."""
    names = [part.lower() for part in site.path[-2:]]
    if any("router" in part for part in (*names, site.kind.lower())):
        return True
    if not names or names[-1] not in experts.ROUTERS:
        return False
    lists = [child for child in (site.parent or site.module).children() if isinstance(child, nn.ModuleList)]
    return site.number(*experts.COUNT) == outputs or any(len(child) == outputs for child in lists)


def _doubted(decision: Decision, site: Site, facts: Facts) -> Decision:
    """Unsure if the layer may be an output."""
    if id(site.module) not in facts.doubtful:
        return decision
    return replace(decision, why=f"{decision.why}, unless it is an output layer", sure=False, may_be_output=True)


def _convolution(site: Site, view: Flatten, facts: Facts) -> Decision:
    module = site.module
    if module.groups > 1 and module.groups == module.in_channels:  # type: ignore[operator]
        return Decision("conv", "adamw", "depthwise convolution", view, True)
    if id(module) in facts.outputs:
        return Decision("head", "adamw", facts.outputs[id(module)], view, True)
    if parts := layouts.parts_by_name(site.path[-1] if site.path else ""):
        if module.groups == 1 and facts.code.cut(site, int(module.out_channels)) == Split(len(parts)):  # type: ignore[arg-type]
            why = f"convolution to {', '.join(parts)}: split"
            return Decision("conv", "lmo", why, replace(view, groups=len(parts)), True)
        why = "convolution named like a fused weight: flattened, not split"
        return Decision("conv", "lmo", why, view, True, sure=False)
    kind = "transposed convolution" if view.transposed else "convolution"
    grouped = f", a matrix for each of {view.groups} groups" if view.groups > 1 else ""
    return _doubted(Decision("conv", "lmo", f"{kind}, flattened{grouped}", view, True), site, facts)


def _lora_of(site: Site) -> Decision:
    """LoRA matrices that are parameters of the layer itself."""
    if site.parameter.ndim != 2:
        return Decision("lora", "adamw", "part of a low-rank change (LoRA)", decay=True, sure=False)
    sides, (rows, columns) = layer_of(site.module).linear, site.parameter.shape
    first = site.own == "lora_A"  # (rank, in); lora_B is (out, rank)
    turned = sides is not None and (rows == sides[1] != columns if first else columns == sides[0] != rows)
    return Decision("lora", "lmo", "half of a low-rank change (LoRA)", Transposed() if turned else Whole(), True)


def _unknown_layer(site: Site, facts: Facts) -> Decision:
    """A parameter that is not the weight of a known layer: experts, weights of graph networks, or AdamW."""
    if isinstance(site.module, nn.ParameterList | nn.ParameterDict) and site.parent is not None:
        named = isinstance(site.module, nn.ParameterDict)
        site = site.up(1, site.own if named else site.path[-1])
    stack, shape = experts.stack(site), tuple(site.parameter.shape)
    if stack is not None:
        view, sure = stack
        doubt = "" if sure else "; which side is the input is not known: taken as (out, in)"
        return Decision("expert", "lmo", f"a matrix for each expert{doubt}", view, True, sure)
    if len(shape) == 2 and _is_router(site, shape[0]):
        return Decision("router", "lmo", "router: either algorithm works", Whole(), True)
    channels = channel_weight(site)
    if channels is not None and id(site.module) in facts.outputs:
        return Decision("head", "adamw", facts.outputs[id(site.module)], channels, True)
    if channels is not None:
        each = "hidden matrix" if len(shape) == 2 else "hidden matrices, one for each relation or basis"
        return Decision("hidden", "lmo", f"{each} ({site.kind})", channels, True)
    if len(shape) == 2 and site.kind.endswith("Linear") and WEIGHT.fullmatch(site.own):
        return Decision("hidden", "lmo", f"hidden matrix by its class ({site.kind})", Whole(), True, sure=False)
    flat = sum(side > 1 for side in shape) <= 1
    known = flat or shape[0] == 1 or TABLE.search(site.own.lower()) is not None
    if id(site.parameter) in facts.outputs and not known:
        return Decision("head", "adamw", facts.outputs[id(site.parameter)], decay=True)
    decay = WEIGHT.fullmatch(site.own) is not None
    why = f"{len(shape)}-D parameter of {site.kind}: not the weight of a known layer"
    return Decision("other", "adamw", why, decay=decay and not known, sure=known)
