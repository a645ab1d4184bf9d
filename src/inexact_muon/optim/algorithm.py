"""Algorithm 1 of the paper, on the parameters of a batch: the only place with its equations.

    m <- mu m + (1 - mu) g                                     mu = 1 - alpha; the first m is g, or 0 if asked
    z  = what the ball answers to m, or to mu m + (1 - mu) g with Nesterov; d_hat = -radius z
    W <- (1 - lr decay) W - lr length z                       decay = 1 when constrained (Frank-Wolfe)

Where the host may look at values, only parameters with a finite gradient are in a batch. On an accelerator looking
would wait for it: a flag for each parameter says whether its gradient is finite, and what is skipped keeps its bits,
because lerp(x, x, w) = x and a step of zero changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from inexact_muon.lmo._base import inner, sides
from inexact_muon.optim.batches import Batch, Member, part
from inexact_muon.optim.scales import SCALES

Number = float | Tensor
"""A float where the host knows the value, else a tensor of one element."""


def momentum(batch: Batch) -> tuple[list[Tensor], list[Tensor]]:
    """(what the ball sees of each member, the same as the list that it is asked about); changes nothing.

    m = mu b + (1 - mu) g = lerp(b, g, 1 - mu); with Nesterov mu m + (1 - mu) g = lerp(b, g, 1 - mu^2).
    """
    seen, stacks = batch.room()
    buffers = [member.state["momentum_buffer"] for member in batch.members]
    weights = [_weight(member) for member in batch.members]
    gradients = [_gradient(member) for member in batch.members]
    if batch.finite is None:
        for b, g, w, out in zip(buffers, gradients, weights, seen, strict=True):
            torch.lerp(b, g, w, out=out)
    else:
        for flag, g, b, out in zip(batch.finite.unbind(), gradients, buffers, seen, strict=True):
            torch.where(flag, g, b, out=out)
        _each(torch._foreach_lerp_, seen, buffers, [1.0 - w for w in weights])
    return seen, batch.fill(stacks, seen)


def lengths(batch: Batch, given: Sequence[Tensor], found: list[Tensor]) -> list[float]:
    """What lr z is multiplied with, for each member; 1 where the matrices of `found` were multiplied by it here.

    radius(ball) scale(shape) length(radius, dual), where dual = radius(ball) <m, z> is about the dual norm of m.
    """
    made = []
    if batch.members[0].length.needs_dual:  # half precision may overflow where the length multiplies z
        found[:] = [z.to(torch.promote_types(z.dtype, torch.float32)) for z in found]
    for k, member in enumerate(batch.members):
        factors: list[Number] = []
        for slot, shape in zip(batch.slots[k], batch.shapes(k), strict=True):
            m, z = part(given, slot), part(found, slot)
            dual = inner(m, z) if member.length.needs_dual else None
            factors.append(reach(member, shape, dual))
        first = factors[0] if factors else 1.0
        if isinstance(first, Tensor) or any(factor != first for factor in factors):
            for slot, factor in zip(batch.slots[k], factors, strict=True):
                part(found, slot).mul_(factor)
            first = 1.0
        made.append(first)
    return made


def reach(member: Member, shape: Sequence[int], dual: Tensor | None) -> Number:
    """radius(ball) scale(shape) length(radius, dual norm) for one matrix of a member whose <m, z> is `dual`."""
    group, radius = member.group, member.ball.radius(shape)
    length: Number = group["radius"] if dual is None else member.length(group["radius"], dual * radius)
    return radius * SCALES[group["scale"]](*sides(shape)) * length


def move_(batch: Batch, zs: Sequence[Tensor], lengths: Sequence[float]) -> None:
    """W <- (1 - lr decay) W - lr length z."""
    members = batch.members
    ps = [member.p for member in members]
    decays: list[Number] = [member.group["lr"] * member.decay for member in members]
    steps: list[Number] = [m.group["lr"] * length for m, length in zip(members, lengths, strict=True)]
    if batch.finite is None:
        some = [k for k, member in enumerate(members) if member.decay]
        _each(torch._foreach_mul_, [ps[k] for k in some], None, [1.0 - decays[k] for k in some])
        _each(torch._foreach_add_, ps, zs, [-step for step in steps])
        return
    alone = all(member.decay for member in members) and all(p.dtype == z.dtype for p, z in zip(ps, zs, strict=True))
    if alone:
        # W + t (E - W) with t = lr decay and E = -(length / decay) z; t = 0 where the gradient is not finite.
        torch._foreach_mul_(list(zs), [-length / m.decay for m, length in zip(members, lengths, strict=True)])
        for p, e, t in zip(ps, zs, _masked(batch.finite, decays, ps[0].dtype), strict=True):
            p.lerp_(e, t)
        return
    kept = _masked(batch.finite, decays, ps[0].dtype)
    for p, z, keep, t, member in zip(ps, zs, kept, _masked(batch.finite, steps, ps[0].dtype), members, strict=True):
        if member.decay:
            p.mul_(1.0 - keep)
        p.addcmul_(z, t, value=-1.0)


def _masked(finite: Tensor, values: Sequence[Number], dtype: torch.dtype) -> list[Tensor]:
    """The values as tensors of one element, 0 where the gradient is not finite; one operation for equal ones."""
    on = finite.to(torch.promote_types(dtype, torch.float32))
    products: dict[Any, tuple[Tensor, ...]] = {}
    found = []
    for k, value in enumerate(values):
        key = id(value) if isinstance(value, Tensor) else value
        if key not in products:
            products[key] = (on * value).to(dtype).unbind()
        found.append(products[key][k])
    return found


def remember_(batch: Batch, seen: Sequence[Tensor]) -> None:
    """b <- m, and one step more: made, or skipped.

    With Nesterov m = lerp(b, seen, 1 / (1 + mu)), since seen - b = (1 - mu^2) (g - b).
    """
    states = [member.state for member in batch.members]
    buffers = [state["momentum_buffer"] for state in states]
    if batch.members[0].group["nesterov"]:
        _each(torch._foreach_lerp_, buffers, seen, [_share(member) for member in batch.members])
    else:
        torch._foreach_copy_(buffers, list(seen))
    steps, skipped = ([state[key] for state in states] for key in ("step", "skipped"))
    if batch.finite is None:
        torch._foreach_add_(steps, 1.0)
        return
    made = batch.finite.to(torch.float32)
    torch._foreach_add_(steps, list(made.unbind()))
    torch._foreach_add_(skipped, list((1.0 - made).unbind()))


def _weight(member: Member) -> Number:
    """Of the gradient in what the ball sees."""
    weight = 1.0 - member.mu**2 if member.group["nesterov"] else 1.0 - member.mu
    return _from_first(member, weight)


def _share(member: Member) -> Number:
    """Of what the ball saw in the new buffer, with Nesterov."""
    return _from_first(member, 1.0 / (1.0 + member.mu))


def _from_first(member: Member, weight: float) -> Number:
    """The weight, but 1 at the first step if that starts from its gradient."""
    if member.group["momentum_init"] != "first-gradient":
        return weight
    step = member.state["step"]
    if hosted(step):
        return weight if float(step) else 1.0
    later = (step > 0).to(member.state["momentum_buffer"].dtype)
    return 1.0 - later * (1.0 - weight)


def _gradient(member: Member) -> Tensor:
    gradient = member.p.grad
    assert gradient is not None
    gradient = gradient.to(member.state["momentum_buffer"].dtype)
    return -gradient if member.group["maximize"] else gradient


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


HOSTED = ("cpu",)
"""Devices on which the host may look at values."""


def hosted(x: Tensor) -> bool:
    """Whether looking at a value of x does not wait for anything."""
    return x.device.type in HOSTED
