"""A polar method run by torch.compile: the same map with fewer passes over memory.

Each method and set of shapes has a compiled function with its own code object: dynamo counts recompilations per code
object and silently falls back to eager after eight, and raising that limit would change a global setting. Not timed on
a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from types import FunctionType
from typing import Any, ClassVar

import torch
from torch import Tensor

from inexact_muon.polar._base import PolarMethod
from inexact_muon.polar.exact import Decomposed
from inexact_muon.polar.wrapping import Wrapping

BACKEND = "inductor"
_numbers = count()


@dataclass(frozen=True)
class Compiled(Wrapping):
    """`method`, compiled once for each set of shapes.

    The result is that of the method up to rounding: fused operations round less often.

    Attributes:
        method: the polar method; dtype, form and normalise are its own.
    """

    name: ClassVar[str] = "compiled"

    def __post_init__(self) -> None:
        if isinstance(self.method, Decomposed | Compiled) or not isinstance(self.method, PolarMethod):
            raise ValueError(f"compiled: method must be a polynomial or rational method, got {self.method}")
        super().__post_init__()

    def solve(self, xs: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
        layout = tuple((tuple(x.shape), x.stride(), x.dtype) for x in xs)
        return _compiled(self.method, dtype, layout, xs[0].device, BACKEND)(xs)


@lru_cache(maxsize=256)
def _compiled(
    method: PolarMethod, dtype: torch.dtype, layout: tuple[Any, ...], device: torch.device, backend: str
) -> Callable[[list[Tensor]], list[Tensor]]:
    def solve(xs: list[Tensor]) -> list[Tensor]:
        return method.solve(xs, dtype)

    solve([torch.ones(1, 1, 2)])  # evaluates cached properties, which dynamo cannot trace; wide: also of the Gram form
    code = solve.__code__.replace(co_name=f"solve_{next(_numbers)}")
    own = FunctionType(code, solve.__globals__, code.co_name, solve.__defaults__, solve.__closure__)
    traced: Callable[[list[Tensor]], list[Tensor]] = torch.compile(own, backend=backend, dynamic=False)
    return traced
