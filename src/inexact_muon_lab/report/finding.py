"""The result of judging a claim."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite

from inexact_muon_lab.statistics import Interval, PValues, Verdict


@dataclass(frozen=True)
class Count:
    """How many of the numbers that were checked break a claim about every single one."""

    broken: int
    checked: int


@dataclass(frozen=True)
class Finding:
    """One claim on one body of evidence.

    Attributes:
        evidence: study and oracle family.
        statistic: the statistic, in words and numbers.
        interval: its 95 % t interval over seeds.
        p: the p-values of the claim on this evidence.
        unit: what was sampled, if not seeds.
        zone: range of the statistic in which the claim is true, for pictures; the verdict is that of `p`.
        count: for a claim about every single number, which has no sampling error.
        on_edge: an optimum lies on the edge of its grid, so that the true one may lie outside.
    """

    evidence: str
    statistic: str
    interval: Interval
    p: PValues
    note: str = ""
    unit: str = "seed"
    count: Count | None = None
    on_edge: bool = False
    zone: tuple[float, float] = (0.0, inf)
    testable: bool = True
    """Whether evidence of this kind can decide the claim at all."""
    required: int = 0
    """Number of seeds that the study's declaration requires for this claim; 0 without one."""

    @property
    def counted(self) -> bool:
        """Whether numbers were counted instead of sampled."""
        return self.count is not None

    @cached_property
    def verdict(self) -> Verdict:
        """Verdict for this claim alone; `claims.judge` corrects for the number of claims."""
        return self.p.verdict()

    @property
    def sample(self) -> str:
        """ "1 seed", "3 seeds"."""
        return f"{self.interval.n} {self.unit}{'' if self.interval.n == 1 else 's'}"

    @property
    def range(self) -> str:
        """The interval as text; a dash for fewer than two seeds, words if nothing is estimated."""
        i = self.interval
        if self.counted:
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
        if self.counted or not isfinite(i.detectable):
            return ""
        return f"one {self.unit} varies by {i.spread:.2g}; {self.sample} detect {i.detectable:.2g}"


def joined(*notes: str) -> str:
    """The notes that say something, in one line."""
    return "; ".join(filter(None, notes))
