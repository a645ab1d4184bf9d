"""What ranks must agree on before a step, and what they tell each other after it.

Every rank that holds a parameter sends the same messages in the same order, whatever its own gradient is like: whether
there is one and whether it is finite is decided together, by one small reduction for each set of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from inexact_muon.optim.layout import gathered
from inexact_muon.optim.telemetry import Telemetry
from inexact_muon.parallel.place import Place, local
from inexact_muon.parallel.wire import Wire

Entry = tuple[dict[str, Any], Tensor]
Locate = Callable[[Tensor], Place | None]


def agree(
    entries: Sequence[Entry],
    locate: Locate,
    wire: Wire,
    named: Callable[[], Iterable[tuple[str, Tensor, Any]]],
    dtype: torch.dtype | None,
) -> tuple[list[Entry], dict[int, bool]]:
    """(entries with a gradient, whether it is finite for those that several ranks hold).

    Raises:
        ValueError: on all ranks, if some have a gradient for a parameter and others have none.
    """
    finite: dict[int, bool] = {}
    for place, some in _by_ranks([p for _, p in entries], locate).values():
        flags = torch.tensor([_flags(p, dtype) for p in some], dtype=torch.uint8, device=some[0].device)
        for p, (there, missing, bad) in zip(some, wire.reduce(flags, place.groups, largest=True).tolist(), strict=True):
            if there and missing:
                name = next(name for name, other, _ in named() if other is p)
                raise ValueError(
                    f"parameter {name} of shape {tuple(p.shape)} has a gradient on some ranks and none on others; "
                    "nothing was changed: give it one everywhere (zeros will do), or none anywhere"
                )
            finite[id(p)] = not bad
    return [(group, p) for group, p in entries if p.grad is not None], finite


def settle(telemetry: Telemetry, entries: Sequence[Entry], locate: Locate, wire: Wire) -> None:
    """Samples from what the ranks noted, the same on all of them."""
    sampled = [p for _, p in entries if id(p) in telemetry.notes]
    shared = _by_ranks(sampled, locate)
    totals = {id(p): telemetry.notes[id(p)] for p in sampled}
    for place, some in shared.values():
        rows = torch.tensor([totals[id(p)] for p in some], dtype=torch.float64, device=some[0].device)
        totals.update(zip(map(id, some), wire.reduce(rows, place.groups).tolist(), strict=True))
    for p in sampled:
        telemetry.end(p.numel(), id(p), totals[id(p)])


def square(x: Tensor, place: Place | None) -> float:
    """The square of the norm of what this rank has to count of x: each piece once."""
    if place is None:
        return float(gathered(torch.linalg.vector_norm(x.double()))) ** 2
    return float(local(x).double().square().sum()) if place.copy == 0 else 0.0


def _flags(p: Tensor, dtype: torch.dtype | None) -> tuple[bool, bool, bool]:
    """(there is a gradient, there is none, it is not finite) as this rank sees it."""
    if p.grad is None:
        return False, True, False
    gradient = local(p.grad.to(dtype or p.dtype))
    # A sum of squares is one fast pass; only if that is not finite the entries may still be.
    fine = bool(torch.linalg.vector_norm(gradient).isfinite()) or bool(gradient.isfinite().all())
    return True, False, not fine


def _by_ranks(params: Sequence[Tensor], locate: Locate) -> dict[tuple[Any, ...], tuple[Place, list[Tensor]]]:
    """Parameters that several ranks hold, by these ranks, in an order that all ranks share."""
    found: dict[tuple[Any, ...], tuple[Place, list[Tensor]]] = {}
    for p in params:
        place = locate(p)
        if place is not None and place.shared:
            found.setdefault((place.ranks, len(place.groups)), (place, []))[1].append(p)
    return dict(sorted(found.items()))
