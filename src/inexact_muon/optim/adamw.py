"""AdamW for the parameters that no LMO should get (arXiv 1711.05101, Algorithm 2), as torch.optim.AdamW computes it.

    m <- b1 m + (1-b1) g,  v <- b2 v + (1-b2) g^2,  t counts from 1
    W <- (1 - lr decay) W - lr (m/(1-b1^t)) / (sqrt(v/(1-b2^t)) + eps)

torch's fused kernel does it where all tensors have one dtype. On an accelerator it can skip a whole call only, so that
large tensors get a call each, and the many small ones are put end to end and masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

Entry = tuple[Tensor, dict[str, Any], dict[str, Any]]
"""(parameter, its state, its group)"""

LARGE = 2**18
"""Entries from which on a tensor gets a call of its own."""


def adamw_(entries: Sequence[Entry], finite: Tensor | None) -> None:
    """One step of parameters of one device and dtype whose groups have the same options; counts it in their states.

    Args:
        finite: whose gradients are finite, a flag for each; None if all are.
    """
    states = [state for _, state, _ in entries]
    steps = [state["step"] for state in states]
    if finite is None:
        torch._foreach_add_(steps, 1.0)
        if _fused_takes(entries):
            _fused(entries, None)
        else:
            for p, state, group in entries:
                _one(p, state, group)
        return
    on = finite.to(torch.float32)
    torch._foreach_add_(steps, list(on.unbind()))
    torch._foreach_add_([state["skipped"] for state in states], list((1.0 - on).unbind()))
    large = [k for k, (p, _, _) in enumerate(entries) if p.numel() >= LARGE and _fused_takes([entries[k]])]
    if large:
        off = (1.0 - on).unbind()
        for k in large:
            _fused([entries[k]], off[k])
    small = [k for k in range(len(entries)) if k not in large]
    if small:
        each = finite.unbind()
        _end_to_end([entries[k] for k in small], torch.stack([each[k] for k in small]) if large else finite)


def by_options(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Entries that one call of `adamw_` can take, in the order of the groups."""
    keys = ("lr", "momentum", "beta2", "eps", "weight_decay", "maximize")

    def key(entry: Entry) -> tuple[Any, ...]:
        p, state, group = entry
        options = tuple(id(group[k]) if isinstance(group[k], Tensor) else group[k] for k in keys)
        return (str(p.device), p.dtype, state["exp_avg"].dtype, *options)

    return [list(some) for _, some in groupby(entries, key=key)]


def _fused_takes(entries: Sequence[Entry]) -> bool:
    return all(
        p.grad is not None
        and p.device.type in ("cpu", "cuda")
        and p.dtype == p.grad.dtype == state["exp_avg"].dtype == state["exp_avg_sq"].dtype
        for p, state, _ in entries
    )


def _fused(entries: Sequence[Entry], skip: Tensor | None) -> None:
    """torch's kernel; `skip` is 1 where nothing shall change."""
    ps = [p for p, _, _ in entries]
    gradients = [p.grad for p in ps if p.grad is not None]
    first, second, steps = ([state[key] for _, state, _ in entries] for key in ("exp_avg", "exp_avg_sq", "step"))
    group = entries[0][2]
    torch._fused_adamw_(
        ps,
        gradients,
        first,
        second,
        [],
        steps,
        lr=group["lr"],
        beta1=group["momentum"],
        beta2=group["beta2"],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        amsgrad=False,
        maximize=group["maximize"],
        found_inf=skip,
    )


def _one(p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    """The equations, for dtypes that the kernel does not take."""
    assert p.grad is not None
    first, second, step = state["exp_avg"], state["exp_avg_sq"], state["step"]
    gradient = p.grad.to(first.dtype)
    gradient = -gradient if group["maximize"] else gradient
    first.lerp_(gradient, 1.0 - group["momentum"])
    second.lerp_(gradient * gradient, 1.0 - group["beta2"])
    one, two = (1.0 - beta ** float(step) for beta in (group["momentum"], group["beta2"]))
    direction = (first / one).div_((second / two).sqrt_().add_(group["eps"]))
    if group["weight_decay"]:
        p.mul_(1.0 - group["lr"] * group["weight_decay"])
    p.sub_(direction * group["lr"])


def _end_to_end(entries: Sequence[Entry], finite: Tensor) -> None:
    """The equations on all of them as one vector, in which a skipped parameter keeps its bits."""
    group, like = entries[0][2], entries[0][1]["exp_avg"]
    beta1, beta2 = group["momentum"], group["beta2"]
    ps = [p for p, _, _ in entries]
    firsts, seconds = ([state[key] for _, state, _ in entries] for key in ("exp_avg", "exp_avg_sq"))
    gradients = [p.grad for p in ps if p.grad is not None]
    w, g, m, v = (torch.cat([x.reshape(-1) for x in xs]) for xs in (ps, gradients, firsts, seconds))
    precise = torch.promote_types(w.dtype, torch.float32)
    t = torch.stack([state["step"] for _, state, _ in entries]).to(precise)
    rows = torch.stack((finite.to(precise), 1.0 - beta1**t, (1.0 - beta2**t).sqrt()))
    lengths = [p.numel() for p in ps]
    on, one, two = torch.cat([row.expand(-1, n) for row, n in zip(rows.mT.unsqueeze(-1), lengths, strict=True)], 1)
    g = g.to(like.dtype)
    g = -g if group["maximize"] else g
    flag = on > 0
    m = m.lerp_(torch.where(flag, g, m), 1.0 - beta1)
    v = v.lerp_(torch.where(flag, g * g, v), 1.0 - beta2)
    direction = (m / one.clamp(min=1e-30)) / (v.sqrt() / two.clamp(min=1e-30) + group["eps"])
    if group["weight_decay"]:
        w = w * (1.0 - on * (group["lr"] * group["weight_decay"]))
    w = w - direction * (on * group["lr"])
    for xs, flat in ((ps, w), (firsts, m), (seconds, v)):
        parts = torch.split(flat.to(xs[0].dtype), lengths)
        torch._foreach_copy_(xs, [part.view(x.shape) for part, x in zip(parts, xs, strict=True)])
