"""The step without a process group: batches, observation of directions, and AdamW."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from inexact_muon.lmo import Spectral
from inexact_muon.lmo._base import sides
from inexact_muon.optim.adamw import adamw_, by_options
from inexact_muon.optim.batches import Batch, Member, chunks
from inexact_muon.optim.finite import Flags, finite_on_host, is_host_readable
from inexact_muon.optim.groups import Groups
from inexact_muon.polar import Auto

Entry = tuple[dict[str, Any], Tensor]
"""(group, parameter)"""


COMPOSING = ("ball", "length", "view", "nesterov", "momentum_init", "maximize", "radius", "scale")
"""Group options that determine how batches are composed or what they cache."""


@dataclass
class SingleProcess:
    """The step of one process. Batches are cached until groups, parameters or states change."""

    _plan: tuple[Any, list[Member], list[list[Batch]]] | None = None

    def batches(self, optimizer: Groups, entries: Sequence[Entry]) -> list[list[Batch]]:
        """Batches within the memory limit.

        Parameters on the CPU whose gradient is not finite are counted as skipped and left out; elsewhere flags mark
        them.
        """
        options = tuple(tuple(group[k] for k in COMPOSING) for group in optimizer.param_groups)
        key = (options, tuple((id(p), p.shape, p.dtype, p.device) for _, p in entries))
        known = self._plan is not None and self._plan[0] == key
        if not known or not all(optimizer.state[m.p] is m.state for m in self._plan[1]):  # type: ignore[index]
            members = [_member(optimizer, group, p) for group, p in entries]
            self._plan = (key, members, list(chunks(members, optimizer.memory_limit)))
        assert self._plan is not None
        _, members, made = self._plan
        finite = finite_or_skipped([(member.p, member.state) for member in members], "momentum_buffer")
        if not all(finite):
            rest = [member for member, fine in zip(members, finite, strict=True) if fine]
            made = list(chunks(rest, optimizer.memory_limit))
        flagged = [batch for chunk in made for batch in chunk if not is_host_readable(batch.members[0].p)]
        for device in dict.fromkeys(batch.members[0].p.device for batch in flagged):  # one vector of flags per device
            some = [batch for batch in flagged if batch.members[0].p.device == device]
            members = [member for batch in some for member in batch.members]
            dtypes = [member.state["momentum_buffer"].dtype for member in members]
            flags, first = Flags.of([member.p.grad for member in members], dtypes), 0
            for batch in some:
                parts = (x.narrow(0, first, len(batch.members)) for x in (flags.vector, flags.on, flags.off))
                batch.flags = Flags(*parts)
                first += len(batch.members)
        return made

    @staticmethod
    def observe(optimizer: Groups, batch: Batch, ms: Sequence[Tensor], zs: Sequence[Tensor]) -> None:
        """Measure and report the wanted directions, except those of gradients that are not finite."""
        pairs = zip(batch.per_parameter(ms), batch.per_parameter(zs), strict=True)
        for k, (member, (m, z)) in enumerate(zip(batch.members, pairs, strict=True)):
            if id(member.p) in optimizer.wanted and (batch.flags is None or bool(batch.flags.vector[k])):
                optimizer.observe(id(member.p), batch.ball, member.view, m, z)

    @staticmethod
    def record_sizes(optimizer: Groups, batch: Batch, zs: Sequence[Tensor], lengths: Sequence[float]) -> None:
        """Record update and weight norms of sampled parameters."""
        for member, z, length in zip(batch.members, zs, lengths, strict=True):
            if id(member.p) in optimizer.telemetry.chosen:
                optimizer.telemetry.record_sizes(id(member.p), z, member.p, float(member.group["lr"]) * length)

    @staticmethod
    def adamw(optimizer: Groups, entries: Sequence[Entry]) -> None:
        """Update the AdamW parameters."""
        for p in (p for _, p in entries if "exp_avg_sq" not in optimizer.state[p]):
            optimizer.state_of(p, ("exp_avg", "exp_avg_sq"))
        finite = finite_or_skipped([(p, optimizer.state[p]) for _, p in entries], "exp_avg")
        ready = [(p, optimizer.state[p], group) for (group, p), fine in zip(entries, finite, strict=True) if fine]
        for some in by_options(ready):
            dtypes = [state["exp_avg"].dtype for _, state, _ in some]
            flags = None if is_host_readable(some[0][0]) else Flags.of([p.grad for p, _, _ in some], dtypes)
            adamw_(some, flags, optimizer.telemetry, [id(p) for p, _, _ in some])


def finite_or_skipped(entries: Sequence[tuple[Tensor, dict[str, Any]]], key: str) -> list[bool]:
    """Whether to update each (parameter, state): False on the CPU if its gradient is not finite, which is counted.

    Args:
        key: the state tensor whose dtype the gradient is cast to.
    """
    finite = [True] * len(entries)
    readable = [i for i, (p, _) in enumerate(entries) if is_host_readable(p)]
    if readable:
        dtypes = [entries[i][1][key].dtype for i in readable]
        for i, fine in zip(readable, finite_on_host([entries[i][0].grad for i in readable], dtypes), strict=True):
            finite[i] = fine
            if not fine:
                entries[i][1]["skipped"] += 1
    return finite


def _member(optimizer: Groups, group: dict[str, Any], p: Tensor) -> Member:
    state, ball, view = optimizer.state_of(p, ("momentum_buffer",)), optimizer.ball(group), optimizer.view(group)
    if isinstance(ball, Spectral) and isinstance(ball.polar, Auto):
        chosen = {ball.polar.at(*sides(shape), p.device) for shape in view.shapes(p.shape) if 0 not in shape}
        ball = replace(ball, polar=chosen.pop()) if len(chosen) == 1 else ball
    return Member(p, state, group, ball, optimizer.length(group), view)
