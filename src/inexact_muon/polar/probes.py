"""Pseudo-random starting vectors of iterations: the same on every call, rank and device."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


def probes(n: int, count: int, like: Tensor) -> Tensor:
    """An n x count standard normal matrix in the dtype and on the device of `like`.

    Drawn from a separate generator, so that the global random state does not change.
    """
    return _draw(n, count).to(dtype=like.dtype, device=like.device)


@lru_cache(maxsize=64)
def _draw(n: int, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(20251019)
    return torch.randn(n, count, generator=generator, dtype=torch.float64)
