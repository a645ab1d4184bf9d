"""The step of members with stages: their LMO inputs, and their weights from the oracle's answers.

    input = before(m);   z = after(oracle's answer)
    W <- (1 - lr decay) W - lr length z                               decoupled, or independent of lr (`optim.decay`)
    W <- (1 - lr decay [W z >= 0]) W - lr length z                    cautious, entry by entry
    W <- R unit(W - lr R unit(z)),  R = ||W||_F at the first step     fixed_norm; unit(x) = x / ||x||_F

A matrix that is zero at the first step has no sphere: it is updated without one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch
from torch import Tensor

from inexact_muon.dtensors import local, whole_of
from inexact_muon.optim.algorithm import whole_factor
from inexact_muon.optim.batches import Batch
from inexact_muon.optim.decay import is_cautious, per_lr
from inexact_muon.optim.finite import Number
from inexact_muon.optim.rows import Rows, unflattened
from inexact_muon.optim.stages.layout import Arrangement, Stacks
from inexact_muon.optim.stages.pieces import Pieces
from inexact_muon.optim.stages.places import three
from inexact_muon.optim.stages.values import Stage
from inexact_muon.views.base import Shape

RADIUS = "sphere_radius"
"""State of fixed_norm: R of each matrix; negative before the first step."""

Commit = Callable[[], None]


class Staged:
    """Runs the stages of a batch around the oracle, and writes weights and states once all directions are known.

    Args:
        prepared: the members whose LMO inputs this rank has prepared.
        inputs: those; the stages before the oracle change them in place.
    """

    def __init__(self, batch: Batch, prepared: Batch, inputs: list[Tensor]) -> None:
        self.batch, self.prepared, self.inputs = batch, prepared, inputs
        self.commits: list[Commit] = []
        if batch.members[0].before:
            self.inputs, commit = _change_inputs(prepared, inputs)
            self.commits.append(commit)

    def finish(self, zs: list[Tensor], lengths: list[float], optimizer: Any) -> Generator[None, None, None]:
        """The stages after the oracle, on its answers; measured if they are sampled."""
        self.z: Pieces = _pieces_of(self.batch, zs, optimizer)
        self.lengths = lengths
        sampled = any(id(m.p) in optimizer.telemetry.chosen for m in self.batch.members)
        norms = self.z.squares() if sampled else None
        for stage in self.batch.members[0].after:
            stage(self.z)
        if norms is not None:
            yield from _measure_applied(self.batch, self.prepared, self.inputs, self.z, norms, optimizer)

    def write(self, optimizer: Any) -> list[Tensor]:
        """Update the weights and the states of stages; returns the LMO inputs as they were before the stages."""
        _update_weights_(self.batch, self.z, self.lengths, optimizer)
        for commit in (*self.commits, self.z.commit):
            commit()
        return self.inputs


def _change_inputs(batch: Batch, inputs: list[Tensor]) -> tuple[list[Tensor], Commit]:
    """Apply the stages before the oracle to `inputs` in place; returns what they were, and what writes the states."""
    full = [k for k, x in enumerate(inputs) if x.numel()]
    raw = list(inputs)
    if not full:
        return raw, lambda: None
    m, changed, commit = _changed(batch, full, [inputs[k] for k in full])
    for k, x in zip(full, unflattened(m.view(-1), [inputs[k] for k in full]), strict=True):
        raw[k] = x
    _copy([inputs[k] for k in full], changed)
    return raw, commit


def advance_(batch: Batch) -> None:
    """Update the states of stages before the oracle, of members whose inputs this rank does not need."""
    full = [k for k, m in enumerate(batch.members) if m.piece.numel()]
    if full:
        _changed(batch, full, [batch.members[k].buffers[0] for k in full])[2]()


def _changed(batch: Batch, index: list[int], inputs: list[Tensor]) -> tuple[Tensor, Tensor, Commit]:
    """(momenta of some members, LMO inputs made of them, what writes the new states), as rows of one matrix each."""
    members = [batch.members[k] for k in index]
    rows = Rows.of(batch.rows, "before", index, inputs)
    m = torch.cat([x.reshape(-1) for x in inputs]).view(-1, rows.length)
    wide = torch.promote_types(m.dtype, torch.float32)
    x, new = m.to(wide), dict[str, tuple[Tensor, Tensor]]()
    finite = None if batch.flags is None else rows.spread(batch.flags.vector)
    g = m
    if any(stage.state for stage in members[0].before):
        g = rows.joined([m.gradient for m in members]).to(wide)
        g = g if finite is None else torch.where(finite, g, 0.0)
    for stage in members[0].before:
        key = next(iter(stage.state), "")
        old = rows.joined([m.stage_state[key] for m in members]).to(wide) if key else None
        x, state = stage(x, g, old)
        if old is not None and state is not None:
            new[key] = (old, state)

    def commit() -> None:
        for key, (old, state) in new.items():
            _copy([m.stage_state[key] for m in members], state if finite is None else torch.where(finite, state, old))

    return m, x, commit


def _copy(xs: list[Tensor], rows: Tensor) -> None:
    torch._foreach_copy_(xs, list(unflattened(rows.view(-1), xs)))


def _pieces_of(batch: Batch, zs: Sequence[Tensor], optimizer: Any) -> Pieces:
    """The answers of a batch; sums go over all ranks that hold it, with copies counted once."""
    if batch.layout is None:
        batch.layout = Arrangement(batch.members)
    place = batch.members[0].place
    if place is None or not place.shared or place.source is not None:
        return Pieces(batch.layout, zs, batch.flags, lambda x: x)
    team = optimizer.team

    def reduce(x: Tensor) -> Tensor:
        return team.wire.reduce(x if place.copy == 0 else torch.zeros_like(x), team.reduction_groups(place))

    return Pieces(batch.layout, zs, batch.flags, reduce)


def _update_weights_(batch: Batch, z: Pieces, lengths: Sequence[float], optimizer: Any) -> None:
    """The weights of all members, from their answers."""
    group, layout = batch.members[0].group, batch.layout
    w = layout.gathered([m.piece for m in batch.members], z.dtype)
    rate, decay = z.on * (group["lr"] * _factors(batch, lengths, z)), group["lr"] * per_lr(group)
    shrink: Number | None = None
    if group["fixed_norm"]:
        shrink, rate = _on_spheres(z, w, z.on * group["lr"], rate)
    elif group["weight_decay"] and not is_cautious(group):
        shrink = 1.0 - z.on * decay
    rates = z.factors(rate)
    optimizer.record_stacks(batch, z.stacks, rates, w)
    if shrink is not None:
        for x, number in zip(w, z.factors(shrink), strict=True):
            x.mul_(number)
    elif group["weight_decay"]:
        for x, y, number in zip(w, z.stacks, z.factors(z.on * decay), strict=True):
            x.addcmul_(torch.where(x * y >= 0.0, x, 0.0), number, value=-1.0)
    for x, y, number in zip(w, z.stacks, rates, strict=True):
        x.addcmul_(y, number, value=-1.0)
    layout.copy_to([m.piece for m in batch.members], w)


def _on_spheres(z: Pieces, w: Stacks, lr: Number, rate: Number) -> tuple[Tensor, Tensor]:
    """(a, b) of W <- a W - b z for each matrix, with c = lr R/||z||, a = R/||W - c z|| and b = a c.

    ||W - c z||^2 = ||W||^2 + (lr R)^2 - 2 c <W, z>. If lr, R or z is zero, a = 1 and b = rate.
    """
    norms = [torch.linalg.vector_norm(x, dim=-1) for x in (*w, *z.stacks)]
    values = z.flat([*norms, *((x * y).sum(-1) for x, y in zip(w, z.stacks, strict=True))])
    values.narrow(0, 0, 2 * len(values) // 3).square_()
    ww, zz, wz = sums = z.sums(values, 3)
    w_norm, z_norm = sums[:2].sqrt()
    radius = z.old_matrices(RADIUS)
    radius = torch.where(radius < 0.0, w_norm, radius)
    z.new_numbers(RADIUS, radius)
    length = lr * radius
    c = length / z_norm
    plain = length * zz <= 0.0
    norm = torch.addcmul(ww, length, length).addcmul_(c, wz, value=-2.0).clamp_min_(z.tiny).sqrt_()
    shrink = (radius / norm).masked_fill_(plain, 1.0)  # where() takes a launch more for the number
    return shrink, torch.where(plain, rate, shrink * c)


def _factors(batch: Batch, lengths: Sequence[float], z: Pieces) -> Number:
    """The factor of lr z: one number, or one for each matrix."""
    layout = batch.layout
    if layout.factors is None:
        layout.factors = [[whole_factor(m, shape) for shape in m.whole.shapes] for m in batch.members]
    numbers: list[float] = []
    for rows, factors, length in zip(layout.whole, layout.factors, lengths, strict=True):
        for (n, _, _), factor in zip(rows, factors, strict=True):
            numbers += [factor * length] * n
    if len(set(numbers)) == 1:
        return numbers[0]
    if layout.numbers is None or layout.numbers[0] != numbers:
        column = torch.tensor(numbers, dtype=z.dtype).view(-1, 1)
        layout.numbers = (numbers, column.to(z.columns.device))
    return layout.numbers[1]


def _measure_applied(
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


def initialise(state: dict[str, Any], stages: Sequence[Stage], fixed_norm: bool, shapes: Sequence[Shape]) -> list[str]:
    """Add what is missing of the states of stages to the state of a parameter; returns the names of all of them.

    Args:
        shapes: of the parameter's matrices.
    """
    if not stages and not fixed_norm:
        return []
    buffer = state["momentum_buffer"]
    wide = torch.promote_types(buffer.dtype, torch.float32)
    threes = [three(shape) for shape in shapes]
    sizes = {"rows": sum(n * r for n, r, _ in threes), "longer": sum(n * max(r, c) for n, r, c in threes)}
    sizes["matrices"] = sum(n for n, _, _ in threes)
    extents = [(key, extent) for stage in stages for key, extent in stage.extents.items()]
    for key, extent in [*extents, (RADIUS, "matrices")] if fixed_norm else extents:
        size = tuple(buffer.shape) if extent == "entries" else (sizes[extent],)
        shape = tuple(getattr(state[key], "shape", ())) if key in state else size
        if shape != size:
            raise ValueError(
                f"{key} of a parameter of shape {tuple(buffer.shape)} has shape {shape} instead of {size}: it was "
                "saved with another view or side; remove it from the checkpoint's state"
            )
        if key in state:
            continue
        if extent == "entries":  # squares leave the range of float16
            state[key] = torch.zeros_like(buffer, dtype=wide if buffer.dtype == torch.float16 else buffer.dtype)
        else:
            start = -1.0 if key == RADIUS else 0.0
            state[key] = torch.full(size, start, dtype=wide, device=local(buffer).device)
    return [key for key, _ in extents] + [RADIUS] * fixed_norm
