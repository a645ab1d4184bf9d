"""Weight decay: how much, and where.

decoupled      W <- (1 - lr decay) W
independent    W <- (1 - decay lr/lr_0) W, lr_0 the lr of the group at construction: changing lr_0 does not move it
cautious       decoupled, only where the step has the sign of W and so moves it towards zero (arXiv 2510.12402)
cautious-independent
"""

from __future__ import annotations

from inexact_muon.optim.group import Group

PLAIN_STAGES = {"before": "none", "after": "none", "decay": "decoupled", "fixed_norm": False}
"""Options of stages at which there are none."""

INDEPENDENT, CAUTIOUS = ("independent", "cautious-independent"), ("cautious", "cautious-independent")
DECAYS = ("decoupled", "independent", "cautious", "cautious-independent")


def per_lr(group: Group) -> float:
    """The decay of a step over its lr; 1 when constrained. `decay_lr` is lr_0 if it is independent, else 1."""
    return 1.0 if group["constrained"] else float(group["weight_decay"]) / float(group["decay_lr"])


def is_cautious(group: Group) -> bool:
    """Whether entries that a step moves away from zero are not decayed."""
    return group["decay"] in CAUTIOUS
