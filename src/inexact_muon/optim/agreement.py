"""What ranks that share parameters agree on before a step: the same parameters and options, and their gradients.

All ranks that hold a parameter must send the same messages in the same order: whether it has a gradient and whether
that is finite is agreed on by one reduction per set of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import Any

import torch
from torch import Tensor

from inexact_muon.dtensors import is_fake, local_gradients
from inexact_muon.optim import finite
from inexact_muon.optim.finite import is_finite, usable
from inexact_muon.optim.telemetry import Entry
from inexact_muon.parallel.place import Place
from inexact_muon.parallel.team import Team

PRESENT, MISSING, BAD = range(3)
"""Columns of a gradient's status; BAD is one of the following, the largest of all ranks."""

FINE, NOT_FINITE, SPARSE, ALONE_NOT_FINITE, ALONE_SPARSE = range(5)
"""The last two are of parameters that only one rank holds: it will raise, so all ranks do."""

UNCOMPARED = ("params", "param_names", "name", "turn", "initial_lr", "initial_momentum")
"""Group entries on which ranks need not agree."""


@dataclass
class Shared:
    """The entries that one set of ranks shares.

    Attributes:
        places: of each entry.
        pattern: layouts of the gradients when `presence` was made.
        presence: (columns PRESENT and MISSING, column BAD of sparse gradients, indices of dense ones) on the device.
        gradients: of this rank's pieces, in this step.
        dtypes: to which gradients are cast, as long as the plan of the step is the same.
        finite: whether each gradient is finite in this step; a tensor on an accelerator.
        groups: over which a reduction reaches all of these ranks.
        specs: index -> layout of a gradient that was found to be its parameter's.
    """

    entries: list[Entry]
    places: list[Place]
    params: list[Tensor] = field(default_factory=list)
    pattern: list[Any] | None = None
    presence: tuple[Tensor, Tensor, Tensor] | None = None
    finite: list[bool] | Tensor = field(default_factory=list)
    gradients: list[Tensor | None] = field(default_factory=list)
    dtypes: tuple[Any, list[torch.dtype]] = (None, [])
    specs: dict[int, Any] = field(default_factory=dict)
    fake: bool = False
    groups: tuple[Any, ...] = ()


@dataclass
class Agreement:
    """Agreement on the entries of a step, which it remembers as long as they are the same.

    Attributes:
        sets: entries that other ranks hold, too.
        alone: parameters that no other rank holds.
    """

    team: Team
    sets: list[Shared] = field(default_factory=list)
    alone: list[Tensor] = field(default_factory=list)
    _depends: list[Any] = field(default_factory=list)
    _compared: bool = False

    def _share(self, entries: Sequence[Entry]) -> None:
        """Find the entries that other ranks hold, too, by sets of ranks, in an order that is equal on all of them."""
        depends: list[Any] = []
        for group, p in entries:
            depends += (group, p, getattr(p, "_spec", None))
        if len(depends) == len(self._depends) and all(map(is_, depends, self._depends)):
            return
        by_ranks: dict[Any, Shared] = {}
        self.alone = []
        for group, p in entries:
            if self.team.handles(p):
                place = self.team.place(p)
                shared = by_ranks.setdefault((place.ranks, len(place.groups)), Shared([], []))
                shared.entries.append((group, p))
                shared.params.append(p)
                shared.places.append(place)
            else:
                self.alone.append(p)
        self.sets = [shared for _, shared in sorted(by_ranks.items(), key=lambda item: item[0])]
        self._depends, self._compared = depends, False

    def agree(self, optimizer: Any, entries: Sequence[Entry]) -> None:
        """Agree on the gradients of shared entries: `sets[i].finite`.

        Raises:
            ValueError, TypeError: on all ranks, if parameters or options differ, or gradients cannot be used; also
                those of parameters that only one rank holds.
        """
        self._share(entries)
        if not self.sets:
            return
        if not self._compared:
            self._compare(optimizer)
        trouble = self._trouble(optimizer) if self.alone else FINE
        reductions = [self._reduced(optimizer, shared, trouble) for shared in self.sets]
        for shared, (status, new) in zip(self.sets, reductions, strict=True):
            readable = status.device.type in finite.HOST_READABLE
            if (new or readable or optimizer.on_nonfinite == "raise") and not shared.fake:
                rows = status.tolist()
                if any(bad or (present and missing) for present, missing, bad in rows):
                    _check(rows, shared, optimizer)
                shared.finite = [not row[BAD] for row in rows]
            if not readable:
                shared.finite = status.select(1, BAD) == 0

    def _compare(self, optimizer: Any) -> None:
        """Check that ranks have the same parameters and options."""
        names = {id(p): name for name, p, _ in optimizer.named()}
        sampled = f"sample_every {optimizer.telemetry.every}, sample_share {optimizer.telemetry.share}"
        others = f"on_nonfinite {optimizer.on_nonfinite}, memory_limit {optimizer.memory_limit}"
        first = f"strategy {self.team.strategy}, wire {self.team.precision}, {sampled}, {others}"
        for shared in self.sets:
            lines = [_describe(names[id(p)], p, group, optimizer) for group, p in shared.entries]
            self.team.compare(shared.places[0], [first, *lines], shared.params[0].device)
        self._compared = True

    def _trouble(self, optimizer: Any) -> int:
        """The worst of the gradients that only this rank holds, if they make all ranks raise."""
        trouble = FINE
        for p in self.alone:
            if p.grad is None:
                continue
            if p.grad.layout != torch.strided:
                trouble = ALONE_SPARSE
            elif optimizer.on_nonfinite == "raise" and not is_finite(p.grad.to(optimizer.dtype_of(p))):
                trouble = max(trouble, ALONE_NOT_FINITE)
        return trouble

    def _reduced(self, optimizer: Any, shared: Shared, trouble: int) -> tuple[Tensor, bool]:
        """(status of every gradient, reduced over the ranks; whether this rank's missing gradients have changed)"""
        gradients = shared.gradients = local_gradients(shared.params, shared.specs)
        if shared.dtypes[0] is not optimizer.plan or not shared.dtypes[1]:
            shared.dtypes = (optimizer.plan, [optimizer.dtype_of(p) for p in shared.params])
        pattern = [None if g is None else g.layout for g in gradients]
        new = pattern != shared.pattern
        if new:
            shared.pattern, shared.presence = pattern, _presence(gradients, shared.params[0].device)
            shared.fake = is_fake(shared.presence[0])
        assert shared.presence is not None
        present, bad, indices = shared.presence
        dense: list[Any] = gradients
        dtypes = shared.dtypes[1]
        if len(indices) < len(gradients):
            rows = [(g, d) for g, d, kind in zip(gradients, dtypes, pattern, strict=True) if kind == torch.strided]
            dense, dtypes = [g for g, _ in rows], [d for _, d in rows]
        if dense:
            flags = usable(dense, dtypes).logical_not().to(torch.uint8)
            bad = flags if len(dense) == len(gradients) else bad.scatter(0, indices, flags)
        if trouble:
            bad = bad.clone()
            bad[0] = trouble
        shared.groups = shared.groups or self.team.reduction_groups(shared.places[0])
        return self.team.wire.reduce(torch.column_stack((present, bad)), shared.groups, True), new


