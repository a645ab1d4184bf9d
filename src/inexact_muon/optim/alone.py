"""The step of one process: what moves together, what the balls answer, and AdamW for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from inexact_muon.lmo import Spectral
from inexact_muon.lmo._base import sides
from inexact_muon.optim.adamw import adamw_, by_options
from inexact_muon.optim.batches import Batch, Member, chunks
from inexact_muon.optim.finite import Flags, hosted, looked
from inexact_muon.optim.groups import Groups
from inexact_muon.polar import Auto

Entry = tuple[dict[str, Any], Tensor]
"""(group, parameter)"""


COMPOSING = ("ball", "length", "view", "nesterov", "momentum_init", "maximize", "radius", "scale")
"""Options of a group on which the composition of batches, or what they keep, depends."""


@dataclass
class Alone:
    """Batches are made once and used until groups, parameters or states change."""

    _plan: tuple[Any, list[Member], list[list[Batch]]] | None = None

    def batches(self, optimizer: Groups, entries: Sequence[Entry]) -> list[list[Batch]]:
        """What moves together. Where the host may look, only what has a finite gradient; elsewhere flags say it."""
        options = tuple(tuple(group[k] for k in COMPOSING) for group in optimizer.param_groups)
        key = (options, tuple((id(p), p.shape, p.dtype, p.device) for _, p in entries))
        known = self._plan is not None and self._plan[0] == key
        if not known or not all(optimizer.state[m.p] is m.state for m in self._plan[1]):  # type: ignore[index]
            members = [_member(optimizer, group, p) for group, p in entries]
            self._plan = (key, members, list(chunks(members, optimizer.memory_limit)))
        assert self._plan is not None
        _, members, made = self._plan
        here = [member for member in members if hosted(member.p)]
        if here:
            fine = looked([m.p.grad for m in here], [m.state["momentum_buffer"].dtype for m in here])
            if not all(fine):
                bad = [member for member, finite in zip(here, fine, strict=True) if not finite]
                for member in bad:
                    member.state["skipped"] += 1
                rest = [member for member in members if not any(member is other for other in bad)]
                return list(chunks(rest, optimizer.memory_limit))
        if len(here) < len(members):
            self._flag([batch for chunk in made for batch in chunk if not hosted(batch.members[0].p)])
        return made

    @staticmethod
    def _flag(batches: Sequence[Batch]) -> None:
        """Flags of the members of all batches, one vector for each device."""
        for device in dict.fromkeys(batch.members[0].p.device for batch in batches):
            some = [batch for batch in batches if batch.members[0].p.device == device]
            members = [member for batch in some for member in batch.members]
            dtypes = [member.state["momentum_buffer"].dtype for member in members]
            flags, first = Flags.of([member.p.grad for member in members], dtypes), 0
            for batch in some:
                batch.flags = Flags(
                    *(x.narrow(0, first, len(batch.members)) for x in (flags.vector, flags.on, flags.off))
                )
                first += len(batch.members)

    @staticmethod
    def show(optimizer: Groups, batch: Batch, given: Sequence[Tensor], found: Sequence[Tensor]) -> None:
        """Shows the answers that are wanted, but for members whose gradient is not finite."""
        for k, (member, m, z) in enumerate(zip(batch.members, batch.joined(given), batch.joined(found), strict=True)):
            if id(member.p) in optimizer.wanted and (batch.flags is None or bool(batch.flags.vector[k])):
                pairs = zip(member.view.cut(m), member.view.cut(z.to(m.dtype)), strict=True)
                answers = [(batch.ball, a, -batch.ball.radius(a.shape) * b) for a, b in pairs if a.numel()]
                if answers:
                    optimizer.show(id(member.p), answers)

    @staticmethod
    def sizes(optimizer: Groups, batch: Batch, zs: Sequence[Tensor], lengths: Sequence[float]) -> None:
        """Notes the sizes of updates and weights that are sampled."""
        for member, z, length in zip(batch.members, zs, lengths, strict=True):
            if id(member.p) in optimizer.telemetry.chosen:
                rate = float(member.group["lr"]) * length
                sizes = [float(x.double().square().sum()) for x in (z, member.p)]
                optimizer.telemetry.sizes(id(member.p), rate * rate * sizes[0], sizes[1])

    @staticmethod
    def adamw(optimizer: Groups, entries: Sequence[Entry]) -> None:
        """One step of the parameters that AdamW moves."""
        for p in (p for _, p in entries if "exp_avg_sq" not in optimizer.state[p]):
            optimizer.state_of(p, ("exp_avg", "exp_avg_sq"))
        mine = [(p, optimizer.state[p], group) for group, p in entries]
        here = [entry for entry in mine if hosted(entry[0])]
        if here:
            found = looked([p.grad for p, _, _ in here], [state["exp_avg"].dtype for _, state, _ in here])
            bad = [entry for entry, fine in zip(here, found, strict=True) if not fine]
            for _, state, _ in bad:
                state["skipped"] += 1
            mine = [entry for entry in mine if not any(entry is other for other in bad)]
        for some in by_options(mine):
            before = [(p, g, p.detach().clone()) for p, _, g in some if id(p) in optimizer.telemetry.chosen]
            dtypes = [state["exp_avg"].dtype for _, state, _ in some]
            adamw_(some, None if hosted(some[0][0]) else Flags.of([p.grad for p, _, _ in some], dtypes))
            for p, group, old in before:
                moved = old.double() * (1.0 - float(group["lr"]) * group["weight_decay"]) - p.double()
                optimizer.telemetry.sizes(id(p), float(moved.square().sum()), float(old.double().square().sum()))


def _member(optimizer: Groups, group: dict[str, Any], p: Tensor) -> Member:
    state, ball, view = optimizer.state_of(p, ("momentum_buffer",)), optimizer.ball(group), optimizer.view(group)
    if isinstance(ball, Spectral) and isinstance(ball.polar, Auto):
        chosen = {ball.polar.at(*sides(shape), p.device) for shape in view.shapes(p.shape) if 0 not in shape}
        ball = replace(ball, polar=chosen.pop()) if len(chosen) == 1 else ball
    return Member(p, state, group, ball, optimizer.length(group), view)
