"""The algorithm and view of each parameter, by its role in the model, and its group.

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
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from inexact_muon.routing.attention import Heads, per_head
from inexact_muon.routing.layers import Site, chains, sites
from inexact_muon.routing.layouts import within
from inexact_muon.routing.outputs import facts_of
from inexact_muon.routing.roles import Decision, decide
from inexact_muon.views import Flatten, Split, View, Whole, parse
from inexact_muon.wrappers import bare_name

Rules = Sequence[tuple[str, str | Mapping[str, Any]]]
Splits = Mapping[str, int | tuple[int, ...] | str | View]

LOST = 0.2
"""Fraction of hidden entries under AdamW from which a warning is issued."""

HIDDEN = ("hidden", "expert", "router", "lora", "conv")
"""Roles of hidden matrices."""

_INDEX = re.compile(r"(^|\.)\d+(?=\.[^.]+\.)")


@dataclass(frozen=True, kw_only=True)
class Route(Decision):
    """The decision about one parameter, with its name and rule; the view under AdamW is whole.

    Attributes:
        rule: the glob of the rule that applied, if any.
        options: group options set by the rule.
        settled: whether the rule decides the algorithm.
    """

    name: str
    parameter: nn.Parameter
    rule: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    settled: bool = False


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
    names, split = [name for name, _ in model.named_parameters()], split or {}
    if rules or split:
        _check(names, rules, split)
    if heads not in (True, False, "all"):
        raise ValueError(f'heads must be True, False or "all" (with output projections), got {heads!r}')
    unwanted, decided = undecayed(model, names), decisions(model)
    by_head = per_head(decided, heads) if heads else [decision for _, decision in decided]
    routed = []
    for (site, _), decision in zip(decided, by_head, strict=True):
        if split:
            decision = _split(decision, site, split)
        exempt = site.name in unwanted or getattr(site.parameter, "_no_weight_decay", False)
        routed.append(_routed(site, decision, rules, exempt))
    return routed


def decisions(model: nn.Module) -> list[tuple[Site, Decision]]:
    """Each parameter that requires a gradient, and what its role asks for."""
    modules = list(chains(model))
    facts, decided = facts_of(model, modules), []
    for site in sites(modules):
        if is_lazy(site.parameter):
            raise ValueError(f"{site.name} has no shape yet: run a batch through the model before for_model")
        decided.append((site, decide(site, facts)))
    return decided


def undecayed(model: nn.Module, names: Sequence[str]) -> set[str]:
    """Parameters named by `no_weight_decay()` and `no_weight_decay_keywords()` of the model and its parts (timm)."""
    exempt: set[str] = set()
    for prefix, module in model.named_modules():
        start = f"{prefix}." if prefix else ""
        if callable(named := getattr(type(module), "no_weight_decay", None)):
            exempt.update(start + name for name in named(module) or ())
        if callable(keywords := getattr(type(module), "no_weight_decay_keywords", None)):
            inside = [name for name in names if name.startswith(start)]
            exempt.update(name for word in keywords(module) or () for name in inside if word in name[len(start) :])
    return exempt


def matches(name: str, glob: str) -> bool:
    """Whether a glob matches a parameter name, with or without the parts that wrappers insert."""
    return fnmatch.fnmatchcase(name, glob) or fnmatch.fnmatchcase(bare_name(name), glob)


def _check(names: Sequence[str], rules: Rules, split: Splits) -> None:
    for pair in rules:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"rules is a list of pairs such as ('head.*', 'adamw'), got {pair!r} in it")
        glob, choice = pair
        algorithm = choice if isinstance(choice, str) else choice.get("algorithm", "lmo")
        if algorithm not in ("lmo", "adamw"):
            raise ValueError(f"rules: {glob!r} asks for {algorithm!r}; say lmo or adamw")
    for what, glob in [("rules", glob) for glob, _ in rules] + [("split", glob) for glob in split]:
        if not any(matches(name, glob) for name in names):
            near = (difflib.get_close_matches(glob, names, n=1, cutoff=0.0) or ["none"])[0]
            raise ValueError(f"{what}: {glob!r} matches no parameter (a tied one has its first name); similar: {near}")


def _split(decision: Decision, site: Site, split: Splits) -> Decision:
    rows = next((rows for glob, rows in split.items() if matches(site.name, glob)), None)
    if rows is None or site.parameter.ndim < 2:
        return decision
    if isinstance(rows, str | View):
        view = parse(rows) if isinstance(rows, str) else rows
    elif isinstance(decision.view, Flatten):
        raise ValueError(f"split: {site.name} is a convolution kernel, which cannot be split: leave it out")
    elif rows == 1:
        view = type(decision.view)() if hasattr(decision.view, "inner") else Whole()
    else:
        view = within(Split(rows), decision.view)
    view.shapes(site.parameter.shape)  # raises if it does not fit
    return replace(decision, view=view, why="split as asked", sure=True, unknown_heads="")


def _routed(site: Site, decision: Decision, rules: Rules, exempt: bool) -> Route:
    """The route of a parameter; a rule that gives it the LMO makes it a matrix, which decays unless it is exempt."""
    glob, choice = next(((g, w) for g, w in rules if matches(site.name, g)), (None, {}))
    options = {"algorithm": choice} if isinstance(choice, str) else dict(choice)
    settled = "algorithm" in options
    algorithm = options.pop("algorithm", decision.algorithm)
    if settled and algorithm == "lmo" and site.parameter.ndim < 2:
        raise ValueError(f"rules: {site.name} has shape {tuple(site.parameter.shape)} and cannot get a matrix LMO")
    decay = decision.decay or (settled and algorithm == "lmo")
    changes: dict[str, Any] = {"algorithm": algorithm, "decay": (decay and not exempt) or "weight_decay" in options}
    if algorithm != "lmo":
        changes["view"] = Whole()
    if settled:
        changes |= {"why": f"rule {glob!r}", "sure": True, "may_be_output": False, "unknown_heads": ""}
    own = {"name": site.name, "parameter": site.parameter, "rule": glob, "options": options, "settled": settled}
    return Route(**{**vars(decision), **changes, **own})


@dataclass(frozen=True)
class Recipe:
    """Routing arguments of `for_model`."""

    rules: Rules
    split: Splits | None
    adamw: Mapping[str, Any]
    lr: Any = None
    heads: Heads = False

    def groups(self, routes: Sequence[Route]) -> list[dict[str, Any]]:
        """One group per combination of algorithm, view, decay and rule options; LMO groups first.

        Names are such as "lmo", "lmo split(rows=3)", "adamw no decay", "lmo rule 'blocks.0.*'". `lr_scale` of a rule is
        multiplied into the learning rate, so that schedulers see one number.
        """
        groups: dict[str, dict[str, Any]] = {}
        for route in sorted(routes, key=lambda route: route.algorithm != "lmo"):
            parts = [route.algorithm, *([str(route.view)] if route.view != Whole() else [])]
            parts += ["no decay"] * (not route.decay) + [f"rule {route.rule!r}"] * bool(route.options)
            name = " ".join(parts)
            if name not in groups:
                options = dict({} if route.algorithm == "lmo" else self.adamw)
                options |= {**({} if route.decay else {"weight_decay": 0.0}), **route.options}
                scale = options.pop("lr_scale", None)
                if isinstance(scale, int | float) and not isinstance(scale, bool) and 0.0 <= scale < inf:
                    options["lr"] = options.get("lr", self.lr) * scale
                elif scale is not None:
                    raise ValueError(f"rules: lr_scale must be finite and not negative, got {scale!r}")
                groups[name] = {"params": [], "name": name, "algorithm": route.algorithm, "view": route.view, **options}
            groups[name]["params"].append((route.name, route.parameter))
        return list(groups.values())


def doubts(routes: Sequence[Route]) -> Iterator[str]:
    """A warning if hidden matrices may be outputs, one if heads are not known, one if many matrices get AdamW."""
    outputs = [r for r in routes if r.may_be_output]
    if outputs:
        text = "it is not known whether a layer takes their output, and output layers should get AdamW"
        yield _doubt(text, outputs, "adamw", "if none does", "lmo", routes)
    unknown = [r for r in routes if r.unknown_heads]
    if unknown:
        names, doubt = _first_names(unknown), unknown[0].unknown_heads
        yield (
            f"for_model: heads: the heads of {names} are not known ({doubt}), and these are not divided by head: pass "
            f'split={{"{globs(unknown, routes)[0]}": the number of heads}}, or 1 to leave them as they are'
        )
    hidden = [r for r in routes if r.role in HIDDEN or r.settled or not r.sure]
    lost = [r for r in hidden if r.algorithm == "adamw" and not r.settled and r.role not in ("conv", "head")]
    share = sum(r.parameter.numel() for r in lost) / max(1, sum(r.parameter.numel() for r in hidden))
    if share > LOST:
        what = f"{share:.0%} of the entries of hidden matrices get AdamW"
        yield _doubt(what, lost, "lmo", "if they should not", "adamw", routes)
        return
    open_ = [r for r in routes if not r.settled]
    moved = {_INDEX.sub(r"\1*", r.name) for r in open_ if r.algorithm == "lmo"}
    matrices = [r for r in open_ if (r.role in (*HIDDEN, "head") and r.role != "conv") or not r.sure]
    several = [r for r in matrices if sum(side > 1 for side in r.parameter.shape) > 1]
    odd = [r for r in several if r.algorithm == "adamw" and _INDEX.sub(r"\1*", r.name) in moved]
    if odd:
        what = "matrices get AdamW while those of the same name in other blocks get the LMO"
        yield _doubt(what, odd, "lmo", "if they should not", "adamw", routes)


def _doubt(what: str, doubtful: Sequence[Route], word: str, condition: str, other: str, routes: Sequence[Route]) -> str:
    rules = ", ".join(f'("{glob}", "{word}")' for glob in globs(doubtful, routes))
    return f'for_model: {what} ({_first_names(doubtful)}): {condition}, pass rules=[{rules}], else "{other}"'


def _first_names(routes: Sequence[Route]) -> str:
    return ", ".join(r.name for r in routes[:3]) + (f" and {len(routes) - 3} more" if len(routes) > 3 else "")


def globs(chosen: Sequence[Route], routes: Sequence[Route]) -> list[str]:
    """Globs that match the names of these routes and no other matrix: one for each name up to the block's number."""
    names = {r.name for r in chosen}
    others = [r.name for r in routes if r.name not in names and r.parameter.ndim > 1]
    patterns: dict[str, None] = {}
    for r in chosen:
        name = re.sub(r"([*?[])", r"[\1]", r.name)
        glob = re.sub(r"(?<![^.])\d+(?![^.])", "*", name)
        alone = sum(fnmatch.fnmatchcase(other, glob) for other in names) == 1
        patterns[name if alone or any(fnmatch.fnmatchcase(other, glob) for other in others) else glob] = None
    return list(patterns)
