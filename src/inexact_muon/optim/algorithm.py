"""Algorithm 1 of the paper on a batch of parameters or pieces of them: the only file with its equations.

    m <- mu m + (1 - mu) g                                     mu = 1 - alpha; the first m is g, or 0 if requested
    z  = direction of the ball for m, or for mu m + (1 - mu) g with Nesterov; d_hat = -radius z
    W <- (1 - lr decay) W - lr length z                       decay = 1 when constrained (Frank-Wolfe); see `decay`

On the CPU a batch holds only parameters with a finite gradient, and numbers are floats. On an accelerator reading
values would synchronise: there `masked` has the same functions with a flag for each parameter.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from inexact_muon.lmo._base import inner, sides
from inexact_muon.optim.batches import Batch, Member
from inexact_muon.optim.finite import Number
from inexact_muon.optim.lengths import SCALES
from inexact_muon.optim.stacks import in_slot


def lmo_inputs(batch: Batch, inputs: Sequence[Tensor]) -> None:
    """Write the LMO input of each member into `inputs`; writes no state.

    m = mu b + (1 - mu) g; with Nesterov mu m + (1 - mu) g, which is the same with mu^2 instead of mu.
    """
    for part in batch.parts:
        group = part.group
        later = 1.0 - float(group["momentum"]) ** (2 if group["nesterov"] else 1)
        sign, from_gradient = -1.0 if group["maximize"] else 1.0, group["momentum_init"] == "first-gradient"
        for k, b in zip(part.index, part.buffers, strict=True):
            weight = 1.0 if from_gradient and not float(batch.members[k].state["step"]) else later
            # Not lerp: the difference of two large finite numbers may overflow.
            torch.mul(b, 1.0 - weight, out=inputs[k])
            inputs[k].add_(batch.members[k].gradient.to(b.dtype), alpha=sign * weight)  # type: ignore[union-attr]


def update_weights_(batch: Batch, zs: Sequence[Tensor], lengths: Sequence[float]) -> None:
    """W <- (1 - lr decay) W - lr length z."""
    for part in batch.parts:
        lr = float(part.group["lr"])
        decay = 1.0 if part.group["constrained"] else float(part.group["weight_decay"]) / part.group["decay_lr"]
        for k, p in zip(part.index, part.pieces, strict=True):
            if decay:
                p.mul_(1.0 - lr * decay)
            p.add_(zs[k], alpha=-lr * lengths[k])


def update_buffers_(batch: Batch, inputs: Sequence[Tensor]) -> None:
    """b <- m.

    With Nesterov m = b + (input - b) / (1 + mu), since input - b = (1 - mu^2) (g - b).
    """
    for part in batch.parts:
        group = part.group
        later = 1.0 / (1.0 + float(group["momentum"])) if group["nesterov"] else 1.0
        from_gradient = group["momentum_init"] == "first-gradient"
        for k, b in zip(part.index, part.buffers, strict=True):
            if later == 1.0 or (from_gradient and not float(batch.members[k].state["step"])):
                b.copy_(inputs[k])
            else:
                b.mul_(1.0 - later).add_(inputs[k], alpha=later)


def step_lengths(batch: Batch, ms: Sequence[Tensor], zs: list[Tensor], scaled: bool) -> list[float]:
    """The factor of lr z for each member. Factors that differ among its matrices are applied to `zs` in place.

    Args:
        scaled: scale z while it is cast to the dtype of W, as `masked.update_weights_` expects it.
    """
    stacks, members = batch.stacks, batch.members
    assert stacks is not None
    if members[0].length.needs_dual:  # length * z may overflow in half precision
        zs[:] = [z.to(torch.promote_types(z.dtype, torch.float32)) for z in zs]
    factors = batch.step_factors or [step_factors(batch, k, ms, zs) for k in range(len(members))]
    if not members[0].length.needs_dual:
        batch.step_factors = factors
    if scaled:
        shared = [1.0] * len(members)
        for part in batch.parts:
            group = part.group
            rest = -1.0 if group["constrained"] else -float(group["weight_decay"]) / group["decay_lr"] or 1.0
            for k in part.index:
                shared[k] = rest
        numbers: list[list[Number]] = []
        for row, rest in zip(factors, shared, strict=True):
            numbers.append([*row])
            for i, number in enumerate(row):
                numbers[-1][i] = number / rest
        stacks.scale(zs, numbers, members[0].piece.dtype)
        return shared
    lengths = []
    for slots, row in zip(stacks.slots, factors, strict=True):
        first = row[0] if row else 1.0
        if isinstance(first, Tensor) or row.count(first) != len(row):
            for slot, factor in zip(slots, row, strict=True):
                in_slot(zs, slot).mul_(factor)
            first = 1.0
        lengths.append(first)
    return lengths


def step_factors(batch: Batch, k: int, ms: Sequence[Tensor], zs: Sequence[Tensor]) -> list[Number]:
    """`step_factor` of each matrix of member k."""
    member, stacks = batch.members[k], batch.stacks
    assert stacks is not None
    if not member.length.needs_dual:
        return [step_factor(member, shape, None) for shape in stacks.contents(k)]
    pairs = zip(stacks.slots[k], stacks.contents(k), strict=True)
    return [step_factor(member, shape, inner(in_slot(ms, slot), in_slot(zs, slot))) for slot, shape in pairs]


def step_factor(member: Member, shape: Sequence[int], dual: Tensor | None) -> Number:
    """radius(ball) scale(shape) length(radius, dual norm) of one matrix; `dual` is its <m, z>.

    With stages it is 1 unless it needs the dual: they work on the answer, and `whole_factor` follows them.
    """
    if dual is None:
        return 1.0 if member.staged else _fixed_factor(member, shape)
    radius = member.ball.radius(shape)
    length = member.length(member.group["radius"], dual * radius)
    return radius * SCALES[member.group["scale"]](*sides(shape)) * length


def whole_factor(member: Member, shape: Sequence[int]) -> float:
    """What `step_factor` leaves to stages."""
    return 1.0 if member.length.needs_dual else float(_fixed_factor(member, shape))


def _fixed_factor(member: Member, shape: Sequence[int]) -> Number:
    group = member.group
    factor: Number = member.ball.radius(shape) * SCALES[group["scale"]](*sides(shape)) * group["radius"]
    return factor
