"""Which oracle to use, from the momentum of an optimizer: one answer for all layers, in three lines.

An oracle is exact enough for a layer if its gap and overshoot on the layer's own spectrum are at most GAP and
OVERSHOOT. The answer is the cheapest candidate that is exact enough for every layer, or the oracle in use if that is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import inf
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch

from inexact_muon._text import grouped
from inexact_muon.inexactness import Inexactness, worst
from inexact_muon.polar import Auto, PolarExpress, PolarMethod, Zolotarev, parse
from inexact_muon.schedules.prices import ACCELERATOR, CPU, Costs
from inexact_muon_lab.checkpoints.momenta import Momentum, momenta, read
from inexact_muon_lab.tune import rules
from inexact_muon_lab.tune.spectra import Layer, judge_each, spectrum_of, together

GAP, OVERSHOOT = 0.05, 1.15
"""Tolerances on a layer's own spectrum. Five Polar Express steps, which trained as well as eight, meet both."""

CANDIDATES: tuple[PolarMethod, ...] = (
    *(Auto(), Zolotarev(2), Zolotarev(3), Zolotarev(4, lower=1e-4), Zolotarev(5, lower=1e-5)),
    *(PolarExpress(steps) for steps in range(3, 9)),
    *(PolarExpress(steps, lower=1e-5) for steps in (7, 8, 9)),
)
"""Oracles that are tried on every layer."""

WORTH = 0.9
"""An oracle that is exact enough is kept unless another costs less than this share of it."""


@dataclass(frozen=True)
class LayerReport:
    """One momentum matrix: its spectrum, the oracle in use (None if unknown), and what that makes of the spectrum."""

    parameter: str
    layer: Layer
    oracle: PolarMethod | None
    in_use: Inexactness | None


@dataclass(frozen=True)
class Kind:
    """Equal layers under one name, such as "layers.0-11.attn.qkv"."""

    name: str
    reports: tuple[LayerReport, ...]

    @property
    def label(self) -> str:
        """The name; of a file without names the indices of its parameters."""
        plural = "s" if len(self.reports) > 1 else ""
        return f"parameter{plural} {self.name}" if self.reports[0].parameter.isdigit() else self.name

    @property
    def in_use(self) -> Inexactness | None:
        """The worst numbers of its layers; None if the oracle is not known."""
        return worst([r.in_use for r in self.reports if r.in_use is not None])


@dataclass(frozen=True)
class JudgedOracle:
    """An oracle, the cost of a step in multiplications of a product, and its inexactness on each layer."""

    oracle: PolarMethod
    price: float
    each: tuple[Inexactness, ...]


