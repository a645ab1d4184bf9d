"""The ranks of one optimizer: strategy, placement of parameters, and communication."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from inexact_muon.dtensors import is_fake
from inexact_muon.parallel.place import Place, place_of
from inexact_muon.parallel.wire import Wire
from inexact_muon.strategies import STRATEGIES, Strategy, parse

PRECISIONS = ("state", "oracle")
"""Of momenta that ranks send."""


class Team:
    """A strategy and the ranks that execute it.

    Attributes:
        strategy: how they share the work.
        process_group: ranks that hold replicas of plain tensors, for strategies that divide these; None is all.
        precision: of momenta on the wire: "state" or "oracle", the dtype in which the oracle multiplies.
        wire: sends messages and counts the bytes.
        all: every parameter is exchanged, also in one process (EF21).
    """

    def __init__(
        self, strategy: Strategy | str, process_group: Any = None, precision: str = "state", *, all: bool = False
    ) -> None:
        if isinstance(strategy, str) and strategy.partition("(")[0].strip() == "compressed":
            raise ValueError("compressed is a separate optimizer: write EF21Muon(params, lr, up=..., down=...)")
        self.strategy = parse(strategy) if isinstance(strategy, str) else strategy
        if not isinstance(self.strategy, tuple(STRATEGIES.values())):
            raise TypeError(f"strategy must be a Strategy or its text, got {type(strategy).__name__}")
        if precision not in PRECISIONS:
            raise ValueError(f"wire must be one of {', '.join(PRECISIONS)}, got {precision!r}")
        self.process_group, self.precision, self.all = process_group, precision, all
        self.wire = Wire()
        self._places = WeakIdKeyDictionary()
        self._groups: dict[tuple[int, ...], Any] = {}

    def place(self, p: Tensor) -> Place:
        """Placement of a parameter; a plain one is replicated over the process group if the strategy says so."""
        layout = getattr(p, "_spec", None)
        replicated = self.strategy.copies and dist.is_available() and dist.is_initialized()
        known = self._places.get(p)  # type: ignore[no-untyped-call]
        if known is None or known[0] is not layout or known[1] != (tuple(p.shape), replicated):
            sharding = place_of(p, (self.process_group or dist.group.WORLD) if replicated else None)
            self._places[p] = known = (layout, (tuple(p.shape), replicated), sharding)
        return known[2]

    def handles(self, p: Tensor) -> bool:
        """Whether a parameter is a DTensor, or replicated on other ranks in a way that the strategy uses."""
        return self.all or hasattr(p, "device_mesh") or self.place(p).shared

    def group(self, place: Place) -> Any:
        """The process group of all holders; made once if there is none yet, by all of them."""
        if len(place.groups) == 1:
            return place.groups[0]
        if place.ranks == tuple(range(dist.get_world_size())):
            return dist.group.WORLD
        if place.ranks not in self._groups:
            self._groups[place.ranks] = dist.new_group(list(place.ranks), use_local_synchronization=True)
        return self._groups[place.ranks]

    def reduction_groups(self, place: Place) -> tuple[Any, ...]:
        """Groups over which a reduction reaches every holder, one after another."""
        return (self.group(place),) if place.groups and place.source is None else place.groups

    def compare(self, place: Place, lines: list[str], device: torch.device) -> None:
        """Check that all ranks of a placement describe their shared parameters by the same lines.

        Raises:
            ValueError: on all ranks, naming the first line that differs.
        """
        number = int.from_bytes(sha256("\n".join(lines).encode()).digest()[:7], "big")
        pair = torch.tensor([number, -number], device=device)
        extremes = self.wire.reduce(pair, place.groups, largest=True)
        if is_fake(extremes):
            return
        largest, smallest = extremes.tolist()
        if largest == -smallest:
            return
        known: list[tuple[int, list[str]]] = [(place.me, lines)]
        for group in place.groups:
            gathered: list[Any] = [None] * dist.get_world_size(group)
            dist.all_gather_object(gathered, known, group)
            known = [entry for entries in gathered for entry in entries]
        first, mine = min(known)
        rank, theirs = next((rank, other) for rank, other in sorted(known) if other != mine)
        i = next(i for i in range(len(mine) + 1) if mine[i : i + 1] != theirs[i : i + 1])
        here, there = ((entries[i : i + 1] or ["nothing"])[0] for entries in (mine, theirs))
        raise ValueError(
            f"parameters differ between ranks, nothing was changed: number {i} is {here} on rank {first} and "
            f"{there} on rank {rank}; build the same model and optimizer on every rank"
        )
