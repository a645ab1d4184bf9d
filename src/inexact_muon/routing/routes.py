"""The algorithm and view of each parameter, by its role in the model.

hidden matrices              LMO, as stored; (in, out) weights transposed; each part of a fused weight separately
convolution kernels          LMO on out x (in * kernel), per group of channels
stacks of expert matrices    LMO on each; routers and LoRA pairs as plain matrices
everything else              AdamW: embeddings, tied or not, output layers, norms, biases, depthwise kernels, and
                             parameters that are not the weight of a known layer

Weight decay applies to matrices and to untied output layers, unless `no_weight_decay()` of the model names them.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from inexact_muon.routing.layers import Site, sites
from inexact_muon.routing.layouts import within
from inexact_muon.routing.per_head import Heads, check_heads, per_head
from inexact_muon.routing.roles import Decision, Facts, decide
from inexact_muon.views import Flatten, Split, View, Whole, parse
from inexact_muon.wrappers import bare_name

Rules = Sequence[tuple[str, str | Mapping[str, Any]]]
Splits = Mapping[str, int | tuple[int, ...] | str | View]


@dataclass(frozen=True)
class Route:
    """Algorithm and view of one parameter, and why.

    Attributes:
        algorithm: lmo or adamw.
        view: the matrices passed to the ball; whole for AdamW.
        role: hidden, conv, expert, router, lora, head, embedding, norm, bias, vector or other.
        decay: whether weight decay applies.
        sure: False if the evidence is weak.
        rule: the glob of the rule that applied, if any.
        options: group options set by the rule.
        settled: whether the rule decides the algorithm.
        may_be_output: whether it is unsure because it may be an output layer.
        unknown_heads: why the heads of this layer of attention are not known; empty for others.
    """

    name: str
    parameter: nn.Parameter
    algorithm: str
    view: View
    why: str
    role: str = "hidden"
    decay: bool = True
    sure: bool = True
    rule: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    settled: bool = False
    may_be_output: bool = False
    unknown_heads: str = ""

    @property
    def reason(self) -> str:
        """Why, and whether this is certain."""
        return self.why if self.sure else f"unsure: {self.why}"


def routes(model: nn.Module, rules: Rules = (), split: Splits | None = None, heads: Heads = False) -> list[Route]:
    """One route per parameter that requires a gradient, in the model's order; a tied weight has one.

    The model is not run, and parameters may be on the meta device.

    Args:
        rules: (glob on the parameter's name, "lmo", "adamw" or group options) pairs; the first match wins and overrides
            everything else. Options may contain "algorithm", and "lr_scale", which multiplies the learning rate of
            either algorithm. A glob that matches nothing is an error, also in split.
        split: glob on the parameter's name -> number of row blocks, rows of each, or a view, for weights whose layout
            is not recognised or differs from the model's computation; 1 leaves a weight whole.
        heads: whether query, key and value are a matrix for each head; "all": output projections too.
    """
    _check(model, rules, split or {})
    check_heads(heads)
    unwanted, pairs = undecayed(model), findings(model)
    decisions = per_head(pairs, heads) if heads else [finding for _, finding in pairs]
    routed = []
    for (site, _), decision in zip(pairs, decisions, strict=True):
        finding = _split(decision, site, split or {})
        exempt = site.name in unwanted or getattr(site.parameter, "_no_weight_decay", False)
        routed.append(_apply_rules(site, finding, rules, exempt))
    return routed


def findings(model: nn.Module) -> list[tuple[Site, Decision]]:
    """Each parameter that requires a gradient, and what its role asks for."""
    facts, pairs = Facts.of(model), []
    for site in sites(model):
        if is_lazy(site.parameter):
            raise ValueError(f"{site.name} has no shape yet: run a batch through the model before for_model")
        pairs.append((site, decide(site, facts)))
    return pairs


def undecayed(model: nn.Module) -> set[str]:
    """Parameters named by `no_weight_decay()` and `no_weight_decay_keywords()` of the model and its parts (timm)."""
    exempt: set[str] = set()
    names = [name for name, _ in model.named_parameters()]
    for prefix, module in model.named_modules():
        start = f"{prefix}." if prefix else ""
        exempt.update(start + name for name in _call_if_defined(module, "no_weight_decay"))
        for word in _call_if_defined(module, "no_weight_decay_keywords"):
            exempt.update(name for name in names if name.startswith(start) and word in name[len(start) :])
    return exempt


def matches(name: str, glob: str) -> bool:
    """Whether a glob matches a parameter name, with or without the parts that wrappers insert."""
    return fnmatch.fnmatchcase(name, glob) or fnmatch.fnmatchcase(bare_name(name), glob)


def _call_if_defined(module: nn.Module, name: str) -> Iterable[str]:
    method = getattr(type(module), name, None)
    return method(module) or () if callable(method) else ()


def _check(model: nn.Module, rules: Rules, split: Splits) -> None:
    for pair in rules:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"rules is a list of pairs such as ('head.*', 'adamw'), got {pair!r} in it")
        glob, choice = pair
        algorithm = choice if isinstance(choice, str) else choice.get("algorithm", "lmo")
        if algorithm not in ("lmo", "adamw"):
            raise ValueError(f"rules: {glob!r} asks for {algorithm!r}; say lmo or adamw")
    names = [name for name, _ in model.named_parameters()]
    for what, glob in [("rules", glob) for glob, _ in rules] + [("split", glob) for glob in split]:
        if not any(matches(name, glob) for name in names):
            near = (difflib.get_close_matches(glob, names, n=1, cutoff=0.0) or ["none"])[0]
            raise ValueError(f"{what}: {glob!r} matches no parameter (a tied one has its first name); similar: {near}")


def _split(finding: Decision, site: Site, split: Splits) -> Decision:
    rows = next((rows for glob, rows in split.items() if matches(site.name, glob)), None)
    if rows is None or site.parameter.ndim < 2:
        return finding
    if isinstance(rows, str | View):
        view = parse(rows) if isinstance(rows, str) else rows
    elif isinstance(finding.view, Flatten):
        raise ValueError(f"split: {site.name} is a convolution kernel, which cannot be split: leave it out")
    elif rows == 1:
        view = type(finding.view)() if hasattr(finding.view, "inner") else Whole()
    else:
        view = within(Split(rows), finding.view)
    view.shapes(site.parameter.shape)  # raises if it does not fit
    return replace(finding, view=view, why="split as asked", sure=True, unknown_heads="")


def _apply_rules(site: Site, finding: Decision, rules: Rules, exempt: bool) -> Route:
    """The route of a parameter; a rule that gives it the LMO makes it a matrix, which decays unless it is exempt."""
    glob, choice = next(((g, w) for g, w in rules if matches(site.name, g)), (None, {}))
    options = {"algorithm": choice} if isinstance(choice, str) else dict(choice)
    settled = "algorithm" in options
    algorithm = options.pop("algorithm", finding.algorithm)
    if settled and algorithm == "lmo" and site.parameter.ndim < 2:
        raise ValueError(f"rules: {site.name} has shape {tuple(site.parameter.shape)} and cannot get a matrix LMO")
    decay = finding.decay or (settled and algorithm == "lmo")
    return Route(
        name=site.name,
        parameter=site.parameter,
        algorithm=algorithm,
        view=finding.view if algorithm == "lmo" else Whole(),
        why=f"rule {glob!r}" if settled else finding.why,
        role=finding.role,
        decay=(decay and not exempt) or "weight_decay" in options,
        sure=finding.sure or settled,
        rule=glob,
        options=options,
        settled=settled,
        may_be_output=finding.may_be_output and not settled,
        unknown_heads="" if settled else finding.unknown_heads,
    )
