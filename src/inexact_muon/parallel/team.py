"""The ranks of one optimizer: how they share the work, where its parameters lie, and what was sent."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor

from inexact_muon.parallel.place import Place, place_of
from inexact_muon.parallel.strategies import Strategy, parse
from inexact_muon.parallel.wire import Wire


class Team:
    """A strategy and the ranks that follow it.

    Attributes:
        strategy: how they share the work.
        process_group: ranks that hold copies of plain tensors, for strategies that divide these; None is all.
        wire: counts what this rank sends.
    """

    def __init__(self, strategy: Strategy | str, process_group: Any = None) -> None:
        self.strategy = parse(strategy) if isinstance(strategy, str) else strategy
        if not isinstance(self.strategy, Strategy):
            raise TypeError(f"strategy must be a Strategy or its text, got {type(strategy).__name__}")
        self.process_group = process_group
        self.wire = Wire()
        self._places: dict[int, Place | None] = {}

    def place(self, p: Tensor) -> Place | None:
        """Where a parameter lies; a plain one is on every rank of the process group if the strategy says so."""
        if id(p) not in self._places:
            together = self.strategy.copies and dist.is_available() and dist.is_initialized()
            self._places[id(p)] = place_of(p, (self.process_group or dist.group.WORLD) if together else None)
        return self._places[id(p)]

    def again(self) -> Team:
        """The same for a copy of the optimizer, which has other tensors."""
        return Team(self.strategy, self.process_group)
