"""Weight decay: how much, and where; and which options of stages go together.

decoupled      W <- (1 - lr decay) W
independent    W <- (1 - decay lr/lr_0) W, lr_0 the lr of the group at construction: changing lr_0 does not move it
cautious       decoupled, only where the step has the sign of W and so moves it towards zero (arXiv 2510.12402)
cautious-independent
"""

from __future__ import annotations

from math import inf
from typing import Any

PLAIN_STAGES = {"before": "none", "after": "none", "decay": "decoupled", "fixed_norm": False}
"""Options of stages at which there are none."""

INDEPENDENT, CAUTIOUS = ("independent", "cautious-independent"), ("cautious", "cautious-independent")
DECAYS = ("decoupled", "independent", "cautious", "cautious-independent")


def per_lr(group: dict[str, Any]) -> float:
    """The decay of a step over its lr; 1 when constrained. `decay_lr` is lr_0 if it is independent, else 1."""
    return 1.0 if group["constrained"] else float(group["weight_decay"]) / float(group["decay_lr"])


def is_independent(group: dict[str, Any]) -> bool:
    """Whether weight_decay is that of a whole step."""
    return group["decay"] in INDEPENDENT


def is_cautious(group: dict[str, Any]) -> bool:
    """Whether entries that a step moves away from zero are not decayed."""
    return group["decay"] in CAUTIOUS


def check_decay(group: dict[str, Any]) -> None:
    """Validate the options of decay of a complete group."""
    if group["fixed_norm"] and group["weight_decay"]:
        raise ValueError("fixed_norm=True keeps the norm that weight_decay would change: set weight_decay=0")
    if not 0.0 < group["decay_lr"] < inf:
        raise ValueError(f"decay={group['decay']!r} is relative to the first lr, which must be positive and finite")


def check_stages(group: dict[str, Any], needs_dual: bool, own_momenta: bool) -> None:
    """Validate the options of stages of a complete group, each with the others.

    Args:
        needs_dual: of the group's length.
        own_momenta: whether the optimizer is EF21's.
    """
    named = [key for key, plain in PLAIN_STAGES.items() if group[key] != plain and key != "decay"]
    named += ["decay"] * is_cautious(group)
    if group["algorithm"] == "adamw" and (named or is_independent(group)):
        raise ValueError(f"AdamW has no oracle: leave out {(named or ['decay'])[0]} in the group {group['name']!r}")
    if own_momenta and named:
        raise ValueError(f"EF21Muon has no stages around its oracle: leave out {named[0]}")
    if needs_dual and named not in ([], ["decay"]):
        raise ValueError(f"length={group['length']!r} is made of the oracle's answer as it is: leave out {named[0]}")
    if group["constrained"] and named:
        raise ValueError(f"constrained=True takes steps to points of a ball: leave out {named[0]}")
