"""Telemetry of what stages make of the oracle's answers."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from torch import Tensor

from inexact_muon.dtensors import whole_of
from inexact_muon.optim.batches import Batch
from inexact_muon.optim.stages.pieces import Pieces


def measure_applied(
    batch: Batch, prepared: Batch, inputs: Sequence[Tensor], z: Pieces, norms: Tensor, optimizer: Any
) -> Generator[None, None, None]:
    """Measure directions after their stages, with the Frobenius norms that they had before, on the owners.

    Args:
        prepared: members whose LMO inputs this rank has prepared.
        inputs: those, before the stages.
        norms: squares of the norms before the stages.
    """
    ratio = z.spread((norms / z.squares().clamp_min(z.tiny)).sqrt_())
    stacks = [x * factor for x, factor in zip(z.stacks, ratio, strict=True)]
    chosen = [k for k, m in enumerate(batch.members) if id(m.p) in optimizer.telemetry.chosen]
    if not chosen:
        return
    members = [batch.members[k] for k in chosen]
    directions = [batch.layout.joined(k, stacks) for k in chosen]
    known = {id(m.p): x for m, x in zip(prepared.members, inputs, strict=True)}
    place = members[0].place
    if place is not None and len(place.pieces) > 1:
        wholes = yield from optimizer.ranks().on_owners(members, ([known[id(m.p)] for m in members], directions))
        for member, m, direction in wholes:
            optimizer.observe_applied(member, m, direction)
        return
    for member, direction in zip(members, directions, strict=True):
        m = known.get(id(member.p))
        if m is not None and place is not None and place.source is not None:
            m = whole_of(m, member.place.source)
        if m is not None and (place is None or member.owner == member.place.me):
            optimizer.observe_applied(member, m, direction)
