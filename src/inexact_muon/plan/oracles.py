"""Oracles as a plan sees them: flops of a shape, dtype, error. The twins of `inexact_muon.polar` without tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from inexact_muon.schedules import design
from inexact_muon.schedules.cost import direct_flops, gram_flops, rational_flops
from inexact_muon.schedules.grammar import read, write
from inexact_muon.schedules.scalar_map import ScalarMap
from inexact_muon.schedules.zolotarev import zolotarev

BYTES = {"bfloat16": 2, "float32": 4, "float64": 8}
ROUNDING = {"bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
SPEED = {"bfloat16": 1.0, "float32": 1 / 16, "float64": 1 / 16}
"""Rate of products relative to bfloat16: A100 312, 19.5, 19.5 and H100 SXM 989, 67, 67 TF dense, by their data sheets
(float64 on tensor cores; float32 proper, not TF32)."""

LOWER = 1e-3
QUINTIC = 5
GRAM_ASPECT = 1.5
"""As in `inexact_muon.polar.iteration`: from here on the Gram form needs fewer products."""


@dataclass(frozen=True)
class Oracle(ABC):
    """A polar method for n x m matrices, n <= m after transposing."""

    name: ClassVar[str]

    @property
    @abstractmethod
    def dtype(self) -> str:
        """In which it computes, and in which momentum and answers travel."""

    @property
    @abstractmethod
    def map(self) -> ScalarMap:
        """What it does to one singular value."""

    @abstractmethod
    def flops(self, n: int, m: int) -> int:
        """Of one matrix in one place."""

    @abstractmethod
    def square_flops(self, n: int) -> int:
        """Of the n x n part alone, given X X^T: the factor Q with answer Q X, in float64 and without restarts."""

    @property
    def bytes(self) -> int:
        """Of one number on the wire."""
        return BYTES[self.dtype]

    @property
    def rounding(self) -> float:
        """Unit of rounding: a smaller error of the map is not seen."""
        return ROUNDING[self.dtype]

    @property
    def error(self) -> float:
        """max |1 - f(s)| on [1e-3, 1], before rounding."""
        return self.map.error_bound(LOWER)

    def __str__(self) -> str:
        return write(self)


@dataclass(frozen=True)
class PolarExpress(Oracle):
    """Quintic Polar Express: direct form in bfloat16, or float32 with the Gram form where m > 1.5 n.

    Half precision cannot bear the Gram form (`inexact_muon.polar`), so that form costs the slower dtype.
    """

    name: ClassVar[str] = "polar-express"

    steps: int = 5
    form: Literal["direct", "gram"] = "direct"

    def __post_init__(self) -> None:
        design.check_steps(self.steps)
        if self.form not in ("direct", "gram"):
            raise ValueError(f"form must be direct or gram, got {self.form!r}")

    @property
    def dtype(self) -> str:
        return "bfloat16" if self.form == "direct" else "float32"

    @property
    def map(self) -> ScalarMap:
        return design.polar_express(self.steps, LOWER, QUINTIC)

    def flops(self, n: int, m: int) -> int:
        degrees = [QUINTIC] * self.steps
        if self.form == "gram" and max(n, m) > GRAM_ASPECT * min(n, m) and self.steps > 1:
            return gram_flops(n, m, degrees, range(2, self.steps, 3))
        return direct_flops(n, m, degrees)

    def square_flops(self, n: int) -> int:
        return gram_flops(n, n, [QUINTIC] * self.steps) - 4 * n**3


@dataclass(frozen=True)
class Zolotarev(Oracle):
    """The rational method in float32; factorisations are counted at the rate of products, which flatters it."""

    name: ClassVar[str] = "zolotarev"

    poles: int = 3

    def __post_init__(self) -> None:
        if not 1 <= self.poles <= 3:
            raise ValueError(f"poles must be 1, 2 or 3 (with more the shifts need float64), got {self.poles}")

    @property
    def dtype(self) -> str:
        return "float32"

    @property
    def map(self) -> ScalarMap:
        return zolotarev(self.poles, LOWER)

    def flops(self, n: int, m: int) -> int:
        return rational_flops(n, m, self.poles)

    def square_flops(self, n: int) -> int:
        return rational_flops(n, n, self.poles) - 4 * n**3


ORACLES: dict[str, type[Oracle]] = {"polar-express": PolarExpress, "zolotarev": Zolotarev}

LADDER: tuple[Oracle, ...] = (
    *(PolarExpress(steps) for steps in range(1, 9)),
    *(PolarExpress(steps, "gram") for steps in range(1, 9)),
    *(Zolotarev(poles) for poles in (1, 2, 3)),
)
"""Every precision of a plan."""


def parse(text: str) -> Oracle:
    """ "polar-express:5" -> PolarExpress(5)."""
    oracle: Oracle = read(text, ORACLES)
    return oracle