@dataclass(frozen=True)
class Advice:
    """The answer; prints as three lines.

    Attributes:
        reports: every momentum matrix.
        candidates: every oracle that was tried, by cost.
        chosen: what to use: the oracle in use if it is to be kept, and None if no candidate is exact enough.
        paid: cost of the oracle in use; None if it is not known.
        lr: the learning rate in use, if all layers have one.
    """

    reports: tuple[LayerReport, ...]
    candidates: Sequence[JudgedOracle]
    chosen: JudgedOracle | None
    paid: float | None
    lr: float | None

    @property
    def oracle(self) -> PolarMethod | None:
        """What to use, None if no candidate is exact enough."""
        return None if self.chosen is None else self.chosen.oracle

    @cached_property
    def recommended(self) -> Inexactness | None:
        """Its inexactness on all layers as one."""
        return None if self.chosen is None else together([r.layer for r in self.reports], self.chosen.each)

    @property
    def cost(self) -> float | None:
        """Its cost over that of the oracle in use; None if either is unknown."""
        return None if self.chosen is None or not self.paid else self.chosen.price / self.paid

    @property
    def lr_factor(self) -> float:
        """What to multiply lr by, so that a step keeps its descent (rule `descent`)."""
        known = self.in_use is not None and self.recommended is not None
        return rules.descent(self.in_use, self.recommended).lr if known else 1.0

    @cached_property
    def in_use(self) -> Inexactness | None:
        """The oracles in use on all layers as one point of the product of their balls; None if one is not known."""
        each = [r.in_use for r in self.reports if r.in_use is not None]
        return together([r.layer for r in self.reports], each) if len(each) == len(self.reports) else None

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """Layers of equal names but for numbers, equal shapes and oracles as one."""
        rows = grouped([(r.layer.name, (r.layer.shape, str(r.oracle))) for r in self.reports])
        return tuple(Kind(name, tuple(self.reports[i] for i in indices)) for name, indices in rows)

    def by_parameter(self) -> dict[str, Inexactness]:
        """The oracle in use on each parameter: of the parts of a fused weight the worst, as in `kinds`."""
        parts: dict[str, list[Inexactness]] = {}
        for report in self.reports:
            parts.setdefault(report.parameter, []).extend(() if report.in_use is None else (report.in_use,))
        return {name: i for name, each in parts.items() if (i := worst(each)) is not None}

    @property
    def exact_enough(self) -> bool | None:
        """Whether the oracle in use is exact enough on every layer; None if it is not known."""
        known = [r.in_use for r in self.reports]
        return None if None in known else all(is_exact_enough(i) for i in known if i is not None)

    @property
    def keep(self) -> bool:
        """Whether to keep what is in use."""
        if self.oracle is None or not self.exact_enough:
            return False
        return all(r.oracle == self.oracle.at(*r.layer.shape) for r in self.reports)

    @property
    def lines(self) -> tuple[str, str, str]:
        """How exact the oracle in use is; what to use; why."""
        return self._state(), self._recommendation(), self._why()

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def _state(self) -> str:
        if self.in_use is None:
            return "The oracle in use is not named by the optimizer: name it to see what it loses."
        total, oracles = self.in_use, {text(r.oracle) for r in self.reports if r.oracle is not None}
        name, s = (oracles.pop(), "s") if len(oracles) == 1 else (f"the {len(oracles)} oracles in use", "")
        lifts = f"lift{s} {total.lifted * 100:.0f} % of the directions to at least a half"
        if self.exact_enough:
            return f"Exact enough: {name} lose{s} {_percent(total.gap)} of the descent and {lifts}."
        bad = [(k.in_use.gap, k.label) for k in self.kinds if k.in_use is not None and not is_exact_enough(k.in_use)]
        bad.sort(key=itemgetter(0), reverse=True)
        named = ", ".join(f"{label} ({_percent(gap)})" for gap, label in bad[:3])
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        long = "" if total.overshoot <= OVERSHOOT else f", overshoot{s} by {100 * (total.overshoot - 1):.0f} %"
        return f"{name} lose{s} {_percent(total.gap)} of the descent{long} and {lifts}; most in {named}{more}."

    def _recommendation(self) -> str:
        if self.oracle is None or self.recommended is None:
            return f"No candidate is exact enough in every layer (gap {GAP:g}, overshoot {OVERSHOOT:g}): keep yours."
        if self.keep:
            return "Keep it: no candidate that is exact enough costs clearly less."
        factor = self.lr_factor
        if abs(factor - 1.0) < 0.02:
            lr = "the lr you have"
        elif self.lr is None:
            lr = f"your lr times {factor:.2f}"
        else:
            lr = f"lr {self.lr * factor:.3g} (your lr times {factor:.2f})"
        cost = "" if self.cost is None else f"; it costs {self.cost:.2f} of what you pay now"
        return f'Use polar="{text(self.oracle)}" with {lr}{cost}.'

    def _why(self) -> str:
        if self.recommended is None or self.keep:
            matrices = "the one matrix" if len(self.reports) == 1 else f"each of {len(self.reports)} matrices"
            chosen = f"at most {100 * GAP:.0f} % lost and {100 * (OVERSHOOT - 1):.0f} % overshoot in {matrices}"
        else:
            i, longer = self.recommended, max(0.0, self.recommended.overshoot - 1)
            chosen = f"it loses {_percent(i.gap)}, overshoots by {100 * longer:.0f} %, lifts {100 * i.lifted:.0f} %"
        return f"Why: {chosen}, on your momentum; {self._measure()}."

    def _measure(self) -> str:
        """Why the tolerances are what they are, and whether the oracle they come from meets them here."""
        five = next((one.each for one in self.candidates if one.oracle == PolarExpress(5)), ())
        within = sum(map(is_exact_enough, five))
        if within == len(five):
            return "polar-express:5, which is within this, trained as well as 8 steps"
        return f"polar-express:5, which trained as well as 8 steps, is within this in {within} of {len(five)} here"


def advise(momentum: Any, oracle: PolarMethod | str | None = None) -> Advice:
    """Which oracle to use, from the momentum of an optimizer.

    Takes a float64 SVD of each matrix: milliseconds for small layers, a second for 1024 x 4096.

    Args:
        momentum: an optimizer (of this library, torch.optim.Muon, KellerJordan's, dion's) after a step, its state_dict,
            or the path of a checkpoint. A sharded optimizer is gathered: call it on every rank.
        oracle: the oracle in use, where the optimizer does not name it.

    Raises:
        ValueError: there is no momentum matrix.

    Example:
        print(advise(torch.optim.Muon(...)))   # after some steps
    """
    matrices = read(Path(momentum)) if isinstance(momentum, str | Path) else momenta(momentum)
    if not matrices:
        raise _without(momentum)
    return advise_on(matrices, parse(oracle) if isinstance(oracle, str) else oracle)


