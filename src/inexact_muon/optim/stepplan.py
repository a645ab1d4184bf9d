"""The plan of a step: members, batches and chunks, made once and checked at each step against what it depends on."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from inexact_muon.dtensors import local
from inexact_muon.optim import finite
from inexact_muon.optim.adamw import NUMBERS, by_options
from inexact_muon.optim.batches import COMPOSING, Batch, Member, settled
from inexact_muon.optim.finite import Flags, usable
from inexact_muon.optim.group import Group
from inexact_muon.optim.options import BUFFERS
from inexact_muon.optim.stacks import Stacks
from inexact_muon.optim.telemetry import Entry
from inexact_muon.polar.batching import limit_on, within

if TYPE_CHECKING:
    from inexact_muon.optim.stages.step import Staged


class Flagged:
    """Batches on an accelerator whose flags are set together.

    Their numbers stay where they are, so that the view of each, which counts it, is made once.
    """

    def __init__(self, batches: Sequence[Batch], shared: dict[int, tuple[Any, int]]) -> None:
        members = [m for batch in batches for m in batch.members]
        device, count = members[0].piece.device, len(members)
        agreed = [shared[id(m.p)] for m in members if id(m.p) in shared]
        self.members, self.batches = members, batches
        self.set = agreed[0][0] if agreed else None
        self.index = torch.tensor([k for _, k in agreed]).to(device)
        numbers = torch.empty((2, count), device=device)
        self.on, self.off = numbers.unbind()
        views, low = numbers.view(-1).unbind(), 0
        for batch in batches:
            high = low + len(batch.members)
            counts = [*views[low:high], *views[count + low : count + high]]
            counters = [m.state[key] for key in ("step", "skipped") for m in batch.members]
            batch.flags = Flags(self.on, self.on.narrow(0, low, high - low), counts, counters)
            low = high

    def update(self) -> None:
        """Set the flags, from those that ranks agreed on or from the gradients."""
        if self.set is not None:
            vector = self.set.finite.index_select(0, self.index)
        else:
            vector = usable([m.gradient for m in self.members], [m.buffers[0].dtype for m in self.members])  # type: ignore[misc]
        self.on.copy_(vector)
        torch.logical_not(vector, out=self.off)
        vectors = vector.split_with_sizes([len(batch.members) for batch in self.batches])
        for batch, flags in zip(self.batches, vectors, strict=True):
            batch.flags.vector = flags  # type: ignore[union-attr]


@dataclass
class StepPlan:
    """Batches of a step, and references to what they were made from, so that no id of it is used again meanwhile.

    Attributes:
        chunks: batches that are processed together, one chunk after another.
        adamw: batches of AdamW.
        sets: entries that ranks agree on (`agreement.Shared`).
        shared: id of a parameter -> (its set, its index there).
    """

    members: list[Member]
    chunks: list[list[Batch]]
    adamw: list[Batch]
    depends: list[Any] = field(default_factory=list)
    kinds: list[Any] = field(default_factory=list)
    sets: list[Any] = field(default_factory=list)
    shared: dict[int, tuple[Any, int]] = field(default_factory=dict)

    @cached_property
    def agreed(self) -> list[tuple[Any, int] | None]:
        """(set, index there) of each member; None for those that ranks need not agree on."""
        return [self.shared.get(id(m.p)) for m in self.members]

    @cached_property
    def on_host(self) -> list[tuple[list[Member], list[torch.dtype]]]:
        """(members, dtypes of their states) of each device whose gradients this rank checks by itself on the host."""
        devices: dict[torch.device, list[Member]] = {}
        for m in self.members:
            if id(m.p) not in self.shared and m.piece.device.type in finite.HOST_READABLE:
                devices.setdefault(m.piece.device, []).append(m)
        return [(members, [m.buffers[0].dtype for m in members]) for members in devices.values()]

    @cached_property
    def flagged(self) -> list[Flagged]:
        """Batches on accelerators, by device and by the set of ranks that agree on their gradients."""
        alike: dict[Any, list[Batch]] = {}
        for batch in chain(*self.chunks, self.adamw):
            first = batch.members[0]
            if first.piece.device.type not in finite.HOST_READABLE:
                alike.setdefault((first.piece.device, id(self.shared.get(id(first.p), [None])[0])), []).append(batch)
        return [Flagged(batches, self.shared) for batches in alike.values()]

    def begin(self) -> list[Member]:
        """Let each member have its gradient of this step; returns those on the host that is not finite.

        Elsewhere flags mark them, for each batch.
        """
        for member, agreed in zip(self.members, self.agreed, strict=True):
            member.gradient = member.p.grad if agreed is None else agreed[0].gradients[agreed[1]]
        bad = []
        known = {id(s): s.finite for s in self.sets if isinstance(s.finite, list) and not all(s.finite)}
        if known:
            rows = [(m, *agreed) for m, agreed in zip(self.members, self.agreed, strict=True) if agreed is not None]
            bad = [m for m, shared, k in rows if id(shared) in known and not shared.finite[k]]
        for members, dtypes in self.on_host:
            fine = usable([m.gradient for m in members], dtypes).tolist()  # type: ignore[misc]
            if not all(fine):
                bad += [m for m, ok in zip(members, fine, strict=True) if not ok]
        for flagged in self.flagged:
            flagged.update()
        return bad

    def finite_ids(self) -> set[int]:
        """Ids of the parameters that are updated; reads the flags."""
        ids = set()
        for batch in chain(*self.chunks, self.adamw):
            fine = [True] * len(batch.members) if batch.flags is None else batch.flags.vector.tolist()
            ids |= {id(m.p) for m, ok in zip(batch.members, fine, strict=True) if ok}
        return ids


def dependencies(optimizer: Any, entries: Sequence[Entry]) -> tuple[list[Any], list[Any]]:
    """(objects that a plan depends on by identity, values that it depends on)

    Plain loops: this runs at every step, and a call for each parameter would be most of its time.
    """
    objects: list[Any] = [*optimizer.param_groups]
    values: list[Any] = [optimizer.memory_limit, alike(optimizer.param_groups)]
    for group in optimizer.param_groups:
        values += map(group.__getitem__, COMPOSING)
    for group, p in entries:
        objects += (group, p, p.dtype)
        values += (p.shape, p.device)
        if hasattr(p, "_spec"):
            objects += (p._spec, p._local_tensor)  # type: ignore[attr-defined]
    for state in optimizer.state.values():
        objects.append(state)
        objects += state.values()
    return objects, values


def alike(groups: Sequence[Mapping[str, Any]]) -> list[int]:
    """For each group the first one with the same numbers: one operation can update the parameters of both."""
    rows: list[list[Any]] = []
    for group in groups:
        row = []
        for key in NUMBERS:
            number = group[key]
            row.append(id(number) if isinstance(number, Tensor) else number)
        rows.append(row)
    return list(map(rows.index, rows))


def alone(members: Iterable[Member], limit: int | None) -> Iterator[list[Batch]]:
    """Batches of members that this rank works on by itself, to be processed together within the memory limit.

    Members of one kind are adjacent, in the order of their first appearance; at least one at a time.
    """
    devices: dict[torch.device, dict[tuple[Any, ...], list[Member]]] = {}
    for member in members:
        devices.setdefault(member.p.device, {}).setdefault(member.kind, []).append(member)
    for device, kinds in devices.items():
        ordered = [m for kind in kinds.values() for m in sorted(kind, key=_shape)]
        for chunk in within(((member, member.work) for member in ordered), limit_on(device, limit)):
            by_kind: dict[tuple[Any, ...], list[Member]] = {}
            for member in chunk:
                by_kind.setdefault(member.kind, []).append(member)
            yield [
                Batch(kind, Stacks(kind[0].ball, [m.here for m in kind], kind[0].buffers[0]))
                for kind in by_kind.values()
            ]


def _shape(m: Member) -> tuple[list[int], tuple[int, ...]]:
    """Sorts matrices with the same sides to each other, and those of one stack without others between them."""
    return sorted(m.piece.shape), tuple(m.piece.shape)


def single(members: Iterable[Member], limit: int | None) -> StepPlan:
    """The plan of members that no other rank holds."""
    every = list(members)
    lmo = [m for m in every if m.group["algorithm"] == "lmo"]
    return StepPlan(every, list(alone(lmo, limit)), by_options([m for m in every if m.group["algorithm"] == "adamw"]))


def interleaved(runs: Iterator[Generator[None, None, None]]) -> None:
    """Finish all runs, overlapping the computation of one with the messages of its neighbours.

    The next run sends its pieces before this one computes, and this one's results are sent while the next one computes.
    """
    started: list[Generator[None, None, None]] = []
    while True:
        new = next(runs, None)
        if new is None and not started:
            return
        started += [new] if new is not None else []
        for run in started[::-1]:  # newest first, each to its next messages
            if next(run, run) is run:  # it has ended: None is what it yields
                started.remove(run)


def member_of(optimizer: Any, group: Group, p: Tensor, numbers: int, ranks: Any) -> Member:
    """The member of a parameter; makes what is missing of its state.

    Args:
        numbers: `Member.numbers`.
        ranks: the other ranks (`ranks.Ranks`), or None.
    """
    keys = BUFFERS[group["algorithm"]]
    optimizer._check_parameter(p, group)  # it may have come from another group
    state, ball, view = optimizer.state_of(p, keys), optimizer.ball(group), optimizer.view(group)
    check_buffers(p, [state[key] for key in keys])
    place = ranks.team.place(p) if ranks is not None and ranks.team.handles(p) else None
    if place is None and group["algorithm"] == "lmo":
        ball = settled(ball, view.shapes(p.shape), state[keys[0]])
    before, after = optimizer.before(group), optimizer.after(group)
    names: list[str] = []
    if before or after or group["fixed_norm"]:
        from inexact_muon.optim.stages.step import initialise

        names = initialise(state, [*before, *after], group["fixed_norm"], view.shapes(p.shape))
    piece, *buffers = map(local, [p, *[state[key] for key in keys]])
    return Member(
        *(p, group, state, piece, tuple(buffers), ball, optimizer.length(group), view),
        place=place,
        numbers=numbers,
        before=before,
        after=after,
        stage_state={key: local(state[key]) for key in names},
    )


def check_buffers(p: Tensor, buffers: Iterable[Tensor]) -> None:
    """Validate that the state of a parameter belongs to its shape, which `p.data = ...` may have changed."""
    for buffer in buffers:
        if not isinstance(buffer, Tensor):
            raise ValueError(f"the state of a parameter of shape {tuple(p.shape)} has no tensor, but {buffer!r}")
        if buffer.shape != p.shape:
            raise ValueError(
                f"the state of a parameter of shape {tuple(p.shape)} has shape {tuple(buffer.shape)}: if the parameter "
                "was resized, remove its state, optimizer.state.pop(p)"
            )


def staged_in(batch: Batch, prepared: Batch, momenta: list[Tensor], inputs: list[Tensor]) -> Staged:
    """The stages of a batch in this step; imported with the first batch that has some."""
    from inexact_muon.optim.stages.step import Staged

    return Staged(batch, prepared, momenta, inputs)