def _presence(gradients: Sequence[Tensor | None], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """`Shared.presence`, transferred once."""
    dense = [g is not None and g.layout == torch.strided for g in gradients]
    present = torch.tensor([(g is not None, g is None) for g in gradients], dtype=torch.uint8)
    sparse = [FINE if g is None or fine else SPARSE for g, fine in zip(gradients, dense, strict=True)]
    indices = torch.tensor([k for k, fine in enumerate(dense) if fine], dtype=torch.int64)
    return present.to(device), torch.tensor(sparse, dtype=torch.uint8).to(device), indices.to(device)


def _describe(name: str, p: Tensor, group: Mapping[str, Any], optimizer: Any) -> str:
    """Description of a parameter on which ranks must agree."""
    named = [key for key in optimizer.defaults if key in group and key not in UNCOMPARED]  # others are not used
    options = {key: group[key] for key in named}
    what = [options.pop(key) for key in ("algorithm", "ball", "view")] if group["algorithm"] == "lmo" else ["adamw"]
    dtypes = f"{p.dtype}, state {optimizer.dtype_of(p)}".replace("torch.", "")
    rest = " ".join(f"{key}={_shown(value)}" for key, value in sorted(options.items()))
    return f"{name} of shape {tuple(p.shape)}, {dtypes}, {' '.join(map(str, what))}, {rest}"


def _shown(value: Any) -> str:
    """A number alike whether it is a tensor or not."""
    if isinstance(value, Tensor):
        return "a tensor" if is_fake(value) else f"{float(value):.6g}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _check(rows: Sequence[Sequence[int]], shared: Shared, optimizer: Any) -> None:
    """Validate that ranks agree, before anything is changed."""
    for (_, p), status in zip(shared.entries, rows, strict=True):
        if status[BAD] <= (FINE if optimizer.on_nonfinite == "raise" else NOT_FINITE) and not all(status[:2]):
            continue
        name = next(name for name, other, _ in optimizer.named() if other is p)
        shown = f"parameter {name} of shape {tuple(p.shape)}"
        if status[BAD] == ALONE_SPARSE:
            raise TypeError("sparse gradients are not supported, and a rank has one; nothing was changed on any")
        if status[BAD] == ALONE_NOT_FINITE:
            raise ValueError(
                "the gradient of a parameter that one rank holds is not finite; nothing was changed on any"
            )
        if status[BAD] == SPARSE:
            raise TypeError(
                f"sparse gradients are not supported, got one for {shown} on some rank; nothing was changed"
            )
        if status[PRESENT] and status[MISSING]:
            raise ValueError(
                f"{shown} has a gradient on some ranks and none on others; nothing was changed: give it one on all "
                "ranks (zeros suffice), or on none"
            )
        raise ValueError(f"the gradient of parameter {name} is not finite; nothing was changed")
