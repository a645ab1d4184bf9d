"""Smoothness of the loss along the trajectory and gradient noise, per layer: the constants of the theorems.

Between two consecutive steps    L_k = ||g_{k+1} - g_k||* / ||W_{k+1} - W_k||,  in the norm of the layer's ball.
(L0, L1) is the non-negative least-squares fit of L0 + L1 ||g_k||* to the L_k (as in arXiv 2505.13416).
Gradients of different batches also differ by noise, so L_k then overestimates the smoothness constant. The noise is
estimated against the momentum m of weight alpha, which is independent of g:
E||g - m||^2 = sigma^2 (1 + alpha/(2-alpha)) if the expected gradient is constant, and larger if it changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from inexact_muon.dtensors import gathered
from inexact_muon.inexactness.estimate import lanczos
from inexact_muon.lmo import Ball, Spectral
from inexact_muon.optim.core import LMOOptimizer
from inexact_muon.optim.finite import is_finite
from inexact_muon.optim.group import Group
from inexact_muon.polar.scaling import probes

EXACT = 256
"""Largest short side for exact norms (by SVD); above it they are estimated from below."""


@dataclass(frozen=True)
class Smoothness:
    """One layer: largest L_k, the fitted (L0, L1), the RMS noise level sigma, and the number of samples."""

    L: float
    L0: float
    L1: float
    sigma: float
    samples: int


@dataclass
class _Probed:
    lipschitz: list[float] = field(default_factory=list)
    duals: list[float] = field(default_factory=list)
    sigmas: list[float] = field(default_factory=list)


class SmoothnessProbe:
    """Every `every` steps, compare the gradients before and after a step of each LMO layer.

    Example:
        >>> probe = SmoothnessProbe(optimizer, every=50)     # train, then
        >>> probe.estimates()["blocks.0.fc.weight"].L
    """

    def __init__(self, optimizer: LMOOptimizer, every: int = 50) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 2:
            raise ValueError(f"every must be an integer of at least 2, got {every!r}")
        self.every = every
        self._step = 0
        self._before: dict[str, tuple[Tensor, Tensor]] = {}
        self._layers: dict[str, _Probed] = {}
        self._handle = optimizer.register_step_pre_hook(self._on_step)

    def remove(self) -> None:
        """Detach the probe from the optimizer."""
        self._handle.remove()

    def estimates(self) -> dict[str, Smoothness]:
        """Estimates from all samples so far, by parameter name."""
        return {name: _summary(layer) for name, layer in self._layers.items() if layer.lipschitz}

    @torch.no_grad()
    def _on_step(self, optimizer: Any, *_: Any) -> None:
        if self._step % self.every in (0, 1):
            for name, p, group in optimizer.named():
                if group["algorithm"] == "lmo" and p.grad is not None:
                    self._sample(optimizer, name, p, group)
        self._step += 1

    def _sample(self, optimizer: LMOOptimizer, name: str, p: Tensor, group: Group) -> None:
        view, ball = optimizer.view(group), optimizer.ball(group)
        layer = self._layers.setdefault(name, _Probed())
        assert p.grad is not None
        if not is_finite(p.grad):  # the optimizer skips such a step
            self._before.pop(name, None)
        elif self._step % self.every == 0:
            self._before[name] = (p.grad.clone(), p.detach().clone())
            buffer = optimizer.state.get(p, {}).get("momentum_buffer")
            if buffer is not None:
                alpha = 1.0 - group["momentum"]
                distance = float(gathered(torch.linalg.vector_norm(p.grad.double() - buffer.double())))
                layer.sigmas.append(distance * ((2.0 - alpha) / 2.0) ** 0.5)
        elif name in self._before:
            gradient, weight = self._before.pop(name)
            # In float32 or wider: differences and sums may overflow in half precision.
            wide = torch.promote_types(p.dtype, torch.float32)
            gradient = gradient.to(wide)
            change = view.cut(gathered(p.grad.to(wide) - gradient))
            step_taken = view.cut(gathered(p.detach().to(wide) - weight.to(wide)))
            # Product ball: the norm is the maximum over the parts, the dual norm their sum.
            length = max(_norm(ball, part) for part in step_taken)
            if length > 0.0:
                layer.lipschitz.append(sum(_dual_norm(ball, part) for part in change) / length)
                layer.duals.append(sum(_dual_norm(ball, part) for part in view.cut(gathered(gradient))))


def _norm(ball: Ball, x: Tensor) -> float:
    if not isinstance(ball, Spectral) or min(x.shape[-2:]) <= EXACT:
        return float(ball.norm(x).max())
    wide = x.reshape(-1, *x.shape[-2:]).float()
    start = probes(x.shape[-2], 1, wide).mT.expand(len(wide), -1, -1)
    space = lanczos(lambda q: (q @ wide) @ wide.mT, start, 16)
    top = torch.where(space.live, space.ritz, 0.0).amax()
    return float(top.sqrt()) / ball.radius(x.shape)


def _dual_norm(ball: Ball, g: Tensor) -> float:
    if not isinstance(ball, Spectral) or min(g.shape[-2:]) <= EXACT:
        return float(ball.dual_norm(g).sum())
    return -float((g * ball.answer(g)).sum())


def _summary(layer: _Probed) -> Smoothness:
    seen = np.asarray(layer.lipschitz)
    columns = np.stack((np.ones_like(seen), np.asarray(layer.duals)), axis=1)
    scale = np.maximum(columns.max(axis=0), np.finfo(float).tiny)
    l0, l1 = _not_negative(columns / scale, seen)
    sigma = float(np.sqrt(np.mean(np.square(layer.sigmas)))) if layer.sigmas else 0.0
    return Smoothness(float(seen.max()), float(l0 / scale[0]), float(l1 / scale[1]), sigma, len(seen))


def _not_negative(columns: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The least-squares solution of two unknowns that are not negative: inside, or on the better of the two edges."""
    inside = np.linalg.lstsq(columns, values, rcond=None)[0]
    if bool((inside >= 0.0).all()):
        return inside
    along = np.maximum(0.0, columns.T @ values / np.square(columns).sum(axis=0))
    edges = np.diag(along)
    return min(edges, key=lambda x: float(np.square(columns @ x - values).sum()))
