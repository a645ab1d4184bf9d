"""AdamW for the parameters that no LMO should get, as a function of plain tensors."""

from __future__ import annotations

import torch
from torch import Tensor


def adamw_update(
    p: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    step: Tensor,
    *,
    lr: float | Tensor,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """(W, m, v) after one step of AdamW (arXiv 1711.05101, Algorithm 2), as torch.optim.AdamW computes it.

    m <- b1 m + (1-b1) g,  v <- b2 v + (1-b2) g^2,  step counts from 1
    W <- (1 - lr wd) W - lr (m/(1-b1^step)) / (sqrt(v/(1-b2^step)) + eps)
    """
    first = first.lerp(gradient, 1.0 - betas[0])
    second = second.lerp(gradient * gradient, 1.0 - betas[1])
    correction = [1.0 - torch.pow(torch.as_tensor(beta, dtype=torch.float64), step) for beta in betas]
    direction = (first / correction[0]) / ((second / correction[1]).sqrt() + eps)
    return (p * (1.0 - lr * weight_decay) - lr * direction).to(p.dtype), first, second
