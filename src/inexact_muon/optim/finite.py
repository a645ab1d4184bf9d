"""Which gradients are finite: read on the host for CPU tensors, kept as flags on the device elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

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


def finite_on_host(gradients: Sequence[Tensor | None], dtypes: Sequence[torch.dtype]) -> list[bool]:
    """Whether all entries of each gradient are finite in the dtype of its state; reads values."""
    cast = _cast(gradients, dtypes)
    # A norm takes one fast pass. It may overflow although all entries are finite: then check them.
    norms = [float(norm) for norm in torch._foreach_norm(cast)]
    return [isfinite(norm) or bool(g.isfinite().all()) for norm, g in zip(norms, cast, strict=True)]


def is_finite(gradient: Tensor) -> bool:
    """Whether all entries are finite; reads values, on all ranks for a DTensor."""
    return bool(gathered(gradient.isfinite().all()))


@dataclass(eq=False)
class Flags:
    """Finite flags of several gradients as vectors on their device.

    Attributes:
        vector: whether each gradient is finite.
        on: 1 if it is, else 0; float32.
        off: 1 - on.
    """

    vector: Tensor
    on: Tensor
    off: Tensor

    @classmethod
    def of(cls, gradients: Sequence[Tensor | None], dtypes: Sequence[torch.dtype]) -> Flags:
        """Compare the largest entry of each gradient, in the dtype of its state, with infinity."""
        full = [g if g.numel() else g.new_zeros(1) for g in _cast(gradients, dtypes)]  # amax needs an entry
        norms = torch._foreach_norm(full, inf)
        same = len({norm.dtype for norm in norms}) == 1
        vector = torch.stack(norms if same else [norm.double() for norm in norms]) < inf
        on = vector.to(torch.float32)
        return cls(vector, on, 1.0 - on)

    @classmethod
    def from_vector(cls, vector: Tensor) -> Flags:
        """Flags from a boolean vector."""
        on = vector.to(torch.float32)
        return cls(vector, on, 1.0 - on)

    def times(self, values: Sequence[Number], dtype: torch.dtype) -> list[Tensor]:
        """The values as tensors of one element, 0 if the gradient is not finite; one operation per distinct value."""
        on = self.on.to(torch.promote_types(dtype, torch.float32))
        return [x.unbind()[k] for k, x in enumerate(map_unique(lambda value: (on * value).to(dtype), values))]

    def count_(self, states: Sequence[dict[str, Any]]) -> None:
        """Increment `step` of finite and `skipped` of other parameters."""
        counts = [state[key] for key in ("step", "skipped") for state in states]
        torch._foreach_add_(counts, [*self.on.unbind(), *self.off.unbind()])


def map_unique(function: Any, *columns: Sequence[Any]) -> list[Any]:
    """function(*row) for each row, evaluated once per distinct row; tensors compare by identity."""
    rows = list(zip(*columns, strict=True))
    made = {row: function(*row) for row in dict.fromkeys(rows)}
    return [made[row] for row in rows]


def _cast(gradients: Sequence[Tensor | None], dtypes: Sequence[torch.dtype]) -> list[Tensor]:
    """The gradients in the dtype of their states, if the cast can overflow."""
    return [
        g.to(dtype) if torch.finfo(dtype).max < torch.finfo(g.dtype).max else g
        for g, dtype in zip(gradients, dtypes, strict=True)
        if g is not None
    ]
