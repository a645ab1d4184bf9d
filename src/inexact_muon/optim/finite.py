"""Whose gradient is finite: by a look where that is free, by a flag on the device elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor

from inexact_muon.dtensors import gathered

Number = float | Tensor
"""A float where the host knows the value, else a tensor of one element."""


HOSTED = ("cpu",)
"""Devices on which the host may look at values."""


def hosted(x: Tensor) -> bool:
    """Whether looking at a value of x does not wait for anything."""
    return x.device.type in HOSTED


def looked(gradients: Sequence[Tensor | None], dtypes: Sequence[torch.dtype]) -> list[bool]:
    """Whether all entries of each are finite in the dtype of its state. Reads values."""
    cast = _cast(gradients, dtypes)
    # A sum of squares is one fast pass; only if that is not finite the entries may still be.
    norms = [float(norm) for norm in torch._foreach_norm(cast)]
    return [isfinite(norm) or bool(g.isfinite().all()) for norm, g in zip(norms, cast, strict=True)]


def is_finite(gradient: Tensor) -> bool:
    """Whether all entries of one are; reads values, of all ranks for a DTensor."""
    return bool(gathered(gradient.isfinite().all()))


@dataclass(eq=False)
class Flags:
    """The same as vectors on the device, with an entry for each of some parameters.

    Attributes:
        vector: whether the gradient is finite.
        on: 1 if it is, else 0; float32.
        off: 0 if it is, else 1.
    """

    vector: Tensor
    on: Tensor
    off: Tensor

    @classmethod
    def of(cls, gradients: Sequence[Tensor | None], dtypes: Sequence[torch.dtype]) -> Flags:
        """The largest entry of each gradient, in the dtype of its state, is compared with infinity."""
        full = [g if g.numel() else g.new_zeros(1) for g in _cast(gradients, dtypes)]  # an empty one has no largest
        norms = torch._foreach_norm(full, inf)
        same = len({norm.dtype for norm in norms}) == 1
        return cls.given(torch.stack(norms if same else [norm.double() for norm in norms]) < inf)

    @classmethod
    def given(cls, vector: Tensor) -> Flags:
        """From whether each gradient is finite."""
        on = vector.to(torch.float32)
        return cls(vector, on, 1.0 - on)

    @cached_property
    def finite(self) -> tuple[Tensor, ...]:
        """The flag of each."""
        return self.vector.unbind()

    def part(self, first: int, count: int) -> Flags:
        """Those of `count` parameters, as views."""
        return Flags(*(x.narrow(0, first, count) for x in (self.vector, self.on, self.off)))

    def times(self, values: Sequence[Number], dtype: torch.dtype) -> list[Tensor]:
        """The values as tensors of one element, 0 where the gradient is not finite; one operation for equal ones."""
        on = self.on.to(torch.promote_types(dtype, torch.float32))
        return [x.unbind()[k] for k, x in enumerate(once(lambda value: (on * value).to(dtype), values))]

    def count_(self, states: Sequence[dict[str, Any]]) -> None:
        """One step more: made, or skipped."""
        counts = [state[key] for key in ("step", "skipped") for state in states]
        torch._foreach_add_(counts, [*self.on.unbind(), *self.off.unbind()])


def once(function: Any, *columns: Sequence[Any]) -> list[Any]:
    """function(*row) of each row, computed once for equal rows; a tensor equals only itself."""
    made: dict[tuple[Any, ...], Any] = {}
    keys = []
    for row in zip(*columns, strict=True):
        keys.append(tuple(id(x) if isinstance(x, Tensor) else x for x in row))
        if keys[-1] not in made:
            made[keys[-1]] = function(*row)
    return [made[key] for key in keys]


def _cast(gradients: Sequence[Tensor | None], dtypes: Sequence[torch.dtype]) -> list[Tensor]:
    """The gradients as their states see them: a cast that overflows is not finite either."""
    return [
        g.to(dtype) if torch.finfo(dtype).max < torch.finfo(g.dtype).max else g
        for g, dtype in zip(gradients, dtypes, strict=True)
        if g is not None
    ]
