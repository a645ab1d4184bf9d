"""One step of one parameter, equation by equation. Slow, float64, stateless."""

from __future__ import annotations

from torch import Tensor

from inexact_muon.lmo import Ball
from inexact_muon.lmo._base import sides
from inexact_muon.optim.lengths import SCALES, Fixed, Length


def reference_step(
    w: Tensor,
    m: Tensor | None,
    g: Tensor,
    *,
    lr: float,
    momentum: float,
    ball: Ball,
    length: Length | None = None,
    radius: float = 1.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    scale: str = "none",
    constrained: bool = False,
) -> tuple[Tensor, Tensor]:
    """(W, m) after one step of Algorithm 1 with alpha = 1 - momentum; m is None before the first gradient."""
    alpha = 1.0 - momentum
    m = g if m is None else (1.0 - alpha) * m + alpha * g
    m_hat = (1.0 - alpha) * m + alpha * g if nesterov else m
    d_hat = ball(m_hat)
    if constrained:
        return (1.0 - lr) * w + lr * radius * d_hat, m
    factor = (length or Fixed())(radius, -(m_hat * d_hat).sum())
    return (1.0 - lr * weight_decay) * w + lr * SCALES[scale](*sides(w.shape)) * factor * d_hat, m
