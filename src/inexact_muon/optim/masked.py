"""The equations of `algorithm` on an accelerator, where a flag on the device says which gradients are finite.

What is skipped stays bitwise unchanged: its gradient is replaced by its momentum, lerp(x, x, w) = x, and its step has
length zero. lr and momentum may be tensors on the device: a scheduler then moves them without a transfer.

Directions come here as z length / -decay (z length without decay): then W <- lerp(W, z, lr decay) is one operation.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from inexact_muon.optim.batches import Batch, Part
from inexact_muon.optim.decay import per_lr
from inexact_muon.optim.finite import Number
from inexact_muon.optim.group import Group
from inexact_muon.optim.rows import Packed


def shared_factor(group: Group) -> float:
    """What is left of the factor of z once it is divided by it: -decay, or 1 without decay."""
    return -per_lr(group) or 1.0


def lmo_inputs(batch: Batch, inputs: Sequence[Tensor]) -> None:
    """lerp(b, g, 1 - mu), or 1 - mu^2 with Nesterov."""
    assert batch.flags is not None
    vector = batch.flags.vector
    for part in batch.parts:
        group, small = part.group, part.small
        gradients = [m.gradient for m in part.members]
        weight: Number = 1.0 - (1.0 - group["momentum"] ** (2 if group["nesterov"] else 1))
        if group["momentum_init"] != "zero":
            weight = _after_start(part, weight, 0.0)
        if part.together and isinstance(inputs, Packed):
            rows = part.rows
            new, old = rows.joined(gradients), rows.joined(part.buffers)
            new = torch.where(rows.spread(vector), -new if group["maximize"] else new, old).to(old.dtype)
            if isinstance(weight, Tensor):
                weight = (rows.spread(weight) if weight.ndim else weight).to(old.dtype)
            out = inputs.parts[0].view(new.shape) if len(inputs.parts) == 1 else None
            x = torch.lerp(new, old, weight, out=out)
            if out is None:
                sources = x.view(-1).split_with_sizes([part.numel() for part in inputs.parts])
                views = [x.view(part.shape) for x, part in zip(sources, inputs.parts, strict=True)]
                torch._foreach_copy_(list(inputs.parts), views)
            continue
        outs = inputs if part.whole else [inputs[k] for k in part.index]
        if len(small) < len(outs):
            flags, joined = vector.unbind(), set(small)
            for j, (k, b, out) in enumerate(zip(part.index, part.buffers, outs, strict=True)):
                if j not in joined:
                    g = gradients[j].to(b.dtype)  # type: ignore[union-attr]
                    torch.where(flags[k], -g if group["maximize"] else g, b, out=out)
        if small:
            rows = part.rows
            new, old = rows.joined([gradients[j] for j in small]), rows.joined([part.buffers[j] for j in small])
            new = torch.where(rows.spread(vector), -new if group["maximize"] else new, old)
            rows.copy_to([outs[j] for j in small], new)
        _lerp_(outs, part.buffers, weight)


def update_weights_(batch: Batch, zs: Sequence[Tensor], _lengths: Sequence[float]) -> None:
    """W <- lerp(W, z, lr decay), or W - lr z without decay."""
    assert batch.flags is not None
    for part in batch.parts:
        lr, group = part.group["lr"], part.group
        decay = 1.0 if group["constrained"] else float(group["weight_decay"]) / group["decay_lr"]
        rate = lr * decay if decay else lr
        on = batch.flags.on.to(torch.promote_types(part.pieces[0].dtype, torch.float32))
        rates, small = (on * rate).to(part.pieces[0].dtype), part.small
        if len(small) < len(part.pieces):
            scalars, joined = rates.unbind(), set(small)
            for j, (k, p) in enumerate(zip(part.index, part.pieces, strict=True)):
                if j in joined:
                    continue
                if decay:
                    p.lerp_(zs[k].to(p.dtype), scalars[k])
                else:
                    p.addcmul_(zs[k], scalars[k], value=-1.0)
        if small:
            rows, ps = part.rows, [part.pieces[j] for j in small]
            w, t = rows.joined(ps), rows.spread(rates)
            if part.together and isinstance(zs, Packed):
                parts = [x.view(-1) for x in zs.parts]
                z = (parts[0] if len(parts) == 1 else torch.cat(parts)).view(w.shape)
            else:
                z = rows.joined([zs[part.index[j]] for j in small])
            rows.copy_to(ps, w.lerp_(z.to(w.dtype), t) if decay else w.addcmul_(z, t, value=-1.0))


def update_buffers_(batch: Batch, inputs: Sequence[Tensor]) -> None:
    """b <- m = lerp(b, input, 1 / (1 + mu)) with Nesterov, else the input."""
    for part in batch.parts:
        group, sources = part.group, inputs if part.whole else [inputs[k] for k in part.index]
        if group["nesterov"]:
            weight = 1.0 / (1.0 + group["momentum"])
            weights = weight if group["momentum_init"] == "zero" else _after_start(part, weight, 1.0)
            _lerp_(part.buffers, sources, weights)
        else:
            torch._foreach_copy_(part.buffers, list(sources))


def _after_start(part: Part, weight: Number, start: float) -> Tensor:
    """A weight for each member: `start` where the buffer starts from the first gradient."""
    precise = torch.promote_types(part.buffers[0].dtype, torch.float32)
    later = (torch.stack(part.steps) > 0).to(precise)
    return start + later * (weight - start)


def _lerp_(xs: Sequence[Tensor], ys: Sequence[Tensor], weight: Number) -> None:
    """x <- x + weight (y - x), with one weight for all tensors or a vector of one for each."""
    if isinstance(weight, float):
        torch._foreach_lerp_(list(xs), list(ys), weight)
        return
    for x, y, w in zip(xs, ys, weight.unbind() if weight.ndim else [weight] * len(xs), strict=True):
        x.lerp_(y, w.to(x.dtype))
