"""Parameter groups from routes, and warnings about what is not known."""

from __future__ import annotations

import fnmatch
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from torch import nn

from inexact_muon.routing.per_head import Heads
from inexact_muon.routing.routes import Route, Rules, Splits, routes
from inexact_muon.views import Whole

LOST = 0.2
"""Fraction of hidden entries under AdamW from which a warning is issued."""

HIDDEN = ("hidden", "expert", "router", "lora", "conv")
"""Roles of hidden matrices."""

_INDEX = re.compile(r"(^|\.)\d+(?=\.[^.]+\.)")


@dataclass(frozen=True)
class Recipe:
    """Routing arguments of `for_model`.

    Attributes:
        adamw: options of the AdamW groups.
        lr: learning rate of the LMO groups.
        heads: whether attention's matrices are one for each head.
    """

    rules: Rules
    split: Splits | None
    adamw: Mapping[str, Any]
    lr: Any = None
    heads: Heads = False

    def routes(self, model: nn.Module) -> list[Route]:
        """Route of each trainable parameter."""
        return routes(model, self.rules, self.split, self.heads)

    def groups(self, routes: Sequence[Route]) -> list[dict[str, Any]]:
        """One group per combination of algorithm, view, decay and rule options; LMO groups first."""
        groups: dict[str, dict[str, Any]] = {}
        for route in sorted(routes, key=lambda route: route.algorithm != "lmo"):
            lmo = route.algorithm == "lmo"
            name = group_name(route)
            if name not in groups:
                options = {**({} if lmo else self.adamw), **({} if route.decay else {"weight_decay": 0.0})}
                kind = {"name": name, "algorithm": route.algorithm, "view": str(route.view)}
                groups[name] = {"params": [], **kind, **self._scaled({**options, **route.options})}
            groups[name]["params"].append((route.name, route.parameter))
        return list(groups.values())

    def _scaled(self, options: dict[str, Any]) -> dict[str, Any]:
        """With `lr_scale` of a rule multiplied into the learning rate, so that schedulers see one number."""
        scale = options.pop("lr_scale", None)
        if scale is None:
            return options
        if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0.0 <= scale < inf:
            raise ValueError(f"rules: lr_scale must be finite and not negative, got {scale!r}")
        return {**options, "lr": options.get("lr", self.lr) * scale}


def group_name(route: Route) -> str:
    """Such as "lmo", "lmo split(rows=3)", "adamw no decay", "lmo rule 'blocks.0.*'"."""
    parts = [route.algorithm]
    if route.algorithm == "lmo" and route.view != Whole():
        parts.append(str(route.view))
    if not route.decay:
        parts.append("no decay")
    if route.options:
        parts.append(f"rule {route.rule!r}")
    return " ".join(parts)


def warn_of_doubts(routes: Sequence[Route]) -> None:
    """Warn once if hidden matrices may be outputs, once if heads are not known, once if many matrices get AdamW."""
    outputs = [r for r in routes if r.may_be_output]
    if outputs:
        text = "it is not known whether a layer takes their output, and output layers should get AdamW"
        _warn(text, outputs, "adamw", "if none does", "lmo", routes)
    unknown = [r for r in routes if r.unknown_heads]
    if unknown:
        names, doubt = _some(unknown), unknown[0].unknown_heads
        warnings.warn(
            f"for_model: heads: the heads of {names} are not known ({doubt}), and these are not divided by head: pass "
            f'split={{"{globs(unknown, routes)[0]}": the number of heads}}, or 1 to leave them as they are',
            stacklevel=4,
        )
    hidden = [r for r in routes if r.role in HIDDEN or r.settled or not r.sure]
    lost = [r for r in hidden if r.algorithm == "adamw" and not r.settled and r.role not in ("conv", "head")]
    entries = sum(r.parameter.numel() for r in hidden)
    share = sum(r.parameter.numel() for r in lost) / max(1, entries)
    if share > LOST:
        what = f"{share:.0%} of the entries of hidden matrices get AdamW"
        _warn(what, lost, "lmo", "if they should not", "adamw", routes)
        return
    moved = {_INDEX.sub(r"\1*", r.name) for r in routes if r.algorithm == "lmo" and not r.settled}
    several = [r for r in routes if sum(side > 1 for side in r.parameter.shape) > 1]
    matrices = [r for r in several if (r.role in (*HIDDEN, "head") and r.role != "conv") or not r.sure]
    odd = [r for r in matrices if r.algorithm == "adamw" and not r.settled and _INDEX.sub(r"\1*", r.name) in moved]
    if odd:
        what = "matrices get AdamW while those of the same name in other blocks get the LMO"
        _warn(what, odd, "lmo", "if they should not", "adamw", routes)


def _warn(what: str, doubtful: Sequence[Route], word: str, condition: str, other: str, routes: Sequence[Route]) -> None:
    names = _some(doubtful)
    rules = ", ".join(f'("{glob}", "{word}")' for glob in globs(doubtful, routes))
    warnings.warn(f'for_model: {what} ({names}): {condition}, pass rules=[{rules}], else "{other}"', stacklevel=5)


def _some(routes: Sequence[Route]) -> str:
    return ", ".join(r.name for r in routes[:3]) + (f" and {len(routes) - 3} more" if len(routes) > 3 else "")


def globs(chosen: Sequence[Route], routes: Sequence[Route]) -> list[str]:
    """Globs that match the names of these routes and no other matrix: one for each name up to the block's number."""
    names = {r.name for r in chosen}
    others = [r.name for r in routes if r.name not in names and r.parameter.ndim > 1]
    patterns: dict[str, None] = {}
    for r in chosen:
        glob = re.sub(r"(?<![^.])\d+(?![^.])", "*", _escaped(r.name))
        alone = sum(fnmatch.fnmatchcase(name, glob) for name in names) == 1
        patterns[_escaped(r.name) if alone or any(fnmatch.fnmatchcase(name, glob) for name in others) else glob] = None
    return list(patterns)


def _escaped(name: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", name)
