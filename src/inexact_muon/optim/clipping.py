"""Gradient clipping for AdamW groups only."""

from __future__ import annotations

import torch
from torch import Tensor

from inexact_muon.optim.core import LMOOptimizer


@torch.no_grad()
def clip_grad_norm_(optimizer: LMOOptimizer, max_norm: float) -> dict[str, Tensor]:
    """Clip the total gradient norm of the AdamW groups to max_norm.

    An LMO is invariant to the scale of a single gradient, but its momentum averages several: clipping LMO gradients by
    a global norm would only change their weights in this average, layer by layer.

    Returns:
        Norms before clipping, {"lmo": norm, "adamw": norm}, as tensors to avoid a synchronisation.
    """
    if not max_norm > 0.0:
        raise ValueError(f"max_norm must be positive, got {max_norm}")
    norms = {}
    for algorithm in ("lmo", "adamw"):
        params = [p for _, p, group in optimizer.named() if group["algorithm"] == algorithm]
        gradients = [p.grad for p in params if p.grad is not None]
        norms[algorithm] = torch.nn.utils.get_total_norm(gradients)
        if algorithm == "adamw":
            factor = (max_norm / (norms[algorithm] + 1e-6)).clamp(max=1.0)
            for gradient in gradients:
                gradient.mul_(factor.to(gradient.device))
    return norms
