"""Units of claims: where a statistic lies on the axis that claims of its kind share, and how it is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, floor, inf, log, log2, log10

RATIOS = (0.125, 0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0, 8.0, 16.0)
"""Values that may be ticks of a logarithmic axis."""
MOST_TICKS = 5


@dataclass(frozen=True)
class PlotAxis:
    """An axis of the forest plot.

    Attributes:
        title: quantity and unit, as written over the axis.
        text: a position on the axis in the unit of the title.
        ticks: positions of ticks between two ends.
        unit: what follows a number in a sentence.
    """

    title: str
    text: Callable[[float], str]
    ticks: Callable[[float, float], list[float]]
    unit: str = ""


@dataclass(frozen=True)
class Unit:
    """The unit of a claim's statistic: its axis, and the position on it of a value of the statistic."""

    axis: PlotAxis
    position: Callable[[float], float] = float

    def text(self, value: float) -> str:
        """A value of the statistic, in the unit of the axis."""
        return self.axis.text(self.position(value))


def _linear(low: float, high: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, at most MOST_TICKS."""
    rough = (high - low) / MOST_TICKS
    power = 10.0 ** floor(log10(rough))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= rough)
    return [step * k for k in range(ceil(low / step), floor(high / step) + 1)]


def _logarithmic(low: float, high: float) -> list[float]:
    return [log2(ratio) for ratio in RATIOS if low <= log2(ratio) <= high]


def _log2(value: float) -> float:
    return log2(value) if value > 0.0 else -inf


LOSSES = PlotAxis("Difference of two losses (nats)", lambda x: f"{x:+.4f}".rstrip("0").rstrip("."), _linear, " nats")
RATIO = PlotAxis("Ratio (logarithmic; 1 is no difference)", lambda x: f"{2.0**x:.3g}", _logarithmic)
SHARES = PlotAxis("Difference of two shares (percentage points)", lambda x: f"{100 * x:+.3g}", _linear, " points")
COUNTS = PlotAxis("Numbers outside of their bounds (counted, no sampling error)", lambda x: f"{x:.0f}", _linear)

LOSS = Unit(LOSSES)
SHARE = Unit(SHARES)
LOG2_RATIO = Unit(RATIO)
LOG_RATIO = Unit(RATIO, lambda value: value / log(2.0))
PLAIN_RATIO = Unit(RATIO, _log2)
COUNT = Unit(COUNTS)
