"""AdamW for the parameters that no LMO should get, as a function of plain tensors."""

from __future__ import annotations

from typing import Any

from torch import Tensor

Number = float | Tensor
"""A float where the host knows the value, else a tensor of one element."""


def cast(weight: Number, like: Tensor) -> Any:
    """A weight as `lerp` wants it."""
    return weight.to(like.dtype) if isinstance(weight, Tensor) else weight


def adamw_(
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    step: Number,
    betas: tuple[float, float],
    eps: float,
    on: Number = 1.0,
) -> Tensor:
    """The direction d of AdamW (arXiv 1711.05101, Algorithm 2), as torch.optim.AdamW computes it; moments in place.

    m <- b1 m + (1-b1) g,  v <- b2 v + (1-b2) g^2,  step counts from 1
    d = (m/(1-b1^step)) / (sqrt(v/(1-b2^step)) + eps),  W <- (1 - lr wd) W - lr d

    Args:
        on: 0 leaves the moments as they are.
    """
    first.lerp_(gradient, cast((1.0 - betas[0]) * on, first))
    second.lerp_(gradient * gradient, cast((1.0 - betas[1]) * on, second))
    one, two = (1.0 - beta**step for beta in betas)
    return (first / one).div_((second / two).sqrt_().add_(eps))
