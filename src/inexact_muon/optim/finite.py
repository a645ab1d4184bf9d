"""Whose gradient is finite: by a look where that is free, by a flag on the device elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite

import torch
from torch import Tensor

from inexact_muon.dtensors import gathered


def looked(gradients: Sequence[Tensor], dtypes: Sequence[torch.dtype]) -> list[bool]:
    """Whether all entries of each are finite in the dtype of its state. Reads values."""
    norms = torch._foreach_norm([_cast(g, dtype) for g, dtype in zip(gradients, dtypes, strict=True)])
    sizes = [float(norm) for norm in norms]
    # A sum of squares is one fast pass; only if that is not finite the entries may still be.
    return [
        isfinite(size) or bool(_cast(g, dtype).isfinite().all())
        for size, g, dtype in zip(sizes, gradients, dtypes, strict=True)
    ]


def is_finite(gradient: Tensor) -> bool:
    """Whether all entries of one are; reads values, of all ranks for a DTensor."""
    return bool(gathered(gradient.isfinite().all()))


def flags(gradients: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """The same as a vector on the device; the largest entry of each is compared with infinity."""
    full = [_cast(g, dtype) if g.numel() else g.new_zeros(1) for g in gradients]  # an empty one has no largest entry
    norms = torch.stack(torch._foreach_norm(full, inf))
    return norms < inf


def _cast(gradient: Tensor, dtype: torch.dtype) -> Tensor:
    """The gradient as its state sees it: a cast that overflows is not finite either."""
    narrow = torch.finfo(dtype).max < torch.finfo(gradient.dtype).max
    return gradient.to(dtype) if narrow else gradient
