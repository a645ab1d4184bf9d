"""Algorithm 1 of the paper on a batch of parameters: the only file with its equations.

    m <- mu m + (1 - mu) g                                     mu = 1 - alpha; the first m is g, or 0 if requested
    z  = direction of the ball for m, or for mu m + (1 - mu) g with Nesterov; d_hat = -radius z
    W <- (1 - lr decay) W - lr length z                       decay = 1 when constrained (Frank-Wolfe)

On the CPU a batch holds only parameters with a finite gradient. On an accelerator reading values would synchronise, so
each parameter has a flag on the device, and skipped parameters stay bitwise unchanged because lerp(x, x, w) = x and a
zero step adds nothing. There lr and momentum may be tensors, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from inexact_muon.lmo._base import inner, sides
from inexact_muon.optim.batches import Batch, Member, in_slot
from inexact_muon.optim.finite import Number, map_unique
from inexact_muon.optim.scales import SCALES

WITH_TENSOR: dict[Any, Callable[..., Tensor]] = {
    torch._foreach_mul_: lambda x, number: x.mul_(number),
    torch._foreach_lerp_: lambda x, y, number: x.lerp_(y, number.to(x.dtype)),
    torch._foreach_add_: lambda x, y, number: x.add_(y * number),
}
"""Foreach operation -> the same on one tensor with a tensor as number, which foreach operations do not accept."""


def lmo_inputs(batch: Batch) -> tuple[list[Tensor], list[Tensor]]:
    """(LMO input of each member, the same as the list of tensors that is passed to the ball); writes no state.

    m = mu b + (1 - mu) g = lerp(b, g, 1 - mu); with Nesterov mu m + (1 - mu) g = lerp(b, g, 1 - mu^2).
    """
    inputs, stacks = batch.allocate()
    buffers = [member.state["momentum_buffer"] for member in batch.members]
    first = batch.members[0].group
    gradients = (member.p.grad.to(b.dtype) for member, b in zip(batch.members, buffers, strict=True))  # type: ignore[union-attr]
    if first["maximize"]:
        gradients = (-g for g in gradients)
    power = 2 if first["nesterov"] else 1
    weights = _weights(batch, lambda mu: 1.0 - mu**power)
    if batch.flags is None:
        for b, g, w, out in zip(buffers, gradients, weights, inputs, strict=True):
            torch.lerp(b, g, w, out=out)
    else:
        for flag, g, b, out in zip(batch.flags.vector.unbind(), gradients, buffers, inputs, strict=True):
            torch.where(flag, g, b, out=out)
        _foreach(torch._foreach_lerp_, inputs, buffers, map_unique(lambda weight: 1.0 - weight, weights))
    return inputs, stacks if batch.stacks and None not in batch.blocks else batch.fill(stacks, inputs)


def step_lengths(batch: Batch, ms: Sequence[Tensor], zs: list[Tensor]) -> list[float]:
    """The factor of lr z for each member. Factors that differ among its matrices are applied to `zs` in place.

    On an accelerator z is scaled while it is cast to the dtype of W; the remaining factor is -decay, or 1 without
    decay.
    """
    if batch.members[0].length.needs_dual:  # length * z may overflow in half precision
        zs[:] = [z.to(torch.promote_types(z.dtype, torch.float32)) for z in zs]
    factors = batch.step_factors or [step_factors(batch, k, ms, zs) for k in range(len(batch.members))]
    if not batch.members[0].length.needs_dual:
        batch.step_factors = factors
    if batch.flags is not None:
        left = [-member.decay or 1.0 for member in batch.members]
        batch.scale(zs, [[factor / rest for factor in some] for some, rest in zip(factors, left, strict=True)])
        return left
    lengths = []
    for slots, some in zip(batch.slots, factors, strict=True):
        first = some[0] if some else 1.0
        if isinstance(first, Tensor) or any(factor != first for factor in some):
            for slot, factor in zip(slots, some, strict=True):
                in_slot(zs, slot).mul_(factor)
            first = 1.0
        lengths.append(first)
    return lengths


def step_factors(batch: Batch, k: int, ms: Sequence[Tensor], zs: Sequence[Tensor]) -> list[Number]:
    """`step_factor` of each matrix of member k."""
    member = batch.members[k]
    if not member.length.needs_dual:
        return [step_factor(member, shape, None) for shape in batch.shapes(k)]
    pairs = zip(batch.slots[k], batch.shapes(k), strict=True)
    return [step_factor(member, shape, inner(in_slot(ms, slot), in_slot(zs, slot))) for slot, shape in pairs]


def step_factor(member: Member, shape: Sequence[int], dual: Tensor | None) -> Number:
    """radius(ball) scale(shape) length(radius, dual norm) of one matrix; `dual` is its <m, z>."""
    group, radius = member.group, member.ball.radius(shape)
    length: Number = group["radius"] if dual is None else member.length(group["radius"], dual * radius)
    return radius * SCALES[group["scale"]](*sides(shape)) * length


def update_weights_(batch: Batch, zs: Sequence[Tensor], lengths: Sequence[float]) -> None:
    """W <- (1 - lr decay) W - lr length z; if length = -decay, W <- lerp(W, z, lr decay)."""
    members = batch.members
    ps = [member.p for member in members]
    rates, decays = [member.group["lr"] for member in members], [member.decay for member in members]
    if batch.flags is None:
        some = [k for k, decay in enumerate(decays) if decay]
        kept = map_unique(lambda lr, decay: 1.0 - lr * decay, [rates[k] for k in some], [decays[k] for k in some])
        _foreach(torch._foreach_mul_, [ps[k] for k in some], None, kept)
        _foreach(torch._foreach_add_, ps, zs, map_unique(lambda lr, length: -lr * length, rates, lengths))
        return
    steps = map_unique(lambda lr, decay: lr * decay if decay else lr, rates, decays)
    for member, z, t in zip(members, zs, batch.flags.times(steps, ps[0].dtype), strict=True):
        if member.decay:
            member.p.lerp_(z.to(member.p.dtype), t)
        else:
            member.p.addcmul_(z, t, value=-1.0)


def update_buffers_(batch: Batch, inputs: Sequence[Tensor]) -> None:
    """b <- m, and increment the counter of steps made or skipped.

    With Nesterov m = lerp(b, input, 1 / (1 + mu)), since input - b = (1 - mu^2) (g - b).
    """
    buffers = [member.state["momentum_buffer"] for member in batch.members]
    if batch.members[0].group["nesterov"]:
        _foreach(torch._foreach_lerp_, buffers, inputs, _weights(batch, lambda mu: 1.0 / (1.0 + mu)))
    else:
        torch._foreach_copy_(buffers, list(inputs))
    states = [member.state for member in batch.members]
    if batch.flags is None:
        torch._foreach_add_([state["step"] for state in states], 1.0)
    else:
        batch.flags.count_(states)


def _weights(batch: Batch, function: Callable[[Number], Number]) -> list[Number]:
    """function(mu) of each member, or 1 at the first step if the buffer starts from the first gradient."""
    weights = map_unique(function, [member.group["momentum"] for member in batch.members])
    if batch.members[0].group["momentum_init"] != "first-gradient":
        return weights
    steps = [member.state["step"] for member in batch.members]
    if batch.flags is None:
        return [weight if float(step) else 1.0 for weight, step in zip(weights, steps, strict=True)]
    precise = torch.promote_types(batch.members[0].state["momentum_buffer"].dtype, torch.float32)
    later = (torch.stack(steps) > 0).to(precise)
    return [made.unbind()[k] for k, made in enumerate(map_unique(lambda weight: 1.0 - later * (1.0 - weight), weights))]


def _foreach(operation: Any, xs: Sequence[Tensor], ys: Sequence[Tensor] | None, numbers: Sequence[Number]) -> None:
    """operation(xs, ys, number) in place, with one foreach call per distinct number."""
    same: dict[Any, list[int]] = {}
    for k, number in enumerate(numbers):
        same.setdefault(number if isinstance(number, float | int) else id(number), []).append(k)
    for some in same.values():
        lists = [[tensors[k] for k in some] for tensors in (xs, ys) if tensors is not None]
        number = numbers[some[0]]
        if isinstance(number, Tensor):
            for pair in zip(*lists, strict=True):
                WITH_TENSOR[operation](*pair, number)
        elif operation is torch._foreach_add_:
            operation(*lists, alpha=number)
        else:
            operation(*lists, number)
