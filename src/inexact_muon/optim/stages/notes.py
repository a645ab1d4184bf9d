"""What `explain` says of stages, and whether it can judge the oracle by the momentum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod

from inexact_muon.dtensors import is_fake
from inexact_muon.inexactness import worst
from inexact_muon.lmo import Spectral
from inexact_muon.optim.core import LMOOptimizer
from inexact_muon.optim.group import Group
from inexact_muon.optim.stages import NONE, short

MOST_WORK = 2e9
"""Work, n^2 m summed over all matrices, up to which `explain` decomposes the momentum: a second or two on a CPU."""


def stages_of(group: Group) -> str:
    """The stages of a group in words; empty if it has none."""
    words = [f"{key} {short(group[key])}" for key in ("before", "after") if group[key] != NONE]
    words += [f"{group['decay']} decay"] * (group["decay"] != "decoupled") + ["fixed norms"] * group["fixed_norm"]
    return ", ".join(words)


def stage_notes(optimizer: LMOOptimizer, stages: Sequence[str]) -> Iterator[str]:
    """Sentences on the stages of each parameter, and on what they make of the oracle's answers if it was sampled."""
    for text, count in Counter(filter(None, stages)).items():
        yield f"{count} parameter{'s' * (count > 1)} with stages: {text}."
    applied = optimizer.inexactness(applied=True) if any(stages) and optimizer.telemetry.every else {}
    most = worst(list(applied.values()))
    if most is not None:
        yield f"gap_applied {most.gap:.4f}, overshoot_applied {most.overshoot:.4f}: the worst after the stages."


def can_decompose(optimizer: LMOOptimizer) -> bool:
    """Whether there is momentum to decompose, none of it is on other ranks, and it takes a second or two."""
    if optimizer.joined is not None or any(group["before"] != NONE for group in optimizer.param_groups):
        return False  # or stages before the oracle give it something else
    work, buffers = 0.0, 0
    for _, p, group in optimizer.named():
        buffer = optimizer.state.get(p, {}).get("momentum_buffer")
        if group["algorithm"] == "lmo" and buffer is not None and isinstance(optimizer.ball(group), Spectral):
            if is_fake(buffer) or buffer.is_meta or not bool(buffer.isfinite().all()):
                return False
            buffers += bool(buffer.any())
            shapes = optimizer.view(group).shapes(p.shape)
            work += sum(prod(shape) * min(shape[-2:]) for shape in shapes)
    return buffers > 0 and 0 < work <= MOST_WORK
