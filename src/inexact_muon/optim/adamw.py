"""AdamW (arXiv 1711.05101, Algorithm 2) for parameters without an LMO, with the same result as torch.optim.AdamW.

    m <- b1 m + (1-b1) g,  v <- b2 v + (1-b2) g^2,  t counts from 1
    W <- (1 - lr decay) W - lr (m/(1-b1^t)) / (sqrt(v/(1-b2^t)) + eps)

v is float32 if m is float16: g^2 leaves the range of float16 above 255 and below 2e-4.
torch's fused kernel is used if all tensors have one dtype. On an accelerator it can only skip an entire call: large
tensors get one call each; small ones share a call, after which those to be skipped are restored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from inexact_muon.optim.finite import Flags
from inexact_muon.optim.telemetry import Telemetry

Entry = tuple[Tensor, dict[str, Any], dict[str, Any]]
"""(parameter, state, group)"""

LARGE = 2**18
"""Number of entries from which a tensor gets its own call of the fused kernel."""


def adamw_(entries: Sequence[Entry], flags: Flags | None, telemetry: Telemetry, keys: Sequence[int]) -> None:
    """Update parameters of one device and dtype whose groups have equal options, and increment their step counts.

    Args:
        flags: which gradients are finite; None if all are.
        telemetry: records the update sizes of sampled parameters.
        keys: id of the parameter that each entry is (a piece of); 0 if another rank records it.
    """
    sampled = [(p, group, key) for (p, _, group), key in zip(entries, keys, strict=True) if key in telemetry.chosen]
    before = [p.detach().clone() for p, _, _ in sampled]
    states = [state for _, state, _ in entries]
    fused = all(
        p.grad is not None
        and p.device.type in ("cpu", "cuda")
        and p.dtype == p.grad.dtype == state["exp_avg"].dtype == state["exp_avg_sq"].dtype
        and p.stride() == p.grad.stride() == state["exp_avg"].stride() == state["exp_avg_sq"].stride()
        and (p.is_contiguous() or (p.ndim == 4 and p.is_contiguous(memory_format=torch.channels_last)))
        and not isinstance(group["momentum"], Tensor)
        for p, state, group in entries
    )  # the kernel iterates over memory and ignores strides
    if flags is None:
        torch._foreach_add_([state["step"] for state in states], 1.0)
    else:
        flags.count_(states)
    if not fused:
        on: Sequence[Tensor | None] = [None] * len(entries) if flags is None else flags.on.unbind()
        for (p, state, group), flag in zip(entries, on, strict=True):
            _single(p, state, group, flag)
    elif flags is None:
        _fused(entries, None)
    else:
        small: list[tuple[Entry, Tensor]] = []
        for entry, finite, skip in zip(entries, flags.vector.unbind(), flags.off.unbind(), strict=True):
            if entry[0].numel() >= LARGE:
                _fused([entry], skip)
            else:
                small.append((entry, finite))
        if small:
            _masked([entry for entry, _ in small], [finite for _, finite in small])
    for (p, group, key), old in zip(sampled, before, strict=True):
        update = old.double() * (1.0 - float(group["lr"]) * group["weight_decay"]) - p.double()
        telemetry.record_sizes(key, update, old)


def buffer_dtype(key: str, dtype: torch.dtype) -> torch.dtype:
    """Dtype of a state tensor: second moments are never stored in float16."""
    return torch.float32 if key == "exp_avg_sq" and dtype == torch.float16 else dtype


def by_options(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Entries grouped so that one call of `adamw_` can update each group."""
    found: dict[tuple[Any, ...], list[Entry]] = {}
    for p, state, group in entries:
        options = (group[k] for k in ("lr", "momentum", "beta2", "eps", "weight_decay", "maximize"))
        key = (p.device, p.dtype, state["exp_avg"].dtype, *(id(x) if isinstance(x, Tensor) else x for x in options))
        found.setdefault(key, []).append((p, state, group))
    return list(found.values())


def _fused(entries: Sequence[Entry], skip: Tensor | None) -> None:
    """Call torch's kernel; `skip` is 1 to leave everything unchanged."""
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


def _single(p: Tensor, state: dict[str, Any], group: dict[str, Any], on: Tensor | None = None) -> None:
    """The equations for dtypes that the kernel does not support; `on` is 0 to leave everything unchanged."""
    assert p.grad is not None
    first, second, step = state["exp_avg"], state["exp_avg_sq"], state["step"]
    gradient = p.grad.to(first.dtype)
    gradient = -gradient if group["maximize"] else gradient
    square = gradient.to(second.dtype).square()
    made: float | Tensor = (
        float(step) if on is None else step.clamp(min=1.0).to(torch.promote_types(first.dtype, step.dtype))
    )
    rate, kept = group["lr"], group["lr"] * group["weight_decay"]
    if on is not None:
        gradient, square = torch.where(on > 0, gradient, first), torch.where(on > 0, square, second)
        on = on.to(torch.promote_types(p.dtype, on.dtype))  # a float32 rate would round float64 updates
        rate, kept = rate * on, kept * on
    first.lerp_(gradient, 1.0 - group["momentum"])
    second.lerp_(square, 1.0 - group["beta2"])
    one, two = (1.0 - beta**made for beta in (group["momentum"], group["beta2"]))
    direction = (first / one) / (second / two).sqrt_().add_(group["eps"])
    if group["weight_decay"]:
        p.mul_(1.0 - kept)
    p.sub_(direction * rate)


def _masked(entries: Sequence[Entry], finite: Sequence[Tensor]) -> None:
    """Call the kernel on all entries, then restore those whose gradient is not finite."""
    ps = [p for p, _, _ in entries]
    written = [*ps, *(state[key] for key in ("exp_avg", "exp_avg_sq") for _, state, _ in entries)]
    before = torch.cat([x.reshape(-1) for x in written])
    _fused(entries, None)
    after = torch.cat([x.reshape(-1) for x in written])
    flag = torch.cat([f.expand(p.numel()) for f, p in zip(finite, ps, strict=True)] * 3)
    parts = torch.split(torch.where(flag, after, before), [x.numel() for x in written])
    torch._foreach_copy_(written, [part.view(x.shape) for part, x in zip(parts, written, strict=True)])
