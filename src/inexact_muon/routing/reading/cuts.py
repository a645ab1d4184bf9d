"""How the output of a layer is cut along its channels: by chunk, split, reshape or einops."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inexact_muon.routing.reading.values import Value

CHANNELS = (1, -3, -2)
"""The dimension of channels in the output of a convolution."""

NAMED = re.compile(r"\w+ \((\w+) [\w ]+\).*-> \(?(\w+)\b")
"""An einops pattern whose slowest axis of the channels comes first in the result: query, key and value."""


@dataclass(frozen=True)
class ChannelCut:
    """Consecutive channels in `parts` equal parts, or in parts of `size` channels."""

    parts: int = 0
    size: int = 0

    def count(self, channels: int) -> int | None:
        """The number of equal parts of this many channels; None if they do not fit."""
        parts = self.parts or channels // self.size
        return parts if parts > 1 and channels % parts == 0 and self.size in (0, channels // parts) else None


def _plain(args: Sequence[Value]) -> list[Any]:
    """Numbers and text among arguments, those of a tuple too; None for what is not known."""
    flat = args[0].items if args and args[0].items is not None else args
    return [value.objects[0] if value.known else None for value in flat]


def moved(name: str, args: Sequence[Value], axis: int) -> int | None:
    """Where the dimension of channels is after a function of this name; None if that is not known."""
    numbers = _plain(args)
    while numbers and numbers[-1] is None:  # what the tensor itself carries comes last
        numbers.pop()
    match name, numbers:
        case "contiguous", []:
            return axis
        case "flatten", [2, *_] if axis == 1:
            return axis
        case "reshape" | "view", [_, 1, _, *_] if axis == 1:
            return 2
        case "transpose", [int(a), int(b)] if {a, b} in ({1, 2}, {1, -1}) and axis == 1:
            return -1 if -1 in (a, b) else 2
        case "permute", [*order] if axis in order:
            place = order.index(axis)
            return -1 if place == len(order) - 1 else place
    return None


def cut_of(name: str, args: Sequence[Value], axis: int = 1) -> ChannelCut | None:
    """The cut by a function of this name with these arguments after the tensor; None for other functions."""
    channels = CHANNELS if axis == 1 else (axis,)
    match name, _plain(args):
        case "chunk", [int(parts), int(dim), *_] if dim in channels:
            return ChannelCut(parts=parts)
        case "split", [int(size), int(dim), *_] if dim in channels and size > 0:
            return ChannelCut(size=size)
        case "reshape" | "view", [_, int(parts), _, *_] if parts > 1 and axis == 1:
            return ChannelCut(parts=parts)
        case "rearrange", [str(pattern), *_] if axis == 1:
            axes = NAMED.match(pattern)
            return ChannelCut(parts=3) if axes is not None and axes[1] == axes[2] else None
    return None
