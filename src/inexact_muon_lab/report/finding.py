"""The result of judging a claim, and the unit of its statistic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, floor, inf, isfinite, log, log2, log10

from inexact_muon_lab.statistics import OPEN, Interval, PValues, interval


@dataclass
class Finding:
    """One claim on one body of evidence.

    Attributes:
        evidence: study and oracle family.
        statistic: the statistic, in words and numbers.
        interval: its 95 % t interval over seeds.
        p: the p-values of this claim alone; `claims.judge` corrects for the number of claims.
        unit: what was sampled, if not seeds.
        count: (broken, checked) of a claim about every single number, which has no sampling error.
        on_edge: an optimum lies on the edge of its grid, so that the true one may lie outside.
        zone: range of the statistic in which the claim is true, for pictures; the verdict is that of `p`.
        testable: whether evidence of this kind can decide the claim at all.
        required: number of seeds that the study's declaration requires for this claim; 0 without one.
        verdict: of this claim alone.
        sample: "1 seed", "3 seeds".
    """

    evidence: str
    statistic: str
    interval: Interval
    p: PValues
    note: str = ""
    unit: str = "seed"
    count: tuple[int, int] | None = None
    on_edge: bool = False
    zone: tuple[float, float] = (0.0, inf)
    testable: bool = True
    required: int = 0

    def __post_init__(self) -> None:
        self.verdict = self.p.verdict()
        self.sample = f"{self.interval.n} {self.unit}{'' if self.interval.n == 1 else 's'}"

    @property
    def range(self) -> str:
        """The interval as text; a dash for fewer than two seeds, words if nothing is estimated."""
        i = self.interval
        if self.count:
            return "counted"
        if i.identical or i.counted:
            return f"{i.mean:.4g} for every {self.unit}"
        return f"[{i.low:.4g}, {i.high:.4g}]" if isfinite(i.low) else "-"

    @property
    def noise(self) -> str:
        """The spread of one seed and the detectable difference; empty if unknown."""
        i = self.interval
        if i.identical:
            return f"every {self.unit} gives the same value, and a sample without spread decides nothing"
        if self.count or not isfinite(i.detectable):
            return ""
        return f"one {self.unit} varies by {i.spread:.2g}; {self.sample} detect {i.detectable:.2g}"


def unknown(evidence: str, why: str = "", unit: str = "seed") -> Finding:
    """The finding on evidence that has no data for a claim."""
    return Finding(evidence, "", interval([]), OPEN, why, unit)


def joined(*notes: str) -> str:
    """The notes that say something, in one line."""
    return "; ".join(filter(None, notes))


@dataclass(frozen=True)
class Unit:
    """The unit of a claim's statistic, and its axis in the forest plot; units of one title share an axis.

    Attributes:
        title: quantity and unit, as written over the axis.
        label: a position on the axis in the unit of the title.
        ticks: positions of ticks between two ends.
        suffix: what follows a number in a sentence.
        position: where on the axis a value of the statistic lies.
    """

    title: str
    label: Callable[[float], str]
    ticks: Callable[[float, float], list[float]]
    suffix: str = ""
    position: Callable[[float], float] = float

    def text(self, value: float) -> str:
        """A value of the statistic, in the unit of the axis."""
        return self.label(self.position(value))


def _linear(low: float, high: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, about five of them."""
    rough = (high - low) / 5
    power = 10.0 ** floor(log10(rough))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= rough)
    return [step * k for k in range(ceil(low / step), floor(high / step) + 1)]


def _logarithmic(low: float, high: float) -> list[float]:
    ratios = (0.125, 0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0, 8.0, 16.0)
    return [log2(ratio) for ratio in ratios if low <= log2(ratio) <= high]


LOSS = Unit("Difference of two losses (nats)", lambda x: f"{x:+.4f}".rstrip("0").rstrip("."), _linear, " nats")
SHARE = Unit("Difference of two shares (percentage points)", lambda x: f"{100 * x:+.3g}", _linear, " points")
COUNT = Unit("Numbers outside of their bounds (counted, no sampling error)", lambda x: f"{x:.0f}", _linear)
LOG2_RATIO = Unit("Ratio (logarithmic; 1 is no difference)", lambda x: f"{2.0**x:.3g}", _logarithmic)
LOG_RATIO = replace(LOG2_RATIO, position=lambda value: value / log(2.0))
RATIO = replace(LOG2_RATIO, position=lambda value: log2(value) if value > 0.0 else -inf)
