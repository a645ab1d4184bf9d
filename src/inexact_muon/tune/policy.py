"""Which oracle each layer gets: a policy as a frozen value, and pure functions that decide. Experimental.

Decisions are integers, places in a list of candidates. Costs and factors are tables of numbers, so that nothing here
knows an optimizer, and the same tables give the same decision everywhere; `Control` applies them. In the one study of
them policies did not pay: docs/figures/precision-study.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inexact_muon.inexactness import predict
from inexact_muon.polar import PolarExpress, PolarMethod, parse, words
from inexact_muon.schedules import grammar

Array = NDArray[np.float64]

LADDER: tuple[PolarMethod, ...] = tuple(
    PolarExpress(steps, lower=lower)
    for steps, lowers in (
        (2, (0.1, 0.03)),
        (3, (0.1, 0.03, 0.01)),
        (4, (0.03, 0.01, 3e-3)),
        (5, (0.01, 3e-3, 1e-3)),
        (6, (1e-3, 3e-4)),
        (7, (1e-4,)),
        (8, (1e-4,)),
    )
    for lower in lowers
)
"""Fewer steps for a larger `lower`: steps alone are a poor knob, see docs/cotuning.md."""


@dataclass(frozen=True)
class Adaptive:
    """The candidate of fewest flops that is good enough, looked at every so many steps. Experimental: see this module.

    Attributes:
        target: a layer may have this stochastic factor nu^(1/4) ((1-eta+nu)/2)^(3/4) / (1-eta); or all layers together
            this rms error.
        every: steps between two looks.
        candidates: polar methods, or their texts.
        hysteresis: a candidate is taken up only if its excess, factor - 1, is below (1 - hysteresis) (target - 1), and
            kept while it is below target - 1: excesses that move within such a band cause no flapping.
        by: "factor", or "rms": the Frobenius distance of the whole step to the exact one over sqrt(rank), which counts
            small singular values as much as large ones; the least flops for it, spent where they win most.
    """

    name: ClassVar[str] = "adaptive"

    target: float = 1.05
    every: int = 50
    candidates: tuple[PolarMethod, ...] = LADDER
    hysteresis: float = 0.2
    by: str = field(default="factor", kw_only=True)

    def __post_init__(self) -> None:
        _check_by(self.name, self.by)
        if self.by == "factor" and not self.target > 1.0:
            raise ValueError(f"adaptive: target must be above 1, the factor of an exact oracle, got {self.target}")
        if self.by == "rms" and not 0.0 < self.target < 1.0:
            raise ValueError(f"adaptive: with by=rms target must lie between 0 and 1, got {self.target}")
        if not isinstance(self.every, int) or isinstance(self.every, bool) or self.every < 1:
            raise ValueError(f"adaptive: every must be an integer of at least 1, got {self.every!r}")
        if not 0.0 <= self.hysteresis < 1.0:
            raise ValueError(f"adaptive: hysteresis must lie in [0, 1), got {self.hysteresis}")
        if isinstance(self.candidates, str | PolarMethod) or not self.candidates:
            raise ValueError(f"adaptive: candidates must be one or more polar methods, got {self.candidates!r}")
        methods = tuple(parse(c) if isinstance(c, str) else c for c in self.candidates)
        for method in methods:
            if not isinstance(method, PolarMethod):
                raise TypeError(f"adaptive: a candidate must be a polar method, got {type(method).__name__}")
        object.__setattr__(self, "candidates", methods)

    def __str__(self) -> str:
        return grammar.write(self)

    def choose(self, shape: tuple[int, int], singular_values: ArrayLike, current: int | None = None) -> int:
        """The candidate for a single layer of this shape and spectrum, given the present choice."""
        costs, judged = table(self.candidates, shape, singular_values)
        values = judged.rms if self.by == "rms" else judged.stochastic
        return self.decide(costs[None], values[None], [current], [1])[0]

    def decide(self, costs: Array, values: Array, present: Sequence[int | None], ranks: Sequence[int]) -> list[int]:
        """A candidate for each layer, from (layers, candidates) of costs and of stochastic factors or rms errors."""
        if self.by == "factor":
            rows = zip(costs, values, present, strict=True)
            return [choose(c, f, now, self.target, self.hysteresis) for c, f, now in rows]
        squares, limit = np.asarray(ranks)[:, None] * values**2, self.target**2 * sum(ranks)
        chosen = economise(costs, squares, limit)
        now = [k for k in present if k is not None]
        if len(now) == len(chosen) and _total(squares, now) <= limit:
            # What is good enough stays unless a good deal would be saved.
            return now if _total(costs, now) <= (1.0 + self.hysteresis) * _total(costs, chosen) else chosen
        return chosen


@dataclass(frozen=True)
class Budget:
    """Floating point operations per step, spread over the layers so that the worst factor nu/(1-eta) is least.

    Experimental: see this module.

    Attributes:
        flops: of all oracles in a step.
        every: steps between two looks.
        candidates: polar methods, or their texts.
        weighted: minimise the sum of stochastic factors weighted by dual norms instead.
        by: "factor", or "rms": minimise the Frobenius distance of the whole step to the exact one.
    """

    name: ClassVar[str] = "budget"

    flops: float
    every: int = 50
    candidates: tuple[PolarMethod, ...] = LADDER
    weighted: bool = False
    by: str = field(default="factor", kw_only=True)

    def __post_init__(self) -> None:
        _check_by(self.name, self.by)
        if self.by == "rms" and self.weighted:
            raise ValueError("budget: weighted is for by=factor; distances add up by themselves")
        if not 0.0 < self.flops < float("inf"):
            raise ValueError(f"budget: flops must be positive and finite, got {self.flops}")
        object.__setattr__(self, "candidates", Adaptive(every=self.every, candidates=self.candidates).candidates)

    def __str__(self) -> str:
        return grammar.write(self)


def _check_by(name: str, by: str) -> None:
    if by not in ("factor", "rms"):
        raise ValueError(f"{name}: by must be factor or rms, got {by!r}")


Policy = Adaptive | Budget


def parse_policy(text: str) -> Policy:
    """The policy that a text names: "adaptive:1.05", "adaptive(target=1.05, candidates=(you:6, zolotarev:3))".

    >>> parse_policy("adaptive:1.1") == Adaptive(target=1.1)
    True
    """
    made: Any = grammar.read_plugged(
        text, {Adaptive.name: Adaptive, Budget.name: Budget, **words()}, "inexact_muon.polars"
    )
    if not isinstance(made, Policy):
        raise ValueError(f"{text!r} is not a policy: write adaptive(target=1.05)")
    return made


class Judged(NamedTuple):
    """nu/(1-eta), the stochastic factor and the rms error of each candidate."""

    deterministic: Array
    stochastic: Array
    rms: Array


def table(
    candidates: Sequence[PolarMethod], shape: tuple[int, int], singular_values: ArrayLike
) -> tuple[Array, Judged]:
    """(floating point operations, factors) of each candidate on one layer."""
    found = [predict(method, singular_values) for method in candidates]
    costs = np.array([method.flops(*shape) for method in candidates], dtype=np.float64)
    rms = [rms_error(method, singular_values) for method in candidates]
    return costs, Judged(
        np.array([i.factor for i in found]), np.array([i.stochastic_factor for i in found]), np.array(rms)
    )


def rms_error(method: PolarMethod, singular_values: ArrayLike) -> float:
    """||d_hat - d||_F / sqrt(rank) of a method on a spectrum."""
    return method.judge(singular_values).rms


def choose(
    costs: ArrayLike, factors: ArrayLike, current: int | None = None, target: float = 1.05, hysteresis: float = 0.2
) -> int:
    """The candidate of least cost that is good enough; see `Adaptive` for the hysteresis.

    If none is, the best one; then the present choice stays unless the best one's excess is below (1 - hysteresis)
    times its own.

    Args:
        costs: of each candidate, in any unit.
        factors: of each candidate, at least 1; inf for one that does not go downhill.
        current: the present choice, None for the first one.
    """
    cost, factor = _aligned(costs, factors, 1)
    if current is not None and not 0 <= current < cost.size:
        raise ValueError(f"current must be a place among {cost.size} candidates, got {current}")
    excess, wanted, inner = factor - 1.0, target - 1.0, (1.0 - hysteresis) * (target - 1.0)
    good = excess <= inner
    if current is not None and excess[current] <= wanted:
        good[current] = True
    if not good.any():
        good = excess <= wanted
    if good.any():
        order = np.lexsort((factor, np.arange(cost.size) != (-1 if current is None else current), cost))
        return int(next(i for i in order if good[i]))
    best = int(np.lexsort((cost, factor))[0])
    return best if current is None or excess[best] < (1.0 - hysteresis) * excess[current] else current


def allocate(costs: ArrayLike, factors: ArrayLike, budget: float, weights: ArrayLike | None = None) -> tuple[int, ...]:
    """A candidate for each layer, total cost within the budget.

    Without weights: the smallest worst-layer factor max_i factor_i (Theorem 7), exactly, and of all such choices one of
    least cost. With weights: a small sum_i w_i factor_i, such as dual norms give, by the best gain per cost on the
    convex hull of each layer: its distance from the optimum is below one step of one layer.

    Args:
        costs: (layers, candidates).
        factors: (layers, candidates).
        budget: on the sum of the chosen costs.
        weights: one a layer.

    Raises:
        ValueError: the least cost of every layer exceeds the budget.
    """
    cost, factor = _aligned(costs, factors, 2)
    least = float(cost.min(axis=1).sum())
    if not budget >= least:
        raise ValueError(f"budget {budget:.4g} is below {least:.4g}, the cheapest candidate in every layer")
    if weights is None:
        return _smallest_worst(cost, factor, budget)
    weight = np.asarray(weights, dtype=np.float64)
    if weight.shape != cost.shape[:1] or not (np.isfinite(weight) & (weight >= 0.0)).all():
        raise ValueError(f"weights must be {cost.shape[0]} numbers that are finite and not negative")
    taken = np.broadcast_to(weight[:, None] > 0.0, factor.shape)  # a weight of zero times inf is zero
    return _smallest_sum(cost, np.multiply(weight[:, None], factor, out=np.zeros_like(factor), where=taken), budget)


def economise(costs: ArrayLike, values: ArrayLike, limit: float) -> list[int]:
    """A candidate for each layer whose values add up to at most `limit`, cheaply: the best gain per cost first.

    The cost is within one step of one layer of the least. If the limit cannot be had, the best there is.
    """
    cost, value = _aligned(costs, values, 2)
    chosen, steps = _descent(cost, value)
    for _, i, _, a, b in steps:
        if _total(value, chosen) <= limit:
            break
        if chosen[i] == a:
            chosen[i] = b
    return chosen


def _total(table: Array, chosen: Sequence[int]) -> float:
    return float(sum(row[k] for row, k in zip(table, chosen, strict=True)))


def _smallest_worst(cost: Array, factor: Array, budget: float) -> tuple[int, ...]:
    """Bisection over the values that occur: a higher limit never costs more."""
    limits = np.unique(factor)
    low, high = 0, limits.size - 1
    while low < high:
        middle = (low + high) // 2
        within = np.where(factor <= limits[middle], cost, np.inf).min(axis=1).sum() <= budget
        low, high = (low, middle) if within else (middle + 1, high)
    allowed = np.where(factor <= limits[low], cost, np.inf)
    return tuple(int(np.lexsort((f, c))[0]) for c, f in zip(allowed, factor, strict=True))


def _smallest_sum(cost: Array, value: Array, budget: float) -> tuple[int, ...]:
    """Start with the least cost, then take steps along the hulls, steepest first, as long as they fit."""
    chosen, steps = _descent(cost, value)
    left = budget - _total(cost, chosen)
    for _, i, _, a, b in steps:
        more = float(cost[i, b] - cost[i, a])
        if chosen[i] == a and more <= left:  # not if an earlier step of this layer did not fit
            chosen[i], left = b, left - more
    return tuple(chosen)


def _descent(cost: Array, value: Array) -> tuple[list[int], list[tuple[float, int, int, int, int]]]:
    """(the least cost of each layer, every step along the hulls as (gain per cost, layer, place, from, to))."""
    hulls = [_hull(c, v) for c, v in zip(cost, value, strict=True)]
    steps = []
    for i, hull in enumerate(hulls):
        for place, (a, b) in enumerate(pairwise(hull)):
            steps.append((float((value[i, a] - value[i, b]) / (cost[i, b] - cost[i, a])), i, place, a, b))
    return [hull[0] for hull in hulls], sorted(steps, key=lambda s: (-s[0], s[1], s[2]))


def _hull(cost: Array, value: Array) -> list[int]:
    """Lower left convex hull of one layer: candidates in the order of cost, each step with less gain per cost."""
    hull: list[int] = []
    for i in np.lexsort((value, cost)):
        if hull and value[i] >= value[hull[-1]]:
            continue
        while len(hull) > 1:
            a, b = hull[-2], hull[-1]
            if (value[a] - value[b]) * (cost[i] - cost[b]) > (value[b] - value[i]) * (cost[b] - cost[a]):
                break
            hull.pop()
        hull.append(int(i))
    return hull


def _aligned(costs: ArrayLike, factors: ArrayLike, ndim: int) -> tuple[Array, Array]:
    cost, factor = np.asarray(costs, dtype=np.float64), np.asarray(factors, dtype=np.float64)
    if cost.shape != factor.shape or cost.ndim != ndim or not cost.size:
        what = "candidates" if ndim == 1 else "layers x candidates"
        raise ValueError(f"costs and factors must be {what} of one shape, got {cost.shape} and {factor.shape}")
    if not (np.isfinite(cost) & (cost >= 0.0)).all():
        raise ValueError("costs must be finite and not negative")
    if np.isnan(factor).any():
        raise ValueError("factors must be numbers: inf stands for an oracle that does not go downhill")
    return cost, factor
