"""What ranks that share parameters agree on before a step: the same parameters and options, and their gradients.

All ranks that hold a parameter must send the same messages in the same order: whether it has a gradient and whether
that is finite is agreed on by one reduction per set of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import and_, is_
from typing import Any

import torch
from torch import Tensor

from inexact_muon.dtensors import is_fake, local_gradients
from inexact_muon.optim import finite
from inexact_muon.optim.finite import is_finite, usable
from inexact_muon.optim.telemetry import Entry
from inexact_muon.parallel.place import Place
from inexact_muon.parallel.team import Team

FINE, NOT_FINITE, SPARSE, ALONE_NOT_FINITE, ALONE_SPARSE = range(5)
"""Status of a gradient; of several ranks' the largest counts.

The last two are of parameters that only one rank holds: it will raise, so all ranks do.
"""

UNCOMPARED = ("params", "param_names", "name", "turn", "initial_lr", "initial_momentum")
"""Group entries on which ranks need not agree."""


@dataclass
class Shared:
    """The entries that one set of ranks shares.

    Attributes:
        place: of the first of them.
        params: of all of them.
        gradients: of this rank's pieces, in this step.
        finite: whether each gradient is finite in this step; a tensor on an accelerator.
        specs: index -> layout of a gradient that was found to be its parameter's.
        dtypes: to which gradients are cast, as long as the plan of the step is the same.
        layouts: of the gradients when `known` was made: their status as far as it follows from layouts, in rows
            (present, missing, status), and the indices of the dense ones, on the device.
        groups: over which a reduction reaches all of these ranks.
    """

    place: Place
    entries: list[Entry] = field(default_factory=list)
    params: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor | None] = field(default_factory=list)
    finite: list[bool] | Tensor = field(default_factory=list)
    specs: dict[int, Any] = field(default_factory=dict)
    dtypes: tuple[Any, list[torch.dtype]] = (None, [])
    layouts: list[Any] | None = None
    known: tuple[Tensor, Tensor] | None = None
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
            if not self.team.handles(p):
                self.alone.append(p)
                continue
            place = self.team.place(p)
            key = place.ranks, len(place.groups)
            if key not in by_ranks:
                by_ranks[key] = Shared(place)
            by_ranks[key].entries.append((group, p))
            by_ranks[key].params.append(p)
        self.sets = [by_ranks[key] for key in sorted(by_ranks)]
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
        for shared, (rows, new) in zip(self.sets, reductions, strict=True):
            readable = rows.device.type in finite.HOST_READABLE
            if (new or readable or optimizer.on_nonfinite == "raise") and not shared.fake:
                present, missing, status = rows.tolist()
                if any(status) or any(map(and_, present, missing)):
                    _check(present, missing, status, shared, optimizer)
                shared.finite = [value == FINE for value in status]
            if not readable:
                shared.finite = rows.select(0, 2) == FINE

    def _compare(self, optimizer: Any) -> None:
        """Check that ranks have the same parameters and options."""
        names = {id(p): name for name, p, _ in optimizer.named()}
        sampled = f"sample_every {optimizer.telemetry.every}, sample_share {optimizer.telemetry.share}"
        others = f"on_nonfinite {optimizer.on_nonfinite}, memory_limit {optimizer.memory_limit}"
        first = f"strategy {self.team.strategy}, wire {self.team.precision}, {sampled}, {others}"
        for shared in self.sets:
            lines = [_describe(names[id(p)], p, group, optimizer) for group, p in shared.entries]
            self.team.compare(shared.place, [first, *lines], shared.params[0].device)
        self._compared = True

    def _trouble(self, optimizer: Any) -> int:
        """The worst of the gradients that only this rank holds, if they make all ranks raise."""
        gradients = [(p, p.grad) for p in self.alone if p.grad is not None]
        if any(g.layout != torch.strided for _, g in gradients):
            return ALONE_SPARSE
        raising = optimizer.on_nonfinite == "raise"
        fine = not raising or all(is_finite(g.to(optimizer.dtype_of(p))) for p, g in gradients)
        return FINE if fine else ALONE_NOT_FINITE

    def _reduced(self, optimizer: Any, shared: Shared, trouble: int) -> tuple[Tensor, bool]:
        """(rows as of `Shared.known`, with flags, reduced over the ranks; whether this rank's layouts changed)"""
        gradients = shared.gradients = local_gradients(shared.params, shared.specs)
        if shared.dtypes[0] is not optimizer.plan or not shared.dtypes[1]:
            shared.dtypes = (optimizer.plan, [optimizer.dtype_of(p) for p in shared.params])
        layouts = [None if g is None else g.layout for g in gradients]
        new = layouts != shared.layouts
        if new or shared.known is None:
            shared.layouts, shared.known = layouts, _known(layouts, shared.params[0].device)
            shared.fake = is_fake(shared.known[0])
        known, indices = shared.known
        rows = known.clone()
        dense, dtypes = gradients, shared.dtypes[1]
        if len(indices) < len(gradients):
            kept = [k for k, layout in enumerate(layouts) if layout == torch.strided]
            dense, dtypes = [gradients[k] for k in kept], [dtypes[k] for k in kept]
        if dense:
            flags = usable(dense, dtypes)  # type: ignore[arg-type]
            if len(dense) == len(gradients):
                torch.logical_not(flags, out=rows[2])
            else:
                rows[2].index_copy_(0, indices, flags.logical_not().to(rows.dtype))
        if trouble:
            rows[2, 0] = trouble
        shared.groups = shared.groups or self.team.reduction_groups(shared.place)
        return self.team.wire.reduce(rows, shared.groups, True), new


def _known(layouts: Sequence[Any], device: torch.device) -> tuple[Tensor, Tensor]:
    """`Shared.known`, transferred once."""
    missing = [layout is None for layout in layouts]
    sparse = [SPARSE if layout not in (None, torch.strided) else FINE for layout in layouts]
    rows = torch.tensor([[not value for value in missing], missing, sparse], dtype=torch.uint8)
    indices = torch.tensor([k for k, layout in enumerate(layouts) if layout == torch.strided], dtype=torch.int64)
    return rows.to(device), indices.to(device)


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


def _check(
    present: Sequence[int], missing: Sequence[int], status: Sequence[int], shared: Shared, optimizer: Any
) -> None:
    """Validate that ranks agree, before anything is changed."""
    allowed = FINE if optimizer.on_nonfinite == "raise" else NOT_FINITE
    for p, has, lacks, worst in zip(shared.params, present, missing, status, strict=True):
        if worst <= allowed and not (has and lacks):
            continue
        if worst == ALONE_SPARSE:
            raise TypeError("sparse gradients are not supported, and a rank has one; nothing was changed on any")
        if worst == ALONE_NOT_FINITE:
            raise ValueError(
                "the gradient of a parameter that one rank holds is not finite; nothing was changed on any"
            )
        name = next(name for name, other, _ in optimizer.named() if other is p)
        shown = f"parameter {name} of shape {tuple(p.shape)}"
        if worst == SPARSE:
            raise TypeError(
                f"sparse gradients are not supported, got one for {shown} on some rank; nothing was changed"
            )
        if has and lacks:
            raise ValueError(
                f"{shown} has a gradient on some ranks and none on others; nothing was changed: give it one on all "
                "ranks (zeros suffice), or on none"
            )
        raise ValueError(f"the gradient of parameter {name} is not finite; nothing was changed")
