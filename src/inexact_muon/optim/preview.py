"""What the balls are about to see, without a step: for controllers that choose an oracle by it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from inexact_muon.dtensors import pieces, whole_of
from inexact_muon.optim.algorithm import momentum
from inexact_muon.optim.batches import Batch, Member
from inexact_muon.optim.finite import is_finite
from inexact_muon.optim.options import check_gradient

if TYPE_CHECKING:
    from inexact_muon.optim.core import LMOOptimizer


@torch.no_grad()
def preview(optimizer: LMOOptimizer) -> Iterator[tuple[str, dict[str, Any], Tensor]]:
    """`LMOOptimizer.seen`."""
    entries, shared = list(optimizer.drawn()), optimizer.shared()
    known: dict[int, bool] = {}
    if shared is not None:
        entries = shared.agree(optimizer, entries)
        known = {id(p): bool(shared.finite[id(p)]) for _, p in shared.entries}
    for _, p in entries:
        if p.grad is not None:
            check_gradient(p, optimizer.on_nonfinite, optimizer.dtype_of(p))
            known[id(p)] = is_finite(p.grad.to(optimizer.dtype_of(p)))
    for name, p, group in optimizer.named():
        if group["algorithm"] == "lmo" and known.get(id(p), False):
            state = optimizer.state_of(p, ("momentum_buffer",))
            ball, length, view = optimizer.ball(group), optimizer.length(group), optimizer.view(group)
            (m,), _ = momentum(Batch([Member(*pieces(p, state), group, ball, length, view)], loose=True))
            yield name, group, whole_of(m, p) if hasattr(p, "device_mesh") else m
