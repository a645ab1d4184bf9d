"""The optimizer and its `step()`; the equations are in `algorithm`, groups and state in `groups`.

A parameter whose gradient is not finite is skipped: parameter and state stay unchanged, and `skipped` is incremented.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from operator import is_
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._compile import _disable_dynamo

from inexact_muon.lmo import Ball
from inexact_muon.optim import algorithm, masked
from inexact_muon.optim.adamw import adamw_
from inexact_muon.optim.algorithm import step_lengths
from inexact_muon.optim.batches import Batch, Member
from inexact_muon.optim.finite import check_gradient
from inexact_muon.optim.groups import Groups
from inexact_muon.optim.lengths import FIXED, Length
from inexact_muon.optim.options import REQUIRED, check_betas
from inexact_muon.optim.stepplan import StepPlan, alike, dependencies, interleaved, member_of, single, staged_in
from inexact_muon.optim.telemetry import SHARE, Entry, Telemetry
from inexact_muon.polar.batching import limit_on

if TYPE_CHECKING:
    from inexact_muon.optim.ranks import Ranks
    from inexact_muon.optim.stages import Given
    from inexact_muon.strategies import Strategy


class LMOOptimizer(Groups):
    """Algorithm 1 with an inexact LMO: steps of fixed length along the LMO of the momentum.

    Args:
        params: parameters, named parameters or groups. A group may override any argument from lr to momentum_init and
            maximize, and has three options of its own: "algorithm" ("lmo", or "adamw" with "betas" and "eps"), "view"
            (how a parameter is cut into matrices: whole, flatten, split, ...) and "keep" (the probability that a
            parameter is updated in a step; otherwise its momentum is kept: Drop-Muon). An AdamW group stores its
            first beta as `momentum`, so that OneCycleLR and CyclicLR schedule both algorithms, and the second as
            `beta2`.
        lr: step size gamma; a float or a tensor of one element.
        momentum: 1 - alpha, the weight of the old buffer.
        ball: the LMO, as a value or as text.
        length: step length rule, as a value or as text: fixed (the radius), steepest, clipped, smooth.
        radius: multiplies the step (and is the radius of the ball when constrained).
        weight_decay: decoupled weight decay.
        nesterov: orthogonalise the gradient mixed with the new buffer instead of the buffer.
        scale: shape factor, one of `SCALES`, evaluated on the matrix passed to the LMO.
        constrained: keep W in the ball of this radius by convex combinations; excludes weight_decay.
        momentum_init: "first-gradient" (Algorithm 1, as the theorems require) or "zero".
        state_dtype: dtype of momentum and moments (the second moment is float32 for float16); default: the parameter's.
        before, after: stages that change the LMO's input and its answer, as values or text: "row-moment + rms:0.2".
        decay: decoupled, independent (of lr), cautious or cautious-independent: see `optim.decay`.
        fixed_norm: keep each matrix on the sphere it starts on; lr is then the norm of a step over that of the matrix.
        maximize: maximise the objective.
        sample_every: measure inexactness and update size at the first step and then every `sample_every` steps;
            0 disables it.
        sample_share: after the first sampled step, measure parameters in rotation, spending at most this fraction of
            the oracles' work; math.inf measures all of them.
        on_nonfinite: "skip" a parameter whose gradient is not finite, or "raise" before anything changes.
        memory_limit: bytes of work space per step; the largest parameter needs up to six copies of itself regardless.
            Default: 256 MiB on a CPU, 6 GiB elsewhere.
        strategy: how ranks share the work, as a value or as text (`inexact_muon.parallel`): auto, replicated,
            owner-rank, gram-reduced, block-periodic:P.
        wire: precision of momenta that ranks send: "oracle" (the dtype in which the oracle multiplies, which rounds
            them to it anyway; scaled, so that nothing leaves its range) or "state" (as they are).
        process_group: ranks that hold replicas of plain tensors, for strategies that divide these; default: all.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor,
        momentum: float,
        *,
        ball: Ball | str,
        length: Length | str = FIXED,
        radius: float = 1.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        scale: str = "none",
        constrained: bool = False,
        momentum_init: str = "first-gradient",
        before: Given = None,
        after: Given = None,
        decay: str = "decoupled",
        fixed_norm: bool = False,
        state_dtype: torch.dtype | None = None,
        maximize: bool = False,
        sample_every: int = 0,
        sample_share: float = SHARE,
        on_nonfinite: str = "skip",
        memory_limit: int | None = None,
        strategy: Strategy | str = "auto",
        wire: str = "oracle",
        process_group: Any = None,
    ) -> None:
        self._resolved: dict[int, tuple[str, int]] = {}
        self.plan: StepPlan | None = None
        self._sharing: tuple[Strategy | str, Any, str] = (strategy, process_group, wire)
        self.joined: Ranks | None = None
        if (strategy, wire) != ("auto", "oracle"):
            self.joined = self._join()
        numbers = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "radius": radius}
        words = {"scale": scale, "momentum_init": momentum_init, "decay": decay, "before": before, "after": after}
        switches = {"nesterov": nesterov, "constrained": constrained, "maximize": maximize, "fixed_norm": fixed_norm}
        super().__init__(
            params,
            {**numbers, **words, **switches},
            ball,
            length,
            Telemetry(sample_every, sample_share),
            state_dtype=state_dtype,
            on_nonfinite=on_nonfinite,
            memory_limit=memory_limit,
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient. All checks run before any change."""
        if torch.compiler.is_compiling():
            return self._uncompiled_step(closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for i, group in enumerate(self.param_groups):
            if not group.keys() >= REQUIRED:  # written by hand in place of one of ours
                missing = min(REQUIRED - group.keys())
                raise ValueError(f"param_groups[{i}] has no {missing!r}: change a copy of it, {{**group, 'lr': 0.01}}")
            if "betas" in group:  # set since the last step
                group["momentum"], group["beta2"] = check_betas(group.pop("betas"))
        if self.rates.apart:
            lrs = [group["lr"] for group in self.param_groups]
            if Tensor in map(type, lrs) or lrs != self.rates.compared:  # tensors may change in place
                self.rates.check(self.param_groups)
        ranks = self.joined or (self.ranks() if self.own_momenta or dist.is_initialized() else None)
        drops = any(group["keep"] < 1.0 for group in self.param_groups)
        entries = self._selected() if drops else [(group, p) for group in self.param_groups for p in group["params"]]
        if ranks is not None:
            ranks.agreement.agree(self, entries)
        ready = [(group, p) for group, p in entries if p.grad is not None]
        raising = self.on_nonfinite == "raise"
        for p in [p for _, p in ready] if ranks is None else ranks.agreement.alone:  # ranks have agreed on the others
            if p.grad is not None and (raising or p.grad.layout != torch.strided):
                check_gradient(p, self.on_nonfinite, self.dtype_of(p))
        plan, members = self._planned(ready, ranks)
        if self.telemetry.every or self.observers:
            self._begin(ready, plan)
        interleaved(map(self._lmo_step, plan.chunks))
        for batch in plan.adamw:
            adamw_(batch, self.telemetry)
        if self.telemetry.every:
            self.telemetry.store_local_samples(m.p for m in plan.members if id(m.p) not in plan.shared)
            if ranks is not None:
                ranks.reduce_samples(self)
        for member in members:
            member.gradient = None
        self.observed = frozenset()
        for group in self.param_groups:
            group["turn"] += 1
        return loss

    _uncompiled_step = _disable_dynamo(step)  # traced, each learning rate would be another graph

    def _planned(self, ready: list[Entry], ranks: Ranks | None) -> tuple[StepPlan, list[Member]]:
        """The plan of this step with its gradients and flags, and all members that hold a gradient.

        What the host knows not to be finite is left out of the plan.
        """
        depends, kinds = dependencies(self, ready)
        turns = [bool(g["turn"] % ranks.period) for g in self.param_groups] if ranks is not None else None
        plan = self.plan
        if (
            plan is None
            or plan.kinds != [turns, *kinds]
            or len(plan.depends) != len(depends)
            or not all(map(is_, depends, plan.depends))
        ):
            self._resolve()
            first = dict(zip(map(id, self.param_groups), alike(self.param_groups), strict=True))
            self.plan = plan = self._plan_of([member_of(self, g, p, first[id(g)], ranks) for g, p in ready], ranks)
            plan.depends, kinds = dependencies(self, ready)
            plan.kinds = [turns, *kinds]
        members = plan.members
        bad = {id(m): m for m in plan.begin()}
        if bad:
            for m in bad.values():
                m.state["skipped"] += 1
            plan = self._plan_of([replace(m) for m in members if id(m) not in bad], ranks)  # owners may differ
            plan.begin()
        return plan, members

    def _plan_of(self, members: list[Member], ranks: Ranks | None) -> StepPlan:
        return ranks.plan(members, self) if ranks is not None else single(members, self.memory_limit)

    def _lmo_step(self, chunk: Sequence[Batch]) -> Generator[None, None, None]:
        """Algorithm 1 on some batches. Nothing is written until every direction is known, in case a ball raises."""
        updates = []
        for batch in chunk:
            equations = algorithm if batch.flags is None else masked
            if batch.route is None:
                momenta, stacks = batch.stacks.allocate()  # type: ignore[union-attr]
                inputs, stacks = batch.stacks.allocate() if batch.before else (momenta, stacks)  # type: ignore[union-attr]
                equations.lmo_inputs(batch, momenta)
                staged = staged_in(batch, batch, momenta, inputs) if batch.staged else None
                directions, lengths = self.solve(batch, inputs, stacks, batch.flags is not None and staged is None)
                zs = batch.stacks.split(directions)  # type: ignore[union-attr]
            else:
                like = batch.members[0].buffers[0]
                momenta, stacks = batch.route.allocate(like)
                inputs, stacks = batch.route.allocate(like) if batch.before else (momenta, stacks)
                prepared = batch.route.prepared_here(batch)
                equations.lmo_inputs(prepared, momenta)
                staged = staged_in(batch, prepared, momenta, inputs) if batch.staged else None
                zs, lengths = yield from batch.route.directions(batch, inputs, stacks, self)
            if staged is not None:
                yield from staged.finish(zs, lengths, self)
            elif self.observed and zs:
                self._record_sizes(batch, zs, lengths)
            updates.append((batch, inputs, zs, lengths, staged))
        for batch, inputs, zs, lengths, staged in updates:
            equations = algorithm if batch.flags is None else masked
            if staged is not None:
                inputs = staged.write(self)
            elif zs:  # EF21 has updated them
                equations.update_weights_(batch, zs, lengths)
            if batch.route is None:
                equations.update_buffers_(batch, inputs)
            else:
                batch.route.update_buffers_(batch, inputs)
            if batch.flags is None:
                torch._foreach_add_(*batch.steps)
            else:
                torch._foreach_add_(batch.flags.counters, batch.flags.counts)

    def solve(
        self,
        batch: Batch,
        inputs: list[Tensor],
        stacks: list[Tensor],
        scaled: bool = False,
        exact: dict[int, Tensor] | None = None,
    ) -> tuple[list[Tensor], list[float]]:
        """Directions of members that are whole here, as stacks, and the factor of lr that each member still needs.

        Args:
            exact: id of a parameter -> what its direction is measured against, if not its input.
        """
        assert batch.stacks is not None
        ms = batch.stacks.fill(stacks, inputs)
        directions = self.directions(batch.ball, ms)
        if self.observed:
            self._observe_batch(batch, ms, directions, exact)
        return directions, step_lengths(batch, ms, directions, scaled)

    def directions(self, ball: Ball, ms: Sequence[Tensor]) -> list[Tensor]:
        """The direction of each of ms: all oracle work of a step."""
        for observer in self.observers:
            observer.asking()
        zs = ball.directions(ms, limit_on(ms[0].device, self.memory_limit)) if ms else []
        for observer in self.observers:
            observer.answered()
        return zs

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a checkpoint of this class by parameter name, or by position if neither side has names.

        lr, momentum, weight decay, scheduler entries and the choices of polar="auto" come from the file. The algorithm
        (ball, view, scale, ...) stays as constructed; a warning names both if they differ. A checkpoint that does not
        fit raises before anything changes. Buffers keep the dtype they were saved in. For checkpoints of other
        optimizers see `load_foreign`.
        """
        from inexact_muon.optim.loading import matched, restore_buffers
        from inexact_muon.optim.structure import check_entries

        check_entries(state_dict)  # torch copies it before its hooks
        mapped: dict[str, Any] = {}

        def by_name(_: Any, saved: dict[str, Any]) -> dict[str, Any]:
            mapped.update(matched(self, saved))
            return mapped

        handle = self.register_load_state_dict_pre_hook(by_name)  # after the caller's own
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
        restore_buffers(self, mapped)

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "_resolved": {}, "plan": None, "joined": None, "_sharing": self._sharing}
