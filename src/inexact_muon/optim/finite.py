"""Which gradients can be used: read on the host for CPU tensors, kept as flags on the device elsewhere.

On an accelerator a gradient counts as finite if no entry exceeds half of the largest number of its state's dtype: the
difference of two such gradients, of which the momentum is made there, does not overflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from inexact_muon.dtensors import gathered

Number = float | Tensor
"""A float if the host knows the value, else a tensor of one element."""


HOST_READABLE = ("cpu",)
"""Device types whose values the host can read without a synchronisation."""


def is_host_readable(x: Tensor) -> bool:
    """Whether reading a value of x needs no synchronisation."""
    return x.device.type in HOST_READABLE


def is_finite(gradient: Tensor) -> bool:
    """Whether all entries are finite; reads values, on all ranks for a DTensor."""
    return bool(gathered(gradient.isfinite().all()))


@dataclass(eq=False)
class Flags:
    """Finite flags of several gradients as vectors on their device.

    Attributes:
        vector: whether each gradient is finite.
        on: 1 if it is, else 0; float32.
        counts: numbers of `on`, then of its opposite, as views.
        counters: to which these are added: `step` of each parameter, then `skipped`.
    """

    vector: Tensor
    on: Tensor
    counts: list[Tensor]
    counters: list[Tensor]


def usable(gradients: Sequence[Tensor], dtypes: Sequence[torch.dtype]) -> Tensor:
    """Whether the largest entry of each gradient, in the dtype of its state, is at most the largest number allowed."""
    entries = []
    for g, dtype in zip(gradients, dtypes, strict=True):
        cast = g.to(dtype) if g.dtype != dtype and torch.finfo(dtype).max < torch.finfo(g.dtype).max else g
        entries.append(cast if cast.numel() else cast.new_zeros(1))  # the largest entry needs one
    norms = torch._foreach_norm(entries, inf)
    share = 1.0 if norms[0].device.type in HOST_READABLE else 0.5
    if dtypes.count(dtypes[0]) == len(dtypes):
        return torch.stack(norms) <= share * torch.finfo(dtypes[0]).max
    limits = [share * torch.finfo(dtype).max for dtype in dtypes]
    return torch.stack(torch._foreach_div([norm.double() for norm in norms], limits)) <= 1.0


def check_gradient(p: Tensor, on_nonfinite: str, dtype: torch.dtype) -> None:
    """Validate a gradient before anything is changed."""
    assert p.grad is not None
    if p.grad.layout != torch.strided:
        raise TypeError(f"sparse gradients are not supported, got {p.grad.layout} for shape {tuple(p.shape)}")
    if on_nonfinite == "raise" and not is_finite(p.grad.to(dtype)):
        raise ValueError(
            f"the gradient of a parameter of shape {tuple(p.shape)}, as {str(dtype).removeprefix('torch.')}, is not "
            "finite; nothing was changed"
        )
