"""How the output of a layer is cut along its channels: by chunk, split, reshape or einops."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

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


def cut_of(name: str, args: Sequence[Value]) -> ChannelCut | None:
    """The cut by a function of this name with these arguments after the tensor; None for other functions."""
    numbers = [value.objects[0] if value.known else None for value in args]
    match name, numbers:
        case "chunk", [int(parts), int(dim), *_] if dim in CHANNELS:
            return ChannelCut(parts=parts)
        case "split", [int(size), int(dim), *_] if dim in CHANNELS and size > 0:
            return ChannelCut(size=size)
        case "reshape" | "view", [_, int(parts), _, *_] if parts > 0:
            return ChannelCut(parts=parts)
        case "rearrange", [str(pattern), *_]:
            axes = NAMED.match(pattern)
            return ChannelCut(parts=3) if axes is not None and axes[1] == axes[2] else None
    return None
