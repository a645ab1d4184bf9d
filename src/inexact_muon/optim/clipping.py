"""Clipping that leaves LMO directions alone."""

from __future__ import annotations

import torch
from torch import Tensor

from inexact_muon.optim.core import LMOOptimizer


@torch.no_grad()
def clip_grad_norm_(optimizer: LMOOptimizer, max_norm: float) -> dict[str, Tensor]:
    """Clips the total gradient norm of the AdamW groups to max_norm; returns the norms of both kinds before.

    The answer of an LMO does not depend on the length of one gradient, but its momentum mixes several: clipping them
    together with the rest by a global norm only changes their weights in the mixture, layer by layer.

    Returns:
        {"lmo": norm, "adamw": norm}, tensors, so that nothing waits for the device.
    """
    if not max_norm > 0.0:
        raise ValueError(f"max_norm must be positive, got {max_norm}")
    norms = {}
    for algorithm in ("lmo", "adamw"):
        gradients = [
            p.grad
            for group in optimizer.param_groups
            if group["algorithm"] == algorithm
            for p in group["params"]
            if p.grad is not None
        ]
        norms[algorithm] = torch.nn.utils.get_total_norm(gradients)
        if algorithm == "adamw":
            factor = (max_norm / (norms[algorithm] + 1e-6)).clamp(max=1.0)
            for gradient in gradients:
                gradient.mul_(factor.to(gradient.device))
    return norms
