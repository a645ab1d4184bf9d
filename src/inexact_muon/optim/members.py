"""A parameter as a member of a step: its state, piece, oracle and stages."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from inexact_muon.dtensors import local
from inexact_muon.lmo import Spectral
from inexact_muon.lmo._base import sides
from inexact_muon.optim.batches import Member
from inexact_muon.optim.groups import Groups
from inexact_muon.optim.loading import BUFFERS
from inexact_muon.optim.options import check_buffers
from inexact_muon.optim.stages.step import initialise
from inexact_muon.polar import Auto

if TYPE_CHECKING:
    from inexact_muon.optim.ranks import Ranks


def member_of(optimizer: Groups, group: dict[str, Any], p: Tensor, numbers: int, ranks: Ranks | None) -> Member:
    """The member of a parameter; makes what is missing of its state.

    Args:
        numbers: `Member.numbers`.
    """
    keys = BUFFERS[group["algorithm"]]
    optimizer._check_parameter(p, group)  # it may have come from another group
    state, ball, view = optimizer.state_of(p, keys), optimizer.ball(group), optimizer.view(group)
    check_buffers(p, [state[key] for key in keys])
    place = ranks.team.place(p) if ranks is not None and ranks.team.handles(p) else None
    if place is None and isinstance(ball, Spectral) and isinstance(ball.polar, Auto):
        chosen = {ball.polar.at(*sides(shape), p.device) for shape in view.shapes(p.shape) if 0 not in shape}
        ball = replace(ball, polar=chosen.pop()) if len(chosen) == 1 else ball
    before, after = optimizer.before(group), optimizer.after(group)
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
