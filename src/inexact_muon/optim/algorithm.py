"""Algorithm 1 of the paper, on the parameters of a batch: the only place with its equations.

    m <- mu m + (1 - mu) g                                     mu = 1 - alpha; the first m is g, or 0 if asked
    z  = what the ball answers to m, or to mu m + (1 - mu) g with Nesterov; d_hat = -radius z
    W <- (1 - lr decay) W - lr length z                       decay = 1 when constrained (Frank-Wolfe)

Where the host may look at values, only parameters with a finite gradient are in a batch. On an accelerator looking
would wait for it: a flag for each parameter says whether its gradient is finite, and what is skipped keeps its bits,
because lerp(x, x, w) = x and a step of zero changes nothing. lr and momentum may be tensors there, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from inexact_muon.lmo._base import inner, sides
from inexact_muon.optim.batches import Batch, Member, part
from inexact_muon.optim.finite import Number, once
from inexact_muon.optim.scales import SCALES


def momentum(batch: Batch) -> tuple[list[Tensor], list[Tensor]]:
    """(what the ball sees of each member, the same as the list that it is asked about); changes nothing.

    m = mu b + (1 - mu) g = lerp(b, g, 1 - mu); with Nesterov mu m + (1 - mu) g = lerp(b, g, 1 - mu^2).
    """
    seen, stacks = batch.room()
    buffers = [member.state["momentum_buffer"] for member in batch.members]
    gradients = (member.gradient for member in batch.members)
    power = 2 if batch.members[0].group["nesterov"] else 1
    weights = _weights(batch, lambda mu: 1.0 - mu**power)
    if batch.flags is None:
        for b, g, w, out in zip(buffers, gradients, weights, seen, strict=True):
            torch.lerp(b, g, w, out=out)
    else:
        for flag, g, b, out in zip(batch.flags.finite, gradients, buffers, seen, strict=True):
            torch.where(flag, g, b, out=out)
        _each(torch._foreach_lerp_, seen, buffers, once(lambda weight: 1.0 - weight, weights))
    return seen, stacks if batch.stacks and None not in batch.blocks else batch.fill(stacks, seen)


def lengths(batch: Batch, given: Sequence[Tensor], found: list[Tensor]) -> list[float]:
    """What lr z is multiplied with, for each member; `found` is multiplied here by what differs among its matrices.

    On an accelerator z is multiplied while it is cast to the dtype of W: what is left is -decay, or 1 without decay.
    """
    if batch.members[0].length.needs_dual:  # half precision may overflow where the length multiplies z
        found[:] = [z.to(torch.promote_types(z.dtype, torch.float32)) for z in found]
    factors = batch.reaches or [reaches(batch, k, given, found) for k in range(len(batch.members))]
    if not batch.members[0].length.needs_dual:
        batch.reaches = factors
    if batch.flags is not None:
        left = [-member.decay or 1.0 for member in batch.members]
        batch.scale(found, [[factor / rest for factor in some] for some, rest in zip(factors, left, strict=True)])
        return left
    made = []
    for slots, some in zip(batch.slots, factors, strict=True):
        first = some[0] if some else 1.0
        if isinstance(first, Tensor) or any(factor != first for factor in some):
            for slot, factor in zip(slots, some, strict=True):
                part(found, slot).mul_(factor)
            first = 1.0
        made.append(first)
    return made


def reaches(batch: Batch, k: int, given: Sequence[Tensor], found: Sequence[Tensor]) -> list[Number]:
    """`reach` of each matrix of member k."""
    member = batch.members[k]
    if not member.length.needs_dual:
        return [reach(member, shape, None) for shape in batch.shapes(k)]
    pairs = zip(batch.slots[k], batch.shapes(k), strict=True)
    return [reach(member, shape, inner(part(given, slot), part(found, slot))) for slot, shape in pairs]


def reach(member: Member, shape: Sequence[int], dual: Tensor | None) -> Number:
    """radius(ball) scale(shape) length(radius, dual norm) for one matrix of a member, whose <m, z> is `dual`."""
    group, radius = member.group, member.ball.radius(shape)
    length: Number = group["radius"] if dual is None else member.length(group["radius"], dual * radius)
    return radius * SCALES[group["scale"]](*sides(shape)) * length


def move_(batch: Batch, zs: Sequence[Tensor], lengths: Sequence[float]) -> None:
    """W <- (1 - lr decay) W - lr length z; where length = -decay, that is W <- lerp(W, z, lr decay)."""
    members = batch.members
    ps = [member.p for member in members]
    rates, decays = [member.group["lr"] for member in members], [member.decay for member in members]
    if batch.flags is None:
        some = [k for k, decay in enumerate(decays) if decay]
        kept = once(lambda lr, decay: 1.0 - lr * decay, [rates[k] for k in some], [decays[k] for k in some])
        _each(torch._foreach_mul_, [ps[k] for k in some], None, kept)
        _each(torch._foreach_add_, ps, zs, once(lambda lr, length: -lr * length, rates, lengths))
        return
    steps = once(lambda lr, decay: lr * decay if decay else lr, rates, decays)
    for member, z, t in zip(members, zs, batch.flags.times(steps, ps[0].dtype), strict=True):
        if member.decay:
            member.p.lerp_(z.to(member.p.dtype), t)
        else:
            member.p.addcmul_(z, t, value=-1.0)


def remember_(batch: Batch, seen: Sequence[Tensor]) -> None:
    """b <- m, and one step more: made, or skipped.

    With Nesterov m = lerp(b, seen, 1 / (1 + mu)), since seen - b = (1 - mu^2) (g - b).
    """
    buffers = [member.state["momentum_buffer"] for member in batch.members]
    if batch.members[0].group["nesterov"]:
        _each(torch._foreach_lerp_, buffers, seen, _weights(batch, lambda mu: 1.0 / (1.0 + mu)))
    else:
        torch._foreach_copy_(buffers, list(seen))
    states = [member.state for member in batch.members]
    if batch.flags is None:
        torch._foreach_add_([state["step"] for state in states], 1.0)
    else:
        batch.flags.count_(states)


def _weights(batch: Batch, function: Callable[[Number], Number]) -> list[Number]:
    """function(mu) of each member, but 1 at its first step if that starts from its gradient."""
    weights = once(function, [member.group["momentum"] for member in batch.members])
    if batch.members[0].group["momentum_init"] != "first-gradient":
        return weights
    steps = [member.state["step"] for member in batch.members]
    if batch.flags is None:
        return [weight if float(step) else 1.0 for weight, step in zip(weights, steps, strict=True)]
    precise = torch.promote_types(batch.members[0].state["momentum_buffer"].dtype, torch.float32)
    later = (torch.stack(steps) > 0).to(precise)
    return [made.unbind()[k] for k, made in enumerate(once(lambda weight: 1.0 - later * (1.0 - weight), weights))]


def _each(operation: Any, xs: Sequence[Tensor], ys: Sequence[Tensor] | None, numbers: Sequence[Number]) -> None:
    """operation(xs, ys, number) in place; one call for all that share a number."""
    same: dict[Any, list[int]] = {}
    for k, number in enumerate(numbers):
        same.setdefault(number if isinstance(number, float | int) else id(number), []).append(k)
    for some in same.values():
        chosen, number = [xs[k] for k in some], numbers[some[0]]
        if isinstance(number, Tensor):
            _slowly(operation, chosen, [ys[k] for k in some] if ys else None, number)
        elif operation is torch._foreach_add_ and ys is not None:
            operation(chosen, [ys[k] for k in some], alpha=number)
        elif ys is None:
            operation(chosen, number)
        else:
            operation(chosen, [ys[k] for k in some], number)


def _slowly(operation: Any, xs: Sequence[Tensor], ys: Sequence[Tensor] | None, number: Tensor) -> None:
    """The same with a number that is a tensor, which foreach operations do not take."""
    for k, x in enumerate(xs):
        if operation is torch._foreach_mul_:
            x.mul_(number)
        elif operation is torch._foreach_lerp_:
            assert ys is not None
            x.lerp_(ys[k], number.to(x.dtype))
        else:
            assert ys is not None
            x.add_(ys[k] * number)
