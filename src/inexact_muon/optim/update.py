"""The arithmetic of one step of one parameter, in place.

Numbers are floats where the host knows them. On an accelerator, where looking at a gradient would wait for it, whether
it is finite stays a tensor of one element, and multiplies: a weight, decay or step of zero changes no bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from inexact_muon.optim.layout import gathered

Number = float | Tensor
"""A float where the host knows the value, else a tensor of one element."""


def cast(weight: Number, like: Tensor) -> Any:
    """A weight as `lerp` wants it."""
    return weight.to(like.dtype) if isinstance(weight, Tensor) else weight


def adamw_(
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    step: Number,
    betas: tuple[float, float],
    eps: float,
    on: Number = 1.0,
) -> Tensor:
    """The direction d of AdamW (arXiv 1711.05101, Algorithm 2), as torch.optim.AdamW computes it; moments in place.

    m <- b1 m + (1-b1) g,  v <- b2 v + (1-b2) g^2,  step counts from 1
    d = (m/(1-b1^step)) / (sqrt(v/(1-b2^step)) + eps),  W <- (1 - lr wd) W - lr d

    Args:
        on: 0 leaves the moments as they are.
    """
    first.lerp_(gradient, cast((1.0 - betas[0]) * on, first))
    second.lerp_(gradient.to(second.dtype).square(), cast((1.0 - betas[1]) * on, second))
    one, two = (1.0 - beta**step for beta in betas)
    return (first / one) / (second / two).sqrt_().add_(eps)


HOSTED = ("cpu",)
"""Devices on which the host may look at values."""


@dataclass
class Job:
    """A parameter to be moved: its group, state, gradient in the state's dtype, and whether that is finite.

    Attributes:
        seen: what the ball sees.
        weight: of the gradient in the new buffer.
    """

    group: dict[str, Any]
    p: Tensor
    state: dict[str, Any]
    gradient: Tensor
    finite: bool | Tensor
    seen: Tensor | None = None
    weight: Number = 1.0

    @property
    def mu(self) -> float:
        """Momentum, with the layer's own factor on alpha if it has one."""
        factor = self.state.get("alpha_factor", 1.0)
        given: float = self.group["momentum"]
        return given if factor == 1.0 else 1.0 - min(1.0, (1.0 - given) * factor)

    def times(self, value: Number) -> Number:
        """value, or zero if the gradient is not finite."""
        return value if isinstance(self.finite, bool) else self.finite.to(_precise(self.p)) * value

    def count(self) -> None:
        """One step made, or skipped."""
        if isinstance(self.finite, bool):
            self.state["step" if self.finite else "skipped"] += 1
        else:
            self.state["step"] += self.finite
            self.state["skipped"] += ~self.finite


def is_finite(gradient: Tensor) -> bool | Tensor:
    """Whether all entries are; a bool where the host may look."""
    if gradient.device.type not in HOSTED:
        return gathered(gradient.isfinite().all())
    # A sum of squares is one fast pass; only if that is not finite the entries may still be.
    size = float(gathered(torch.linalg.vector_norm(gradient)))
    return isfinite(size) or bool(gathered(gradient.isfinite().all()))


def make_job(p: Tensor, group: dict[str, Any], state: dict[str, Any], known: bool | None = None) -> Job:
    """The gradient as the buffers want it, zero where it is not finite and the host does not know.

    Args:
        known: whether it is finite, if the ranks have agreed on that.
    """
    assert p.grad is not None
    buffer = state["momentum_buffer" if group["algorithm"] == "lmo" else "exp_avg"]
    gradient = p.grad.to(buffer.dtype)  # a cast that overflows is not finite either
    gradient = -gradient if group["maximize"] else gradient
    finite = is_finite(gradient) if known is None else known
    if isinstance(finite, Tensor):
        gradient = torch.where(finite, gradient, 0.0)
    return Job(group, p, state, gradient, finite)


def momentum(job: Job) -> tuple[Tensor, Number]:
    """(what the ball sees, weight of the gradient in the new buffer); changes nothing.

    m = mu b + (1 - mu) g; with Nesterov mu m + (1 - mu) g = mu^2 b + (1 - mu^2) g.
    """
    group, steps, mu = job.group, job.state["step"], job.mu
    weight: Number = 1.0 - mu
    seen: Number = 1.0 - mu * mu if group["nesterov"] else weight
    if group["momentum_init"] == "first-gradient":
        if steps.device.type in HOSTED:
            weight, seen = (weight, seen) if int(steps) else (1.0, 1.0)
        else:
            later = (steps > 0).to(_precise(job.p))
            weight, seen = (1.0 - later * (1.0 - w) for w in (weight, seen))
    buffer = job.state["momentum_buffer"]
    return torch.lerp(buffer, job.gradient, cast(seen, buffer)), weight


def walk(job: Job, x: Tensor, z: Tensor, factor: Number) -> None:
    """x <- (1 - lr decay) x - lr factor z, in place; x is the parameter, or a rank's piece of it."""
    group = job.group
    lr = group["lr"]
    decay = 1.0 if group["constrained"] else group["weight_decay"]
    if decay:
        x.mul_(1.0 - job.times(lr * decay))
    step = job.times(lr * factor)
    if isinstance(step, Tensor):
        x.sub_(z * step)
    else:
        x.add_(z, alpha=-step)


def remember(job: Job, seen: Tensor, weight: Number) -> None:
    """b <- b + weight (g - b), and one step more."""
    buffer = job.state["momentum_buffer"]
    if job.finite is True and not job.group["nesterov"]:
        buffer.copy_(seen)
    else:
        buffer.lerp_(job.gradient, cast(job.times(weight), buffer))
    job.count()


def move_adamw(job: Job) -> Tensor:
    """Writes parameter and moments; returns the direction, for the size of the update."""
    group, p, state = job.group, job.p, job.state
    steps = state["step"]
    made: Number = int(steps) + 1 if steps.device.type in HOSTED else steps.to(_precise(p)) + 1.0
    on: Number = 1.0 if job.finite is True else job.times(1.0)
    betas = (group["momentum"], group["beta2"])
    direction = adamw_(job.gradient, state["exp_avg"], state["exp_avg_sq"], made, betas, group["eps"], on)
    if group["weight_decay"]:
        p.mul_(1.0 - job.times(group["lr"] * group["weight_decay"]))
    step = job.times(group["lr"])
    if isinstance(step, Tensor):
        p.sub_(direction * step)
    else:
        p.add_(direction, alpha=-step)
    job.count()
    return direction


def _precise(p: Tensor) -> torch.dtype:
    return torch.promote_types(p.dtype, torch.float32)
