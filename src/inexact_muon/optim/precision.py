"""Which oracle each layer gets while it trains, and lr and momentum to go with it.

Every so many steps the singular values of what each oracle is about to see are taken. From them a policy (`Adaptive`,
`Budget`) picks a candidate per layer, and with a `reference` lr and momentum are carried, layer by layer, from the
reference oracle to the one in use by one of the four rules. Choices and factors live in the state of a parameter, as
an integer and two floats, so that a checkpoint continues where it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from inexact_muon.dtensors import gathered
from inexact_muon.inexactness import Inexactness, predict
from inexact_muon.lmo import Ball, Spectral
from inexact_muon.optim.algorithm import momentum
from inexact_muon.optim.batches import Batch, Member
from inexact_muon.optim.finite import is_finite
from inexact_muon.polar import PolarMethod
from inexact_muon.polar.exact import rank_threshold
from inexact_muon.tune.policy import Adaptive, Array, Budget, Policy, allocate, rms_error
from inexact_muon.tune.rules import Factors, find

if TYPE_CHECKING:
    from inexact_muon.optim.core import LMOOptimizer

SMOOTH = 0.5
"""Weight of a new factor in the geometric mean with the old one, after the first."""


@dataclass(frozen=True)
class Layer:
    """One parameter at a look: its state, its matrices' shapes and their singular values, one row per matrix."""

    name: str
    state: dict[str, Any]
    oracle: PolarMethod
    parts: tuple[tuple[tuple[int, int], Array], ...]

    def judge(self, method: PolarMethod) -> Inexactness:
        """As one point of the product ball: largest delta and overshoot, gap weighted by dual norms."""
        found = [(predict(method, values), float(values.sum())) for _, values in self.parts]
        total = sum(dual for _, dual in found)
        gap = sum(record.gap * dual for record, dual in found) / total
        return Inexactness(max(r.delta for r, _ in found), gap, max(r.overshoot for r, _ in found))

    def rms(self, method: PolarMethod) -> float:
        """The Frobenius distance to the exact answer over sqrt(rank), of all its matrices together."""
        return sqrt(sum(v.size * rms_error(method, v) ** 2 for _, v in self.parts) / self.rank)

    def flops(self, method: PolarMethod) -> int:
        """Of all its matrices."""
        return sum(method.flops(*shape) for shape, _ in self.parts)

    @property
    def rank(self) -> int:
        """How many singular values there are."""
        return sum(values.size for _, values in self.parts)

    @property
    def dual(self) -> float:
        """The dual norm of what the oracle sees."""
        return sum(float(values.sum()) for _, values in self.parts)


def look(optimizer: LMOOptimizer, moving: Sequence[tuple[dict[str, Any], Tensor]]) -> list[Layer]:
    """What the oracles are about to see, layer by layer; without those whose gradient is not finite or zero."""
    names = {id(p): name for name, p, _ in optimizer.named()}
    layers = []
    for group, p in moving:
        state = optimizer.state_of(p, ("momentum_buffer",))
        ball, view = optimizer.ball(group), optimizer.view(group)
        assert p.grad is not None
        if isinstance(ball, Spectral) and is_finite(p.grad.to(state["momentum_buffer"].dtype)):
            member = Member(p, group, state, ball, optimizer.length(group), view)
            (seen,), _ = momentum(Batch([member], loose=True))
            layers.append(look_at(names[id(p)], state, ball.polar, view.cut(gathered(seen))))
    return [layer for layer in layers if layer is not None]


def look_at(name: str, state: dict[str, Any], oracle: PolarMethod, matrices: list[Tensor]) -> Layer | None:
    """The layer as it is now; None if what the oracle sees is zero."""
    parts = []
    for matrix in matrices:
        n, m = matrix.shape[-2:]
        for one in matrix.detach().reshape(-1, n, m):
            values = torch.linalg.svdvals(one.double())
            kept = values[values > rank_threshold(one.double(), one.dtype)].cpu().numpy()  # the rest is rounding
            if kept.size:
                parts.append(((n, m), kept))
    return Layer(name, state, oracle, tuple(parts)) if parts else None


@dataclass
class Precision:
    """What an optimizer was asked to do about precision.

    Attributes:
        policy: None keeps every layer's own oracle.
        reference: the oracle at which lr and momentum were tuned; None leaves them alone.
        rule: one of the four rules.
        every: steps between two looks.
        history: (step, layer, oracle) of every change of choice.
    """

    policy: Policy | None
    reference: PolarMethod | None
    rule: str
    every: int
    history: list[tuple[int, str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        find(self.rule)
        if self.reference is not None and not isinstance(self.reference, PolarMethod):
            raise TypeError(f"reference must be a polar method, such as polar.PolarExpress(5), got {self.reference!r}")
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1:
            raise ValueError(f"look_every must be an integer of at least 1, got {self.every!r}")

    @property
    def active(self) -> bool:
        """Whether there is anything to do."""
        return self.policy is not None or self.reference is not None

    def ball(self, ball: Ball, state: dict[str, Any]) -> Ball:
        """The ball of a layer: its own, with the chosen oracle if a policy decides."""
        if self.policy is None or not isinstance(ball, Spectral) or "choice" not in state:
            return ball
        return replace(ball, polar=self.policy.candidates[state["choice"]])

    def decide(self, layers: list[Layer], step: int) -> None:
        """New choices, then new factors, written into the states."""
        if self.policy is not None and layers:
            for layer, choice in zip(layers, self._choices(layers), strict=True):
                if layer.state.get("choice") != choice:
                    self.history.append((step, layer.name, str(self.policy.candidates[choice])))
                layer.state["choice"] = choice
        if self.reference is not None:
            for layer in layers:
                oracle = layer.oracle if self.policy is None else self.policy.candidates[layer.state["choice"]]
                self._carry(layer, find(self.rule)(layer.judge(self.reference), layer.judge(oracle)))

    def _choices(self, layers: list[Layer]) -> list[int]:
        policy = self.policy
        assert policy is not None
        costs = np.array([[layer.flops(m) for m in policy.candidates] for layer in layers], dtype=np.float64)
        if policy.by == "rms":
            values = np.array([[layer.rms(m) for m in policy.candidates] for layer in layers])
        else:
            found = [[layer.judge(m) for m in policy.candidates] for layer in layers]
            plain = isinstance(policy, Budget) and not policy.weighted
            values = np.array([[r.factor if plain else r.stochastic_factor for r in row] for row in found])
        if isinstance(policy, Adaptive):
            present = [layer.state.get("choice") for layer in layers]
            return policy.decide(costs, values, present, [layer.rank for layer in layers])
        if policy.by == "rms":
            return list(allocate(costs, values**2, policy.flops, [layer.rank for layer in layers]))
        return list(allocate(costs, values, policy.flops, [la.dual for la in layers] if policy.weighted else None))

    def _carry(self, layer: Layer, factors: Factors) -> None:
        for key, new in (("lr_factor", factors.lr), ("alpha_factor", factors.alpha)):
            old = layer.state.get(key)
            layer.state[key] = new if old is None else old ** (1.0 - SMOOTH) * new**SMOOTH
