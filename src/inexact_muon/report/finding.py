"""What a claim's function returns."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from inexact_muon.report.statistics import Interval, Verdict


@dataclass(frozen=True)
class Finding:
    """One claim on one body of evidence.

    Attributes:
        evidence: which study and oracle family.
        statistic: what was computed, in words and numbers.
        interval: the 95 % t interval of that number over seeds.
        unit: what was sampled, if not seeds.
    """

    evidence: str
    statistic: str
    interval: Interval
    verdict: Verdict
    note: str = ""
    unit: str = "seed"

    @property
    def sample(self) -> str:
        """ "1 seed", "3 seeds"."""
        return f"{self.interval.n} {self.unit}{'' if self.interval.n == 1 else 's'}"

    @property
    def range(self) -> str:
        """The interval as text; a dash where there are fewer than two seeds."""
        i = self.interval
        return f"[{i.low:.4g}, {i.high:.4g}]" if isfinite(i.low) else "-"
