"""Base classes of stages: what happens to the LMO's input before the oracle, and to its answer after it.

A stage is a frozen value. Its state is in the optimizer's state of each parameter, under the names of `state`: entries
as the momentum (and sharded as it is), or a number for each row. Which ranks hold what, parameters that are skipped and
checkpoints are not its business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from inexact_muon._text import write

Extent = Literal["entries", "rows", "matrices"]
"""What a state tensor has a number for."""


@dataclass(frozen=True)
class Stage(ABC):
    """Base class of `Before` and `After`."""

    name: ClassVar[str]
    state: ClassVar[Mapping[str, Extent]] = {}

    def __str__(self) -> str:
        return write(self)


@dataclass(frozen=True)
class Before(Stage):
    """Changes the LMO's input, entry by entry. Its state, if any, is one tensor of entries."""

    @abstractmethod
    def __call__(self, m: Tensor, g: Tensor, old: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """(LMO input, new state) from the momentum, the gradient and the old state of several parameters."""


@dataclass(frozen=True)
class After(Stage):
    """Changes the oracle's answers."""

    @abstractmethod
    def __call__(self, z: Any) -> None:
        """Change the answers in `z`, a `stages.pieces.Pieces`."""


def check_beta(stage: Stage, beta2: float, eps: float) -> None:
    """Validate the weight of an old average and the term of its denominator."""
    if not 0.0 <= beta2 < 1.0:
        raise ValueError(f"{stage.name}: beta2 must lie in [0, 1), got {beta2}")
    if not 0.0 <= eps < 1.0:
        raise ValueError(f"{stage.name}: eps must lie in [0, 1), got {eps}")
