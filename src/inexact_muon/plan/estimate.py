"""From flops and bytes to fractions of a step, by given rates. No overlap, no latency.

    model      6 N D / (gpus * flops * efficiency)      N active parameters, D tokens: 2 N D forward, 4 N D backward
    oracle     sum over dtypes of flops of the busiest rank / (flops * SPEED[dtype] * efficiency)
    link       bytes that the busiest rank sends / link
    share      (oracle + link) / (model + gradients + oracle + link)

Attention scores, recomputed activations, weights gathered by FSDP and tensor-parallel traffic of the model do not
depend on the optimizer and are left out: they would reduce the share.
"""

from __future__ import annotations

from dataclasses import dataclass

from inexact_muon.plan.layout import MOST_MATRICES, Layout
from inexact_muon.plan.models import Model
from inexact_muon.plan.strategies import DEVICE, Cost, cost, refusal
from inexact_muon.schedules.operations import EPS
from inexact_muon.schedules.oracles import Oracle, parse
from inexact_muon.schedules.prices import ACCELERATOR
from inexact_muon.strategies import OwnerRank, Strategy

LOWER = 1e-3
"""Errors are maxima over [LOWER, 1]."""

SPEED = {dtype: 1 / price for dtype, price in ACCELERATOR.dtypes.items()}
"""Rate of products relative to bfloat16."""

LADDER: tuple[Oracle, ...] = (
    *(parse(f"polar-express:{steps}") for steps in range(1, 9)),
    *(parse(f"polar-express({steps}, dtype=float32)") for steps in range(1, 9)),
    *(parse(f"zolotarev:{poles}") for poles in (1, 2, 3)),
)
"""Oracles of a plan: direct form in bfloat16, and float32 with the Gram form where it is cheaper."""

LEAST, MOST = 1e-6, 1e12
"""Range of valid rates and sizes."""


@dataclass(frozen=True)
class Machine:
    """One rank.

    Attributes:
        flops: peak of bfloat16 products, in TF; default: H100 SXM by its data sheet (dense).
        link: GB/s that a rank can send to any other; default: one 400 Gb/s adapter per rank.
        efficiency: fraction of the peak that products reach, in the model and in the oracle.
        memory: GB.
    """

    flops: float = 989.0
    link: float = 50.0
    efficiency: float = 0.4
    memory: float = 80.0

    def __post_init__(self) -> None:
        for name in ("flops", "link", "efficiency", "memory"):
            value = getattr(self, name)
            if not LEAST <= value <= MOST:
                raise ValueError(f"{name} must be positive, between {LEAST:g} and {MOST:g}, got {value}")
        if self.efficiency > 1:
            raise ValueError(f"efficiency must be at most 1, got {self.efficiency}")


@dataclass(frozen=True)
class Estimate:
    """One strategy with one oracle: its cost, and the seconds of one step."""

    strategy: Strategy
    oracle: Oracle
    cost: Cost
    model: float
    gradients: float
    compute: float
    link: float

    @property
    def dtype(self) -> str:
        """Dtype of the oracle's computation, and of momentum and directions on the wire."""
        return self.oracle.dtype_on(DEVICE)

    @property
    def rounding(self) -> float:
        """Unit roundoff: smaller errors of the map are invisible."""
        return EPS[self.dtype] / 2

    @property
    def error(self) -> float:
        """max |1 - f(s)| on [LOWER, 1], before rounding."""
        return self.oracle.error_bound(LOWER)

    @property
    def step(self) -> float:
        """Seconds of the whole step."""
        return self.model + self.gradients + self.compute + self.link

    @property
    def share(self) -> float:
        """Fraction of the step for the oracle: flops and bytes."""
        return (self.compute + self.link) / self.step


@dataclass(frozen=True)
class Plan:
    """Every strategy with one oracle, and every oracle with the best exact strategy.

    Attributes:
        refused: (strategy, why) of those that do not apply to the layout.
        best: the exact strategy with the shortest step that fits the memory; None if none fits.
    """

    model: Model
    layout: Layout
    machine: Machine
    strategies: tuple[Estimate, ...]
    refused: tuple[tuple[Strategy, str], ...]
    best: Estimate | None
    precisions: tuple[Estimate, ...]

    def fits(self, e: Estimate) -> bool:
        """Whether the strategy fits the memory, without activations."""
        return e.cost.memory <= 1e9 * self.machine.memory


def estimate(model: Model, layout: Layout, machine: Machine, strategy: Strategy, oracle: Oracle) -> Estimate:
    """The formulas of this file."""
    found = cost(strategy, model, layout, oracle)
    rate = 1e12 * machine.flops * machine.efficiency
    return Estimate(
        strategy,
        oracle,
        found,
        model=6 * model.active_parameters * model.tokens / (layout.gpus * rate),
        gradients=found.gradients / (1e9 * machine.link),
        compute=sum(flops / (rate * SPEED[dtype]) for dtype, flops in found.work.items()),
        link=found.sent / (1e9 * machine.link),
    )


def plan(model: Model, layout: Layout, machine: Machine, oracle: Oracle, tried: tuple[Strategy, ...]) -> Plan:
    """Everything that the page shows."""
    if not model.matrices:
        raise ValueError(f"{model.name} has no hidden matrix: there is nothing for an oracle to do")
    if (count := sum(w.count for w in model.matrices)) > MOST_MATRICES:
        raise ValueError(f"{model.name} has {count:,} matrices, at most {MOST_MATRICES:,} can be planned")
    refused = tuple((s, why) for s in tried if (why := refusal(s, layout)))
    usable = [s for s in tried if not refusal(s, layout)]
    made = tuple(estimate(model, layout, machine, s, oracle) for s in usable)
    draft = Plan(model, layout, machine, made, refused, None, ())
    exact = [e for e in made if e.strategy.exact and draft.fits(e)]
    best = min(exact, key=lambda e: e.step, default=None)
    ladder = best.strategy if best else OwnerRank()
    precisions = tuple(estimate(model, layout, machine, ladder, o) for o in LADDER)
    return Plan(model, layout, machine, made, refused, best, precisions)