def advise_on(
    matrices: Sequence[Momentum], oracle: PolarMethod | None = None, progress: Callable[..., Iterable[Momentum]] = iter
) -> Advice:
    """The advice on momentum matrices. `oracle` replaces the one they name."""
    reports = examine(matrices, oracle, progress)
    layers = [r.layer for r in reports]
    table = CPU if matrices[0].matrix.device.type == "cpu" else ACCELERATOR
    used = [r.oracle for r in reports if r.oracle is not None]
    now = [r.in_use for r in reports if r.in_use is not None]
    paid = _price(table, used, layers) if len(used) == len(reports) else None
    lr = matrices[0].lr if len({m.lr for m in matrices}) == 1 else None
    candidates = compared(table, layers)
    best = next((one for one in candidates if all(map(is_exact_enough, one.each))), None)
    if paid is not None and all(map(is_exact_enough, now)) and (best is None or best.price > WORTH * paid):
        best = JudgedOracle(used[0] if len(set(used)) == 1 else Auto(), paid, tuple(now))
    return Advice(reports, candidates, best, paid, lr)


def examine(
    matrices: Sequence[Momentum], oracle: PolarMethod | None = None, progress: Callable[..., Iterable[Momentum]] = iter
) -> tuple[LayerReport, ...]:
    """Each layer under the given oracle, or else the one that its optimizer names."""
    layers = [spectrum_of(m.name, m.matrix) for m in progress(matrices)]
    at = cache(lambda named, *key: None if named is None else named.at(*key))  # few shapes, maybe many layers
    used = [at(oracle or m.oracle, *layer.shape, m.matrix.device) for m, layer in zip(matrices, layers, strict=True)]
    known = {i: method for i, method in enumerate(used) if method is not None}
    judged = dict(zip(known, judge_each(known.values(), [layers[i] for i in known]), strict=True))
    return tuple(LayerReport(m.parameter, layers[i], used[i], judged.get(i)) for i, m in enumerate(matrices))


def is_exact_enough(inexactness: Inexactness) -> bool:
    """Whether gap and overshoot are within the tolerances."""
    return bool(inexactness.gap <= GAP and inexactness.overshoot <= OVERSHOOT)


def compared(table: Costs, layers: Sequence[Layer]) -> list[JudgedOracle]:
    """Every candidate that the device supports on every layer, by cost."""
    everywhere = {method: [method] * len(layers) for method in CANDIDATES}
    prices = {method: _price(table, methods, layers) for method, methods in everywhere.items()}
    supported = sorted((method for method in CANDIDATES if prices[method] < inf), key=prices.__getitem__)
    return [JudgedOracle(m, prices[m], tuple(judge_each(everywhere[m], layers))) for m in supported]


def _price(table: Costs, methods: Sequence[PolarMethod], layers: Sequence[Layer]) -> float:
    """Cost of one step, in multiplications of a product."""
    kind = "cpu" if table is CPU else "cuda"
    alike = Counter((method, one.shape) for method, one in zip(methods, layers, strict=True)).items()
    return sum(count * table.of(method.at(*s, kind), *s) * min(s) ** 3 for (method, s), count in alike)


def _percent(gap: float) -> str:
    return f"{100.0 * gap:.1f} %" if gap >= 0.0005 else "nothing"


def text(oracle: PolarMethod | None) -> str:
    """The text to paste: without the choices of "auto"."""
    return oracle.short if isinstance(oracle, Auto) else str(oracle)


def _without(momentum: object) -> Exception:
    """What to say of something without a momentum matrix."""
    if isinstance(momentum, torch.optim.Optimizer) and not momentum.state:
        return ValueError("there is no momentum matrix yet: call optimizer.step() first")
    if isinstance(momentum, torch.optim.Optimizer | Mapping | str | Path):
        kind = momentum if isinstance(momentum, str | Path) else type(momentum).__name__
        return ValueError(f"{kind} has no momentum matrix of a Muon (momentum_buffer or momentum of a matrix)")
    kind = type(momentum).__name__
    return TypeError(f"advise needs an optimizer, its state_dict or the path of a checkpoint, got {kind}")
