"""Polar methods that compose odd polynomials."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from inexact_muon import schedules
from inexact_muon.polar._base import NAMES, PolarMethod
from inexact_muon.polar.iteration import Segment, factors_of, multiplier, run
from inexact_muon.schedules.design import CUSHION
from inexact_muon.schedules.scalar_map import restarts

COMMON = len(fields(PolarMethod))


@dataclass(frozen=True)
class Composition(PolarMethod):
    """A composition of odd polynomials, in direct or Gram form."""

    from_gram: ClassVar[bool] = True
    design: ClassVar[Callable[..., schedules.Schedule]]
    """Makes the map; takes the fields that the class adds."""

    @cached_property
    def map(self) -> schedules.Schedule:
        return type(self).design(**{field.name: getattr(self, field.name) for field in fields(self)[COMMON:]})

    def runs_gram(self, n: int, m: int, dtype: torch.dtype) -> bool:
        """Whether n x m matrices use the Gram form in this dtype: see `Schedule.runs_gram`."""
        return self.map.runs_gram(n, m, NAMES[dtype], self.form)

    def multiplier(self, gram: Tensor) -> Tensor:
        (segment,) = factors_of(self.map.guarded(NAMES[gram.dtype]), ())
        return multiplier(gram, replace(segment, weights=self.map.weights), self.normaliser)

    @cached_property
    def _forms(self) -> dict[torch.dtype, tuple[list[Segment], list[Segment]]]:
        """Compute dtype -> (factors in direct form, factors in Gram form)."""
        steps = len(self.map.coefficients)
        forms = {}
        for dtype in self.dtypes:
            direct, gram = (self.map.guarded(NAMES[dtype], form) for form in (False, True))
            parts = restarts(steps, NAMES[dtype])
            forms[dtype] = factors_of(direct, tuple(range(1, steps))), factors_of(gram, parts)
        return forms

    def solve(self, xs: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
        gram = [self.map.runs_gram(x.shape[-2], x.shape[-1], NAMES[dtype], self.form) for x in xs]
        results: dict[int, Tensor] = {}
        for form in dict.fromkeys(gram):
            indices = [i for i, other in enumerate(gram) if other == form]
            solved = run([xs[i] for i in indices], self._forms[dtype][form], dtype, self.normaliser, self.map.weights)
            results.update(zip(indices, solved, strict=True))
        return [results[i] for i in range(len(xs))]


@dataclass(frozen=True)
class NewtonSchulz(Composition):
    """Classical Newton-Schulz: the Taylor polynomial of degree 3, 5, 7 or 9 at every step.

    Never overshoots and converges with order (degree+1)/2, but raises small singular values slowly: degree 5 multiplies
    them by 15/8 per step.
    """

    name: ClassVar[str] = "newton-schulz"
    design = staticmethod(schedules.newton_schulz)

    steps: int = 5
    degree: int = 5


@dataclass(frozen=True)
class Jordan(Composition):
    """Jordan's quintic (3.4445, -4.7750, 2.0315) at every step: the polynomial of most Muon implementations.

    Steep at 0, so that five steps reach singular values of 1.5e-3. From two steps on the error on [lower, 1] is never
    below 0.3182 for lower <= 0.5.
    """

    name: ClassVar[str] = "jordan"
    design = staticmethod(schedules.jordan)

    steps: int = 5


@dataclass(frozen=True)
class You(Composition):
    """J. You's lists of 5 or 6 quintics."""

    name: ClassVar[str] = "you"
    design = staticmethod(schedules.you)

    steps: int = 5


@dataclass(frozen=True)
class Cesista(Composition):
    """F. Cesista's list of 5 quintics."""

    name: ClassVar[str] = "cesista"
    design = staticmethod(schedules.cesista)

    steps: int = 5


@dataclass(frozen=True)
class PolarExpress(Composition):
    """Minimax composition with cushion and safety factor, designed for (steps, lower, degree): arXiv 2505.16932.

    Attributes:
        lower: lower end of the design interval [lower, 1] of singular values relative to the normaliser.
        degree: odd degree of the polynomials, one for all or one per step.
        safety: factor by which a singular value may exceed 1 through rounding.
        cushion: lower bound on the ratio l/u of a step's design interval [l, u], which limits rounding errors.
        power: approximate U diag(s^power) V^T instead of the polar factor, s being the normalised singular values, by a
            weighted sum of the iterates; see `Zolotarev`. In direct form only, with one more pass per step.
    """

    name: ClassVar[str] = "polar-express"
    design = staticmethod(schedules.polar_express)
    why_not_half: ClassVar[str] = ": half precision needs a larger safety factor at this degree"
    auto_normalise: ClassVar[str] = "schatten4"

    steps: int = 5
    lower: float = 1e-3
    degree: int | tuple[int, ...] = 5
    safety: float = 1.01
    cushion: float = CUSHION
    power: float = field(default=0.0, kw_only=True)


@dataclass(frozen=True)
class Cans(Composition):
    """Pure minimax composition, the smallest delta on [lower, 1] for its degrees: arXiv 2506.10935.

    It has no safety factor, so it is stable in float32 and float64 only; there its steps are computed with a margin
    for rounding (`schedules.scalar_map.MARGIN`), which lowers the smallest singular values by 6e-5 a step.
    """

    name: ClassVar[str] = "cans"
    design = staticmethod(schedules.cans)
    why_not_half: ClassVar[str] = ": half precision needs a safety factor, which polar-express has"
    auto_normalise: ClassVar[str] = "schatten4"

    steps: int = 5
    lower: float = 1e-3
    degree: int | tuple[int, ...] = 5


@dataclass(frozen=True)
class Polynomial(Composition):
    """A user-defined schedule: one tuple of coefficients of s, s^3, s^5, ... per step."""

    name: ClassVar[str] = "polynomial"
    design = staticmethod(schedules.polynomial)

    coefficients: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "coefficients", self.map.coefficients)
        super().__post_init__()
