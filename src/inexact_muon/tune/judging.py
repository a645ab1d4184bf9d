"""What candidates would do to each layer, from the singular values of what its oracle is about to see."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
import torch
from torch import Tensor

from inexact_muon.inexactness import Inexactness, predict
from inexact_muon.polar import PolarMethod
from inexact_muon.polar.exact import rank_threshold
from inexact_muon.tune.policy import Adaptive, Array, Budget, Policy, allocate, rms_error


@dataclass(frozen=True)
class Layer:
    """One layer at a look.

    Attributes:
        name: of its parameter.
        parts: the shape of each matrix and its singular values above rounding.
        device: on which its oracle runs.
    """

    name: str
    parts: tuple[tuple[tuple[int, int], Array], ...]
    device: str = "cpu"

    def judge(self, method: PolarMethod) -> Inexactness:
        """As one point of the product ball: largest delta and overshoot, gap weighted by dual norms."""
        found = [(predict(method.at(*shape, self.device), values), float(values.sum())) for shape, values in self.parts]
        total = sum(dual for _, dual in found)
        gap = sum(record.gap * dual for record, dual in found) / total
        return Inexactness(max(r.delta for r, _ in found), gap, max(r.overshoot for r, _ in found))

    def rms(self, method: PolarMethod) -> float:
        """The Frobenius distance to the exact answer over sqrt(rank), of all its matrices together."""
        squares = (v.size * rms_error(method.at(*shape, self.device), v) ** 2 for shape, v in self.parts)
        return sqrt(sum(squares) / self.rank)

    def flops(self, method: PolarMethod) -> int:
        """Of all its matrices."""
        return sum(method.flops_on(*shape, self.device) for shape, _ in self.parts)

    @property
    def rank(self) -> int:
        """How many singular values there are."""
        return sum(values.size for _, values in self.parts)

    @property
    def dual(self) -> float:
        """The dual norm of what the oracle sees."""
        return sum(float(values.sum()) for _, values in self.parts)


def look(name: str, matrices: Iterable[Tensor]) -> Layer | None:
    """The layer whose oracle is about to see these; None if they are zero."""
    parts, device = [], "cpu"
    for matrix in matrices:
        n, m = matrix.shape[-2:]
        device = matrix.device.type
        for one in matrix.detach().reshape(-1, n, m):
            values = torch.linalg.svdvals(one.double())
            kept = values[values > rank_threshold(one.double(), one.dtype)].cpu().numpy()  # the rest is rounding
            if kept.size:
                parts.append(((n, m), kept))
    return Layer(name, tuple(parts), device) if parts else None


def choices(policy: Policy, layers: Sequence[Layer], present: Sequence[int | None]) -> list[int]:
    """A place among the policy's candidates for each layer, given the present ones."""
    costs = np.array([[layer.flops(m) for m in policy.candidates] for layer in layers], dtype=np.float64)
    if policy.by == "rms":
        values = np.array([[layer.rms(m) for m in policy.candidates] for layer in layers])
    else:
        found = [[layer.judge(m) for m in policy.candidates] for layer in layers]
        plain = isinstance(policy, Budget) and not policy.weighted
        values = np.array([[r.factor if plain else r.stochastic_factor for r in row] for row in found])
    if isinstance(policy, Adaptive):
        return policy.decide(costs, values, present, [layer.rank for layer in layers])
    if policy.by == "rms":
        return list(allocate(costs, values**2, policy.flops, [layer.rank for layer in layers]))
    return list(allocate(costs, values, policy.flops, [layer.dual for layer in layers] if policy.weighted else None))
