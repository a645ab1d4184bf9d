"""The optimizer and its one `step()`; the equations are in `algorithm`, what it keeps in `groups`.

A gradient that is not finite leaves its parameter and state untouched and is counted.
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
from inexact_muon.optim.algorithm import lengths as lengths_of
from inexact_muon.optim.algorithm import momentum as momentum_of
from inexact_muon.optim.algorithm import move_, remember_
from inexact_muon.optim.alone import Alone
from inexact_muon.optim.batches import Batch
from inexact_muon.optim.groups import Groups
from inexact_muon.optim.lengths import Length
from inexact_muon.optim.loading import check_structure, matched, restore_buffers
from inexact_muon.optim.options import (
    check_gradient,
)
from inexact_muon.optim.telemetry import SHARE, Telemetry
from inexact_muon.polar import Auto
from inexact_muon.polar.auto import key as shape_key

if TYPE_CHECKING:
    from inexact_muon.optim.shared import Shared
    from inexact_muon.parallel.team import Team
    from inexact_muon.strategies import Strategy


class LMOOptimizer(Groups):
    """Steps of fixed length along an inexact LMO of the momentum.

    Args:
        params: parameters, named parameters or groups. A group may set for itself any argument from lr to
            momentum_init, maximize, and what only groups have: "algorithm" ("lmo", or "adamw" for AdamW with "betas"
            and "eps"), "view" (how a parameter is cut into matrices: whole, flatten, split, ...) and "keep" (the
            probability with which a parameter moves in a step; one that does not keeps its momentum: Drop-Muon).
            An AdamW group holds its first beta as `momentum`, so that torch's OneCycleLR and CyclicLR, which write one
            key into every group, move both algorithms alike, and the second as `beta2`.
        lr: step size gamma; a float or a tensor of one element.
        momentum: 1 - alpha, the weight of the old buffer.
        ball: the LMO, as a value or as text.
        length: how far to go, as a value or as text: fixed (by the radius), steepest, clipped, smooth.
        radius: multiplies the step (and is the radius of the ball when constrained).
        weight_decay: decoupled.
        nesterov: orthogonalise the gradient mixed with the new buffer instead of the buffer.
        scale: factor by shape, one of `SCALES`, computed from the matrix that the ball sees.
        constrained: keep W in the ball of this radius by convex combinations; excludes weight_decay.
        momentum_init: "first-gradient" (Algorithm 1, what the theorems need) or "zero".
        state_dtype: of momentum and moments (the second in float32 for float16); None takes the parameter's.
        maximize: ascend.
        sample_every: measure inexactness and update size at the first and every so many steps; 0 for never.
        sample_share: after the first time, a sampled step measures so many parameters, in turn, as take this share of
            the oracles' work; math.inf measures all of them.
        on_nonfinite: "skip" a parameter whose gradient is not finite, or "raise" before anything has changed.
        memory_limit: bytes of work space of a step; the largest parameter takes up to six copies of itself in any case.
            None: 256 MiB on a CPU, 6 GiB elsewhere.
        strategy: how several ranks share the work, as a value or as text (`inexact_muon.parallel`): auto, replicated,
            owner-rank, gram-reduced, block-periodic:P.
        process_group: the ranks that hold copies of plain tensors, for strategies that divide these; all by default.
    """

    own_momenta: bool = False
    """Whether each rank has a momentum of its own."""

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
        self.alone = Alone()
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
        """One step of every parameter that has a gradient. Checks come before any change."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if any(self._resolved.get(i) != (g["ball"], len(g["params"])) for i, g in enumerate(self.param_groups)):
            self._resolve()
        entries = [(group, p) for group in self.param_groups for p in group["params"]]
        shared = self.shared() if self._shared is not None or self.own_momenta or dist.is_initialized() else None
        if any(group["keep"] < 1.0 for group in self.param_groups):
            entries = list(self.drawn())
        if shared is not None:
            entries = shared.agree(self, entries)
        ready = [(group, p) for group, p in entries if p.grad is not None]
        for p in (p for _, p in ready if self.on_nonfinite == "raise" or p.grad.layout != torch.strided):
            check_gradient(p, self.on_nonfinite, self.dtype_of(p))
        if self.telemetry.every or self.observers:
            self._begin([*ready, *(shared.entries if shared is not None else ())])
        for chunk in self.alone.batches(self, [(group, p) for group, p in ready if group["algorithm"] == "lmo"]):
            self._move(chunk)
        self.alone.adamw(self, [(group, p) for group, p in ready if group["algorithm"] == "adamw"])
        if shared is not None:
            shared.step(self)
        if self.telemetry.every:
            self.telemetry.settle(p for _, p in ready)
            if shared is not None:
                shared.settle(self)
        self.wanted = set()
        for group in self.param_groups:
            group["turn"] += 1
        return loss

    def shared(self) -> Shared | None:
        """What ranks do together; None in a process of its own, where nothing of `parallel` is imported."""
        if self._shared is None and dist.is_initialized():
            self._shared = self._join()
        return self._shared

    def _join(self) -> Shared:
        from inexact_muon.optim.shared import Shared
        from inexact_muon.parallel.team import Team

        return Shared(Team(*self._ranks))

    @property
    def team(self) -> Team:
        """Strategy and ranks, and the count of what was sent."""
        if self._shared is None:
            self._shared = self._join()
        return self._shared.team

    def _move(self, chunk: Sequence[Batch]) -> None:
        """Algorithm 1 on some batches: all answers, then all changes, so that a ball that raises changes nothing."""
        answered = []
        for batch in chunk:
            seen, given = momentum_of(batch)
            found = self.directions([batch.ball], [given])[0]
            if self.wanted:
                self.alone.show(self, batch, given, found)
            lengths = lengths_of(batch, given, found)
            zs = batch.joined(found)
            if self.wanted:
                self.alone.sizes(self, batch, zs, lengths)
            answered.append((batch, seen, zs, lengths))
        for batch, seen, zs, lengths in answered:
            move_(batch, zs, lengths)
            remember_(batch, seen)

    def _resolve(self) -> None:
        """Chooses the oracles of `polar="auto"` for shapes that have none yet."""
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

    def drawn(self) -> Iterator[tuple[dict[str, Any], Tensor]]:
        """The parameters that move in this step: each with probability `keep`, drawn from `turn` and its place."""
        place = 0
        for group in self.param_groups:
            for p in group["params"]:
                place += 1
                if group["keep"] >= 1.0 or Random(f"{group['turn']}/{place}").random() < group["keep"]:
                    yield group, p

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a checkpoint of this class by parameter name, or by position where neither side has names.

        lr, momentum, weight decay and what a scheduler keeps in a group come from the file; the algorithm (ball, view,
        scale, ...) stays the constructor's, and a warning names both where they differ. Choices of polar="auto" are the
        file's. What does not fit is refused before anything has changed; buffers keep the dtype that was saved. For
        files of other optimizers see `load_foreign`.
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
            if group["ball"] not in self._values:  # somebody's own cannot be read from text
                self._register(group["ball"], Ball, parse)
        restore_buffers(self, mapped)

    def _options(self) -> dict[str, Any]:
        fresh = {"_resolved": {}, "alone": Alone(), "_shared": None, "_ranks": self._ranks}
        return {**super()._options(), **fresh}
