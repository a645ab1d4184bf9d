"""Batches: parameters, or this rank's pieces of them, that are updated by the same operations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from inexact_muon.lmo import Ball, Spectral
from inexact_muon.lmo._base import sides
from inexact_muon.optim.decay import is_cautious
from inexact_muon.optim.finite import Flags, Number
from inexact_muon.optim.group import Group
from inexact_muon.optim.lengths import Length
from inexact_muon.optim.rows import Rows, few
from inexact_muon.optim.stacks import Stacks
from inexact_muon.polar.batching import work
from inexact_muon.views import View
from inexact_muon.views.blocks import Cut

STAGED = ("before", "after", "decay", "fixed_norm")
"""Group options of stages around the oracle."""

COMPOSING = (
    *("algorithm", "ball", "length", "view", "nesterov", "momentum_init", "maximize", "radius", "scale"),
    *STAGED,
)
"""Group options that determine how batches are composed or what they cache."""


@dataclass(eq=False)
class Member:
    """One parameter in a step, as this rank holds it.

    Attributes:
        piece: the parameter itself, or this rank's piece, sharing memory.
        buffers: momentum, or AdamW's two moments; pieces like `piece`.
        gradient: of the piece, in this step.
        place: which rank holds which piece (`parallel.place.Place`); None without other ranks.
        owner: the rank that computes the direction.
        numbers: members with the same one have groups with equal lr, momentum, ... (`stepplan.NUMBERS`).
        before, after: stages around the oracle (`optim.stages`).
        stage_state: their states, pieces like `piece` or numbers for each row or matrix.
    """

    p: Tensor
    group: Group
    state: dict[str, Any]
    piece: Tensor
    buffers: tuple[Tensor, ...]
    ball: Ball
    length: Length
    view: View
    gradient: Tensor | None = None
    place: Any = None
    owner: int = 0
    numbers: int = 0
    before: tuple[Any, ...] = ()
    after: tuple[Any, ...] = ()
    stage_state: dict[str, Tensor] = field(default_factory=dict)

    @cached_property
    def staged(self) -> bool:
        """Whether stages decide the step beside Algorithm 1: the oracle's answers then come back as they are."""
        return bool(self.before or self.after or self.group["fixed_norm"] or is_cautious(self.group))

    @cached_property
    def whole(self) -> Cut:
        """How the whole parameter is cut into matrices."""
        shape = tuple(self.p.shape)
        return Cut(self.view, shape, (0,) * len(shape), shape)

    @cached_property
    def here(self) -> Cut:
        """How the piece is."""
        return self.whole if self.place is None else Cut(self.view, self.place.size, self.place.first, self.place.shape)

    @cached_property
    def compute_dtype(self) -> torch.dtype:
        """The dtype in which the oracle multiplies; that of the momentum for balls that do not."""
        buffer = self.buffers[0]
        if not isinstance(self.ball, Spectral) or not self.p.numel():
            return buffer.dtype
        return self.ball.polar.compute_dtype(buffer.new_empty(()).expand(self.whole.shapes[0]))

    @property
    def kind(self) -> tuple[Any, ...]:
        """Key of the batch: members of one batch have equal kinds."""
        group = self.group
        switches = (group["nesterov"], group["momentum_init"], group["maximize"])
        stages = (self.before, self.after, group["fixed_norm"], group["decay"], self.numbers if self.staged else 0)
        return (self.ball, self.length, self.piece.dtype, self.buffers[0].dtype, self.piece.device, *switches, *stages)

    @property
    def work(self) -> int:
        """Bytes of work space that a step may need where the matrices are whole."""
        oracle = work(self.buffers[0], self.compute_dtype if isinstance(self.ball, Spectral) else torch.float32)
        return oracle + self.stage_work(self.piece.numel())

    def stage_work(self, entries: int) -> int:
        """Bytes of work space that its stages may need for this many entries: answers, weights, a state and results."""
        return 6 * entries * max(4, self.piece.element_size()) if self.staged else 0


@dataclass(eq=False)
class Part:
    """Members of a batch whose groups have equal numbers, so that one number serves all of them.

    Attributes:
        index: their indices in the batch.
        whole: whether they are all of the batch, in its order.
        large: entries from which a tensor gets operations of its own.
        group: a group with their numbers.
    """

    members: list[Member]
    index: list[int]
    whole: bool
    large: int

    def __post_init__(self) -> None:
        self.group = self.members[0].group
        self.pieces = [m.piece for m in self.members]
        self.buffers = [m.buffers[0] for m in self.members]
        self.steps = [m.state["step"] for m in self.members]

    @cached_property
    def small(self) -> list[int]:
        """The members whose tensors are joined."""
        return few([p.numel() for p in self.pieces], self.large)

    @cached_property
    def together(self) -> bool:
        """Whether that is the whole batch."""
        return self.whole and len(self.small) == len(self.pieces)

    @cached_property
    def rows(self) -> Rows:
        """The rows of their tensors."""
        return Rows.of({}, "", [self.index[j] for j in self.small], [self.pieces[j] for j in self.small])


@dataclass(eq=False)
class Batch:
    """Members of one kind.

    Attributes:
        flags: finite flags of the members, on an accelerator; None if the host knows that all gradients are finite.
        stacks: their matrices, if they are whole on this rank or it works on its own blocks.
        route: how ranks compute the directions (`optim.owned`, `optim.collective`); None for this rank alone.
        step_factors: cached `step_factor` of each matrix of each member, if it depends on shapes only.
        layout: cached layout of the members for their stages (`stages.layout.Arrangement`).
        rows: cached `Rows` of their inputs.
    """

    members: list[Member]
    stacks: Stacks | None = None
    route: Any = None
    flags: Flags | None = None
    step_factors: list[list[Number]] | None = None
    layout: Any = None
    rows: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def parts(self) -> list[Part]:
        """The members by their numbers."""
        alike: dict[int, list[int]] = {}
        for k, member in enumerate(self.members):
            alike.setdefault(member.numbers, []).append(k)
        whole = len(alike) == 1
        return [Part([self.members[k] for k in index], index, whole, self.large) for index in alike.values()]

    @cached_property
    def steps(self) -> tuple[list[Tensor], list[Tensor]]:
        """The step counts of the members, and ones to add: torch would make a tensor of a number for each of them."""
        counts = [m.state["step"] for m in self.members]
        return counts, [torch.ones_like(counts[0])] * len(counts) if counts else []

    @cached_property
    def ball(self) -> Ball:
        """That of the members; with the oracle itself if `auto` has chosen one for all their shapes."""
        first = self.members[0]
        return settled(first.ball, [shape for m in self.members for shape in m.whole.shapes], first.buffers[0])

    def __post_init__(self) -> None:
        # Entries from which a tensor gets operations of its own; more where every rank updates all parameters.
        self.large = Rows.LARGE if self.route is None else Rows.MANY
        self.staged = bool(self.members) and self.members[0].staged  # all or none are
        self.before = self.members[0].before if self.staged else ()


def settled(ball: Ball, shapes: Iterable[Sequence[int]], like: Tensor) -> Ball:
    """The ball with the oracle that `auto` has chosen for all of these shapes; itself if there are several."""
    if not isinstance(ball, Spectral):
        return ball
    polar = ball.polar.only([sides(shape) for shape in shapes if 0 not in shape], like)
    return ball if polar is ball.polar else replace(ball, polar=polar)
