"""How smooth the loss is along the trajectory, per layer, and how noisy its gradients: the constants of the theorems.

Between two consecutive steps    L_k = ||g_{k+1} - g_k||* / ||W_{k+1} - W_k||,  in the norm of the layer's ball.
(L0, L1) is the line L0 + L1 ||g_k||* through the L_k, both coefficients at least 0 (as in arXiv 2505.13416).
Gradients on different batches differ by noise as well, so that L_k is then an upper estimate: it says how far the steps
at hand may trust a gradient. The noise is seen against the momentum m of weight alpha, which is independent of g:
E||g - m||^2 = sigma^2 (1 + alpha/(2-alpha)) where the gradient stands still, and larger where it moves.
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
from inexact_muon.polar.probes import probes

EXACT = 256
"""Up to this short side norms are decomposed; above it the oracle and a Krylov space estimate them, from below."""


@dataclass(frozen=True)
class Smoothness:
    """One layer: largest L_k, the fitted (L0, L1), the noise level sigma (root mean square), how many samples."""

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
    """Watches an optimizer: every `every` steps it compares the gradients before and after a step of each LMO layer.

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
        self._handle = optimizer.register_step_pre_hook(self._look)

    def remove(self) -> None:
        """Stops watching."""
        self._handle.remove()

    def estimates(self) -> dict[str, Smoothness]:
        """What has been seen so far, by parameter."""
        return {name: _summary(layer) for name, layer in self._layers.items() if layer.lipschitz}

    @torch.no_grad()
    def _look(self, optimizer: Any, *_: Any) -> None:
        if self._step % self.every in (0, 1):
            for name, p, group in optimizer.named():
                if group["algorithm"] == "lmo" and p.grad is not None:
                    self._visit(optimizer, name, p, group)
        self._step += 1

    def _visit(self, optimizer: LMOOptimizer, name: str, p: Tensor, group: dict[str, Any]) -> None:
        view, ball = optimizer.view(group), optimizer.ball(group)
        layer = self._layers.setdefault(name, _Probed())
        assert p.grad is not None
        if not is_finite(p.grad):  # such a step is skipped: it says nothing about the loss
            self._before.pop(name, None)
        elif self._step % self.every == 0:
            self._before[name] = (p.grad.clone(), p.detach().clone())
            buffer = optimizer.state.get(p, {}).get("momentum_buffer")
            if buffer is not None:
                alpha = 1.0 - group["momentum"]
                apart = float(gathered(torch.linalg.vector_norm(p.grad.double() - buffer.double())))
                layer.sigmas.append(apart * ((2.0 - alpha) / 2.0) ** 0.5)
        elif name in self._before:
            gradient, weight = self._before.pop(name)
            # In float32 or better: differences and sums of half precision overflow.
            wide = torch.promote_types(p.dtype, torch.float32)
            gradient = gradient.to(wide)
            change = view.cut(gathered(p.grad.to(wide) - gradient))
            moved = view.cut(gathered(p.detach().to(wide) - weight.to(wide)))
            # Norms of a product ball: the largest of its parts; dual norms: their sum.
            length = max(_norm(ball, part) for part in moved)
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
    from scipy.optimize import nnls

    seen = np.asarray(layer.lipschitz)
    columns = np.stack((np.ones_like(seen), np.asarray(layer.duals)), axis=1)
    scale = np.maximum(columns.max(axis=0), np.finfo(float).tiny)
    (l0, l1), _ = nnls(columns / scale, seen)
    sigma = float(np.sqrt(np.mean(np.square(layer.sigmas)))) if layer.sigmas else 0.0
    return Smoothness(float(seen.max()), float(l0 / scale[0]), float(l1 / scale[1]), sigma, len(seen))
