"""The step of members with stages: their LMO inputs, and their weights from the oracle's answers.

    input = before(m);   z = after(oracle's answer)
    W <- (1 - lr decay) W - lr length z                               decoupled, or independent of lr (`optim.decay`)
    W <- (1 - lr decay [W z >= 0]) W - lr length z                    cautious, entry by entry
    W <- R unit(W - lr R unit(z)),  R = ||W||_F at the first step     fixed_norm; unit(x) = x / ||x||_F

A matrix that is zero at the first step has no sphere: it is updated without one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from inexact_muon.dtensors import local, whole_of
from inexact_muon.optim.algorithm import whole_factor
from inexact_muon.optim.batches import Batch
from inexact_muon.optim.decay import is_cautious, per_lr
from inexact_muon.optim.finite import Number
from inexact_muon.optim.rows import Packed, Rows
from inexact_muon.optim.stages.layout import Arrangement, Stacks, Writes
from inexact_muon.optim.stages.pieces import Pieces
from inexact_muon.optim.stages.places import three
from inexact_muon.optim.stages.values import Stage
from inexact_muon.views.base import Shape

RADIUS = "sphere_radius"
"""State of fixed_norm: R of each matrix; negative before the first step."""

Later = Callable[[], Iterable[Writes]]
"""What is written once all directions are known."""


class Staged:
    """Runs the stages of a batch around the oracle, and writes weights and states once all directions are known.

    Args:
        prepared: the members whose momenta this rank has prepared.
        momenta: those; for Nesterov, mixed with the gradient.
        inputs: LMO inputs, written here if there are stages before the oracle; else the same as `momenta`.
    """

    def __init__(self, batch: Batch, prepared: Batch, momenta: list[Tensor], inputs: list[Tensor]) -> None:
        self.batch, self.prepared, self.momenta = batch, prepared, momenta
        self.before: Later = _write_inputs(batch, prepared, momenta, inputs) if batch.before else tuple

    def finish(self, zs: list[Tensor], lengths: list[float], optimizer: Any) -> Generator[None, None, None]:
        """The stages after the oracle, on its answers; measured if they are sampled."""
        self.z: Pieces = _pieces_of(self.batch, zs, optimizer)
        self.lengths = lengths
        sampled = any(id(m.p) in optimizer.telemetry.chosen for m in self.batch.members)
        norms = self.z.squares() if sampled else None
        for stage in self.batch.members[0].after:
            stage(self.z)
        if norms is not None:
            yield from _measure_applied(self.batch, self.prepared, self.momenta, self.z, norms, optimizer)

    def write(self, optimizer: Any) -> list[Tensor]:
        """Update the weights and the states of stages; returns the momenta of `prepared`."""
        copies: dict[Any, Writes] = {}
        weights = _new_weights(self.batch, self.z, self.lengths, optimizer)
        for pair in (*weights, *self.z.writes(), *self.before()):
            for target, source in zip(*pair, strict=True):
                targets, sources = copies.setdefault((target.dtype, source.dtype), ([], []))
                targets.append(target)
                sources.append(source)
        for targets, sources in copies.values():
            torch._foreach_copy_(targets, sources)
        return self.momenta


def _write_inputs(batch: Batch, prepared: Batch, momenta: list[Tensor], inputs: list[Tensor]) -> Later:
    """The stages before the oracle: writes the LMO inputs; returns what writes the states of all members.

    States are those of the whole batch, and this rank may have prepared only the members that it owns. Tensors are
    joined as rows of one matrix each.
    """
    full = [k for k, m in enumerate(batch.members) if m.piece.numel()]
    if not full:
        return tuple
    members = [batch.members[k] for k in full]
    rows = Rows.of(batch.rows, "before", full, [m.piece for m in members])
    wide = torch.promote_types(members[0].buffers[0].dtype, torch.float32)
    moments = dict[Stage, tuple[Tensor, Tensor]]()
    if any(stage.state for stage in batch.before):
        g = rows.joined([m.gradient for m in members]).to(wide)
        g = g if batch.flags is None else g.nan_to_num_(0.0, 0.0, 0.0)
        for stage in (stage for stage in batch.before if stage.state):
            old = rows.joined([m.stage_state[next(iter(stage.state))] for m in members]).to(wide)
            moments[stage] = (old, stage.moment(g, old))
    if any(x.numel() for x in momenta):
        own = Rows.of(prepared.rows, "before", *zip(*((k, x) for k, x in enumerate(inputs) if x.numel()), strict=True))
        one = isinstance(momenta, Packed) and len(momenta.parts) == 1
        x = momenta.parts[0] if one else own.joined([x for x in momenta if x.numel()])  # type: ignore[attr-defined]
        x = x.reshape(-1, rows.length).to(wide)
        before = batch.members[: batch.members.index(prepared.members[0])]
        first, count = sum(m.piece.numel() for m in before) // rows.length, len(x)
        for stage in batch.before:
            x = stage(x, moments[stage][1].narrow(0, first, count) if stage in moments else None)
        own.copy_to([x for x in inputs if x.numel()], x)

    def writes() -> Iterator[Writes]:
        finite = None if batch.flags is None or not moments else rows.spread(batch.flags.vector)
        for stage, (old, new) in moments.items():
            states = [m.stage_state[next(iter(stage.state))] for m in members]
            new = new if finite is None else torch.where(finite, new, old)
            yield states, rows.cut([new], [rows])

    return writes


def _pieces_of(batch: Batch, zs: Sequence[Tensor], optimizer: Any) -> Pieces:
    """The answers of a batch; sums go over all ranks that hold it, with copies counted once."""
    if batch.layout is None:
        dtype = torch.promote_types(batch.members[0].piece.dtype, torch.float32)
        batch.layout = Arrangement(batch.members, torch.promote_types(dtype, zs[0].dtype) if zs else dtype)
    place = batch.members[0].place
    if place is None or not place.shared or place.source is not None:
        return Pieces(batch.layout, zs, batch.flags, lambda x: x)
    team = optimizer.team

    def reduce(x: Tensor) -> Tensor:
        return team.wire.reduce(x if place.copy == 0 else torch.zeros_like(x), team.reduction_groups(place))

    return Pieces(batch.layout, zs, batch.flags, reduce)


def _new_weights(batch: Batch, z: Pieces, lengths: Sequence[float], optimizer: Any) -> Iterator[Writes]:
    """The weights of all members, from their answers, and the radii in the first step."""
    group, layout = batch.members[0].group, batch.layout
    weights = [m.piece for m in batch.members]
    w = [x.to(z.dtype) for x in layout.gathered(weights)]
    factors = _factors(batch, lengths, z)
    if group["fixed_norm"]:
        yield from _on_spheres_(batch, z, w, factors, optimizer)
    else:
        rate = group["lr"] * factors
        optimizer.record_stacks(batch, lambda: z.times(z.on * rate), w)
        if group["weight_decay"]:
            decayed = w
            if is_cautious(group):
                decayed = [torch.where(x * y >= 0.0, x, 0.0) for x, y in zip(w, z.answers, strict=True)]
            z.subtract_(w, group["lr"] * per_lr(group), decayed)
        z.subtract_(w, rate)
    yield layout.writes(weights, w)


def _on_spheres_(batch: Batch, z: Pieces, w: Stacks, factors: Number, optimizer: Any) -> Iterator[Writes]:
    """W <- R unit(W - lr r z) with r = R/||z||, or W - lr factor z without a sphere; gives the radii to be written.

    ||W - lr r z||^2 = ||W||^2 - 2 lr r (<W, z> - lr r ||z||^2 / 2). Where z is zero W stays as it is, and where the
    norm is zero W - lr r z is not scaled: these are the numbers that are not finite.

    R is noted in the first step of a plan, so that later ones have no launches for it; also for what that step skips.
    """
    layout, lr = batch.layout, batch.members[0].group["lr"]
    states = [m.stage_state[RADIUS] for m in batch.members]
    radius = torch.cat(states).to(z.dtype).view(-1, 1)
    zz, ww, wz = z.sums(w)
    if layout.spheres is None:
        radius = torch.where(radius < 0.0, ww.sqrt(), radius)
        sphere = radius > 0.0
        layout.spheres = torch.where(sphere, 0.0, factors).to(z.dtype), -sphere.to(z.dtype)
        yield states, list(torch.split(radius.view(-1), [x.numel() for x in states]))
    factor, minus_one = layout.spheres  # zero and -1 with a sphere, the factor and zero without
    numbers = torch.empty((2, *radius.shape), dtype=z.dtype, device=radius.device)
    grown, rate = numbers
    torch.addcdiv(factor, radius, zz.sqrt(), out=rate)
    if isinstance(lr, Tensor):
        rate, lr = rate.mul_(lr), 1.0
    half = torch.addcmul(wz, rate, zz, value=-0.5 * lr)
    norm = torch.addcmul(ww, rate, half, value=-2.0 * lr).sqrt_()
    torch.addcdiv(minus_one, radius, norm, out=grown)  # R/norm - 1
    numbers.nan_to_num_(0.0, 0.0, 0.0)
    if not lr or isinstance(z.on, Tensor):
        numbers.mul_(z.on if lr else 0.0)  # W is then the same to the last bit
    optimizer.record_stacks(batch, lambda: z.times(lr * rate * (1.0 + grown)), w)
    for x, y, (a, b) in zip(layout.by_matrix(w), layout.by_matrix(z.answers), z.spread(numbers), strict=True):
        x.addcmul_(y, b, value=-lr)
        x.addcmul_(x, a)


def _factors(batch: Batch, lengths: Sequence[float], z: Pieces) -> Number:
    """The factor of lr z: one number, or one for each matrix; the same in every step of a plan."""
    layout = batch.layout
    if layout.factors is None:
        rows = zip(batch.members, lengths, strict=True)
        shapes = ((m, shape, length) for m, length in rows for shape in m.whole.shapes)
        numbers = [whole_factor(m, s) * length for m, s, length in shapes for _ in range(three(s)[0])]
        column = torch.tensor(numbers, dtype=z.dtype).view(-1, 1)
        layout.factors = numbers[0] if len(set(numbers)) == 1 else column.to(layout.device)
    return layout.factors


def _measure_applied(
    batch: Batch, prepared: Batch, momenta: Sequence[Tensor], z: Pieces, norms: Tensor, optimizer: Any
) -> Generator[None, None, None]:
    """Measure directions after their stages, with the Frobenius norms that they had before, on the owners.

    Args:
        prepared: members whose momenta this rank has prepared.
        momenta: those.
        norms: squares of the norms before the stages.
    """
    stacks = z.times((norms / z.squares().clamp_min(z.tiny)).sqrt_())
    chosen = [k for k, m in enumerate(batch.members) if id(m.p) in optimizer.telemetry.chosen]
    if not chosen:
        return
    members = [batch.members[k] for k in chosen]
    parts = batch.layout.by_member(stacks)
    directions = [batch.layout.joined(k, parts[k]) for k in chosen]
    known = {id(m.p): x for m, x in zip(prepared.members, momenta, strict=True)}
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
