"""Hyperball (arXiv 2606.16899): updates and weights of fixed Frobenius norm, around any optimizer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class Hyperball:
    """Hooks that replace each step W -> W + u of some parameters by one on the sphere of W's first norm R.

        W <- R unit(W + lr R unit(u)),   unit(x) = x / ||x||_F

    The length of u has no effect, so neither does the scale of an oracle's answer: only its direction has. A parameter
    that starts at zero, or that a step leaves as it is, is not changed.

    Args:
        optimizer: makes the steps u; without weight decay.
        parameters: those that are kept on their spheres. R is their norm now, also if a checkpoint is loaded later.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Iterable[Tensor]) -> None:
        self.radii = {p: p.detach().norm() for p in parameters}
        self.before: dict[Tensor, Tensor] = {}
        optimizer.register_step_pre_hook(self._remember)
        optimizer.register_step_post_hook(self._project)

    def _remember(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.before = {p: p.detach().clone() for p in self.radii}

    @torch.no_grad()
    def _project(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        rates = {p: float(group["lr"]) for group in optimizer.param_groups for p in group["params"]}
        for p, old in self.before.items():
            u, radius = p - old, self.radii[p]
            if radius > 0 and (length := u.norm()) > 0:
                moved = old + u * (rates[p] * radius / length)
                p.copy_(moved * (radius / moved.norm()))
        self.before = {}
