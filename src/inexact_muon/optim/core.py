"""The optimizer and its `step()`; the equations are in `algorithm`, groups and state in `groups`.

A parameter whose gradient is not finite is skipped: parameter and state stay unchanged, and `skipped` is incremented.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from inexact_muon.lmo import Ball, Spectral, parse
from inexact_muon.lmo._base import sides
from inexact_muon.optim.algorithm import lmo_inputs, step_lengths, update_buffers_, update_weights_
from inexact_muon.optim.batches import Batch
from inexact_muon.optim.groups import Groups
from inexact_muon.optim.lengths import Length
from inexact_muon.optim.loading import check_structure, matched, restore_buffers
from inexact_muon.optim.options import check_gradient
from inexact_muon.optim.single import SingleProcess
from inexact_muon.optim.telemetry import SHARE, Telemetry
from inexact_muon.polar import Auto
from inexact_muon.polar.auto import key as shape_key

if TYPE_CHECKING:
    from inexact_muon.optim.shared import Shared
    from inexact_muon.parallel.team import Team
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
        process_group: ranks that hold replicas of plain tensors, for strategies that divide these; default: all.
    """

    own_momenta: bool = False
    """Whether each rank keeps its own momentum."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor,
        momentum: float,
        *,
        ball: Ball | str,
        length: Length | str = "fixed",
        radius: float = 1.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        scale: str = "none",
        constrained: bool = False,
        momentum_init: str = "first-gradient",
        state_dtype: torch.dtype | None = None,
        maximize: bool = False,
        sample_every: int = 0,
        sample_share: float = SHARE,
        on_nonfinite: str = "skip",
        memory_limit: int | None = None,
        strategy: Strategy | str = "auto",
        process_group: Any = None,
    ) -> None:
        self._resolved: dict[int, tuple[str, int]] = {}
        self.single = SingleProcess()
        self._ranks: tuple[Strategy | str, Any] = (strategy, process_group)
        self._shared: Shared | None = None
        if strategy != "auto":
            self._shared = self._join()
        numbers = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "radius": radius}
        words = {"scale": scale, "momentum_init": momentum_init}
        switches = {"nesterov": nesterov, "constrained": constrained, "maximize": maximize}
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
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if any(self._resolved.get(i) != (g["ball"], len(g["params"])) for i, g in enumerate(self.param_groups)):
            self._resolve()
        entries = [(group, p) for group in self.param_groups for p in group["params"]]
        shared = self.shared() if self._shared is not None or self.own_momenta or dist.is_initialized() else None
        if any(group["keep"] < 1.0 for group in self.param_groups):
            entries = list(self._selected())
        if shared is not None:
            entries = shared.agree(self, entries)
        ready = [(group, p) for group, p in entries if p.grad is not None]
        for p in (p for _, p in ready if self.on_nonfinite == "raise" or p.grad.layout != torch.strided):
            check_gradient(p, self.on_nonfinite, self.dtype_of(p))
        if self.telemetry.every or self.observers:
            self._begin([*ready, *(shared.entries if shared is not None else ())])
        for chunk in self.single.batches(self, [(group, p) for group, p in ready if group["algorithm"] == "lmo"]):
            self._lmo_step(chunk)
        self.single.adamw(self, [(group, p) for group, p in ready if group["algorithm"] == "adamw"])
        if shared is not None:
            shared.step(self)
        if self.telemetry.every:
            self.telemetry.store_local_samples(p for _, p in ready)
            if shared is not None:
                shared.reduce_samples(self)
        self.wanted = set()
        for group in self.param_groups:
            group["turn"] += 1
        return loss

    def shared(self) -> Shared | None:
        """The distributed step, or None without a process group (`parallel` is then not imported)."""
        if self._shared is None and (self.own_momenta or dist.is_initialized()):
            self._shared = self._join()
        return self._shared

    def _join(self) -> Shared:
        from inexact_muon.optim.shared import Shared
        from inexact_muon.parallel.team import Team

        return Shared(Team(*self._ranks))

    @property
    def team(self) -> Team:
        """Strategy, ranks and communication counters."""
        self._shared = self._shared or self._join()
        return self._shared.team

    def _lmo_step(self, chunk: Sequence[Batch]) -> None:
        """Algorithm 1 on some batches. Nothing is written until every direction is known, in case a ball raises."""
        updates = []
        for batch in chunk:
            inputs, ms = lmo_inputs(batch)
            directions = self.directions([batch.ball], [ms])[0]
            if self.wanted:
                self.single.observe(self, batch, ms, directions)
            lengths = step_lengths(batch, ms, directions)
            zs = batch.per_parameter(directions)
            if self.wanted:
                self.single.record_sizes(self, batch, zs, lengths)
            updates.append((batch, inputs, zs, lengths))
        for batch, inputs, zs, lengths in updates:
            update_weights_(batch, zs, lengths)
            update_buffers_(batch, inputs)

    def _resolve(self) -> None:
        """Choose an oracle for each shape that `polar="auto"` has not resolved yet."""
        for i, group in enumerate(self.param_groups):
            if self._resolved.get(i) == (group["ball"], len(group["params"])):
                continue
            ball = self.ball(group)
            if group["algorithm"] == "lmo" and isinstance(ball, Spectral) and isinstance(ball.polar, Auto):
                view = self.view(group)
                seen = ((shape, p.device) for p in group["params"] for shape in view.shapes(p.shape) if 0 not in shape)
                found = ball.polar.resolved(shape_key(*sides(shape), device) for shape, device in seen)
                group["ball"] = self._register(replace(ball, polar=found), Ball, parse)
            self._resolved[i] = (group["ball"], len(group["params"]))

    def _selected(self) -> Iterator[tuple[dict[str, Any], Tensor]]:
        """Parameters updated in this step, each with probability `keep`; seeded by `turn` and the position."""
        position = 0
        for group in self.param_groups:
            for p in group["params"]:
                position += 1
                if group["keep"] >= 1.0 or Random(f"{group['turn']}/{position}").random() < group["keep"]:
                    yield group, p

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a checkpoint of this class by parameter name, or by position if neither side has names.

        lr, momentum, weight decay, scheduler entries and the choices of polar="auto" come from the file. The algorithm
        (ball, view, scale, ...) stays as constructed; a warning names both if they differ. A checkpoint that does not
        fit raises before anything changes. Buffers keep the dtype they were saved in. For checkpoints of other
        optimizers see `load_foreign`.
        """
        check_structure(state_dict)
        mapped: dict[str, Any] = {}

        def by_name(_: Any, given: dict[str, Any]) -> dict[str, Any]:
            mapped.update(matched(self, given))
            return mapped

        handle = self.register_load_state_dict_pre_hook(by_name)  # after the caller's own
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
        for group in self.param_groups:
            if group["ball"] not in self._values:  # a user-defined ball cannot be parsed from text
                self._register(group["ball"], Ball, parse)
        restore_buffers(self, mapped)

    def _options(self) -> dict[str, Any]:
        fresh = {"_resolved": {}, "single": SingleProcess(), "_shared": None, "_ranks": self._ranks}
        return {**super()._options(), **fresh}
