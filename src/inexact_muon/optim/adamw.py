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

from inexact_muon.optim.batches import Batch, Member
from inexact_muon.optim.rows import Rows
from inexact_muon.optim.telemetry import Telemetry

LARGE = 2**18
"""Number of entries from which a tensor gets its own call of the fused kernel."""


def adamw_(batch: Batch, telemetry: Telemetry) -> None:
    """Update members of one device and dtype whose groups have equal options, and increment their step counts."""
    members, flags = batch.members, batch.flags
    sampled = [m for m in members if id(m.p) in telemetry.chosen and (m.place is None or m.place.copy == 0)]
    before = [m.piece.detach().clone() for m in sampled]
    if flags is None:
        torch._foreach_add_(*batch.steps)
    else:
        torch._foreach_add_(flags.counters, flags.counts)
    rows: list[Any] = [(m.piece, m.gradient, *m.buffers) for m in members]
    fused = (
        not isinstance(members[0].group["momentum"], Tensor)
        and members[0].piece.device.type in ("cpu", "cuda")
        and all([p.dtype == g.dtype == m.dtype == v.dtype for p, g, m, v in rows])  # noqa: C419
        and all([p.stride() == g.stride() == m.stride() == v.stride() for p, g, m, v in rows])  # noqa: C419
        and all([p.is_contiguous() or _is_channels_last(p) for p, *_ in rows])  # noqa: C419
    )  # the kernel iterates over memory and ignores strides
    if not fused:
        on: Sequence[Tensor | None] = [None] * len(members) if flags is None else flags.counts
        for member, flag in zip(members, on, strict=False):
            _single(member, flag)
    elif flags is None:
        _fused(members, None)
    else:
        large = [k for k, m in enumerate(members) if m.piece.numel() >= LARGE]
        for k in large:
            _fused([members[k]], flags.counts[len(members) + k])
        if len(large) < len(members):  # call the kernel, then restore those whose gradient is not finite
            index = [k for k, m in enumerate(members) if m.piece.numel() < LARGE]
            small = [members[k] for k in index]
            written = [m.piece for m in small] + [m.buffers[i] for i in (0, 1) for m in small]
            packed = batch.rows.get("adamw") or Rows.of(batch.rows, "adamw", index * 3, written)
            old = packed.joined(written)
            _fused(small, None)
            packed.copy_to(written, torch.where(packed.spread(flags.vector), packed.joined(written), old))
    for m, old in zip(sampled, before, strict=True):
        update = old.double() * (1.0 - float(m.group["lr"]) * m.group["weight_decay"]) - m.piece.double()
        telemetry.record_sizes(id(m.p), update, old)


def _is_channels_last(x: Tensor) -> bool:
    return x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)


def buffer_dtype(key: str, dtype: torch.dtype) -> torch.dtype:
    """Dtype of a state tensor: second moments are never stored in float16."""
    return torch.float32 if key == "exp_avg_sq" and dtype == torch.float16 else dtype


NUMBERS = ("lr", "momentum", "beta2", "eps", "weight_decay", "decay_lr", "maximize", "constrained")
"""Group options that must be equal for members that are updated by one operation."""


def by_options(members: Sequence[Member]) -> list[Batch]:
    """Batches that one call of `adamw_` can update; those that ranks share are apart from others."""
    alike: dict[Any, list[Member]] = {}
    for m in members:
        ranks = None if m.place is None else (m.place.ranks, len(m.place.groups))
        alike.setdefault((ranks, m.piece.device, m.piece.dtype, m.buffers[0].dtype, m.numbers), []).append(m)
    return [Batch(batch) for batch in alike.values()]


def _fused(members: Sequence[Member], skip: Tensor | None) -> None:
    """Call torch's kernel; `skip` is 1 to leave everything unchanged."""
    group = members[0].group
    torch._fused_adamw_(
        [m.piece for m in members],
        [m.gradient for m in members],  # type: ignore[misc]
        [m.buffers[0] for m in members],
        [m.buffers[1] for m in members],
        [],
        [m.state["step"] for m in members],
        lr=group["lr"],
        beta1=group["momentum"],
        beta2=group["beta2"],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        amsgrad=False,
        maximize=group["maximize"],
        found_inf=skip,
    )


def _single(member: Member, on: Tensor | None = None) -> None:
    """The equations for dtypes that the kernel does not support; `on` is 0 to leave everything unchanged."""
    p, group, step = member.piece, member.group, member.state["step"]
    first, second = member.buffers
    assert member.gradient is not None
    gradient = member.gradient.to(first.dtype)
    gradient = -gradient if group["maximize"] else gradient
    square = gradient.to(second.dtype).square()
    step_count: float | Tensor = (
        float(step) if on is None else step.clamp(min=1.0).to(torch.promote_types(first.dtype, step.dtype))
    )
    rate, decay = group["lr"], group["lr"] * group["weight_decay"]
    if on is not None:
        gradient, square = torch.where(on > 0, gradient, first), torch.where(on > 0, square, second)
        on = on.to(torch.promote_types(p.dtype, on.dtype))  # a float32 rate would round float64 updates
        rate, decay = rate * on, decay * on
    first.lerp_(gradient, 1.0 - group["momentum"])
    second.lerp_(square, 1.0 - group["beta2"])
    one, two = (1.0 - beta**step_count for beta in (group["momentum"], group["beta2"]))
    direction = (first / one) / (second / two).sqrt_().add_(group["eps"])
    if group["weight_decay"]:
        p.mul_(1.0 - decay)
    p.sub_(direction * rate)
