"""Parameter groups from routes, and a warning if hidden matrices get AdamW."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from inexact_muon.routing.routes import Route, Rules, Splits, routes
from inexact_muon.views import Whole

LOST = 0.2
"""Fraction of hidden entries under AdamW from which a warning is issued."""

_INDEX = re.compile(r"(^|\.)\d+(?=\.[^.]+\.)")


@dataclass(frozen=True)
class Recipe:
    """Routing arguments of `for_model`.

    Attributes:
        adamw: options of the AdamW groups.
    """

    rules: Rules
    split: Splits | None
    adamw: Mapping[str, Any]

    def routes(self, model: nn.Module) -> list[Route]:
        """Route of each trainable parameter."""
        return routes(model, self.rules, self.split)

    def groups(self, made: Sequence[Route]) -> list[dict[str, Any]]:
        """One group per combination of algorithm, view, decay and rule options; LMO groups first."""
        groups: dict[str, dict[str, Any]] = {}
        for route in sorted(made, key=lambda route: route.algorithm != "lmo"):
            lmo = route.algorithm == "lmo"
            name = group_name(route)
            if name not in groups:
                options = {**({} if lmo else self.adamw), **({} if route.decay else {"weight_decay": 0.0})}
                kind = {"name": name, "algorithm": route.algorithm, "view": str(route.view)}
                groups[name] = {"params": [], **kind, **options, **route.options}
            groups[name]["params"].append((route.name, route.parameter))
        return list(groups.values())


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


def warn_of_lost_matrices(made: Sequence[Route]) -> None:
    """Warn if, without a rule, AdamW gets many hidden entries or a matrix whose siblings get the LMO."""
    hidden = [r for r in made if r.role in ("hidden", "expert", "router", "lora", "conv") or not r.sure]
    lost = [r for r in hidden if r.algorithm == "adamw" and r.rule is None and r.role != "conv"]
    entries = sum(r.parameter.numel() for r in hidden)
    share = sum(r.parameter.numel() for r in lost) / max(1, entries)
    if share > LOST:
        _warn(f"{share:.0%} of the entries of hidden matrices get AdamW", lost)
        return
    moved = {_INDEX.sub(r"\1*", r.name) for r in made if r.algorithm == "lmo"}
    roles = ("hidden", "expert", "router", "lora", "head")
    several = [r for r in made if sum(side > 1 for side in r.parameter.shape) > 1]
    matrices = [r for r in several if r.role in roles or not r.sure]
    odd = [r for r in matrices if r.algorithm == "adamw" and r.rule is None and _INDEX.sub(r"\1*", r.name) in moved]
    if odd:
        _warn("matrices get AdamW while those of the same name in other blocks get the LMO", odd)


def _warn(what: str, lost: Sequence[Route]) -> None:
    names = ", ".join(r.name for r in lost[:3]) + (f" and {len(lost) - 3} more" if len(lost) > 3 else "")
    text = f'for_model: {what} ({names}): if they should not, pass rules=[("{lost[0].name}", "lmo")], else "adamw"'
    warnings.warn(text, stacklevel=5)
