"""Polar methods that compose odd polynomials."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import ClassVar

import torch
from torch import Tensor

from inexact_muon import schedules
from inexact_muon.polar._base import PolarMethod
from inexact_muon.polar.iteration import GRAM_ASPECT, Factor, factors_of, multiplier, restarts, run, supports_gram
from inexact_muon.schedules.design import CUSHION, MOST_STEPS

MOST_NUMBERS = 32
"""Coefficients of one step of a `Polynomial`: degree 63."""


@dataclass(frozen=True)
class Composition(PolarMethod):
    """Shared by all of them: how a schedule is run."""

    from_gram: ClassVar[bool] = True

    @cached_property
    def map(self) -> schedules.Schedule:
        return self.schedule

    @property
    @abstractmethod
    def schedule(self) -> schedules.Schedule:
        """Coefficients with their design interval and source."""

    def runs_gram(self, n: int, m: int, dtype: torch.dtype) -> bool:
        """Whether this shape runs in Gram form: if asked, or m/n > 1.5 and the dtype can bear it.

        In float32 and float64 the two forms agree within 2e-3 and 1e-9; in float16 the Gram form adds at most 0.015 to
        the overshoot of a method with a bound below 0.15; bfloat16 cannot bear it.
        """
        if self.form == "auto":
            wide = max(n, m) > GRAM_ASPECT * min(n, m) and len(self.map.coefficients) > 1
            return wide and supports_gram(self.map, dtype)
        return self.form == "gram"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form == "gram" and self.dtype is not None and not supports_gram(self.map, self.dtype):
            name = str(self.dtype).removeprefix("torch.")
            other = "float16 or float32" if supports_gram(self.map, torch.float16) else "float32"
            raise ValueError(f"{self}: the Gram form diverges in {name}: use form='direct', or dtype {other}")

    def dtype_on(self, device: torch.device) -> torch.dtype:
        found = super().dtype_on(device)
        if self.form != "gram" or supports_gram(self.map, found):
            return found
        return torch.float16 if supports_gram(self.map, torch.float16) else torch.float32

    def flops(self, n: int, m: int) -> int:
        return self._flops(n, m, self.dtype or torch.float32)

    def flops_on(self, n: int, m: int, device: torch.device | str | None) -> int:
        return self._flops(n, m, self.dtype_on(torch.device(device or "cpu")))

    def _flops(self, n: int, m: int, dtype: torch.dtype) -> int:
        degrees = [2 * len(step) - 1 for step in self.map.coefficients]
        extra = 0
        if self.normaliser == "schatten8":
            extra = 2 * min(n, m) ** 3
        if self.runs_gram(n, m, dtype):
            return extra + schedules.gram_flops(n, m, degrees, restarts(len(degrees), dtype))
        return extra + schedules.direct_flops(n, m, degrees)

    def multiplier(self, gram: Tensor) -> Tensor:
        (factor,) = factors_of(self.map, ())
        return multiplier(gram, factor, self.normaliser)

    @cached_property
    def _forms(self) -> dict[torch.dtype, tuple[list[Factor], list[Factor]]]:
        """The factors in direct form, and in Gram form, for each compute dtype."""
        steps = len(self.map.coefficients)
        direct = factors_of(self.map, tuple(range(1, steps)))
        return {dtype: (direct, factors_of(self.map, restarts(steps, dtype))) for dtype in self.dtypes}

    def _solve(self, xs: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
        gram = [self.runs_gram(x.shape[-2], x.shape[-1], dtype) for x in xs]
        solved: dict[int, Tensor] = {}
        for form, factors in enumerate(self._forms[dtype]):
            taken = [i for i, wanted in enumerate(gram) if wanted == bool(form)]
            if taken:
                answers = run([xs[i] for i in taken], factors, dtype, self.normaliser)
                solved.update(zip(taken, answers, strict=True))
        return [solved[i] for i in range(len(xs))]


@dataclass(frozen=True)
class NewtonSchulz(Composition):
    """Classical Newton-Schulz: the Taylor polynomial of degree 3, 5, 7 or 9 at every step.

    Never overshoots, converges with order (degree+1)/2, and is slow to lift small singular values: degree
    5 multiplies them by 15/8 a step.
    """

    name: ClassVar[str] = "newton-schulz"

    steps: int = 5
    degree: int = 5

    @property
    def schedule(self) -> schedules.Schedule:
        if self.degree not in (3, 5, 7, 9):
            raise ValueError(f"newton-schulz: degree must be 3, 5, 7 or 9, got {self.degree}")
        return schedules.newton_schulz(self.steps, self.degree)


@dataclass(frozen=True)
class Jordan(Composition):
    """Jordan's quintic (3.4445, -4.7750, 2.0315) at every step: the Muon that everybody runs.

    Steep, so that five steps reach singular values of 1.5e-3, and never closer to 1 than 0.3182.
    """

    name: ClassVar[str] = "jordan"

    steps: int = 5

    @property
    def schedule(self) -> schedules.Schedule:
        return schedules.jordan(self.steps)


@dataclass(frozen=True)
class You(Composition):
    """J. You's lists of 5 or 6 quintics."""

    name: ClassVar[str] = "you"

    steps: int = 5

    @property
    def schedule(self) -> schedules.Schedule:
        return schedules.you(self.steps)


@dataclass(frozen=True)
class Cesista(Composition):
    """F. Cesista's list of 5 quintics."""

    name: ClassVar[str] = "cesista"

    steps: int = 5

    @property
    def schedule(self) -> schedules.Schedule:
        return schedules.cesista(self.steps)


_GROWTH = {3: 5.2, 5: 8.5, 7: 17.9, 9: 45.2}


def bears(dtype: torch.dtype, degrees: Iterable[int], safety: float) -> bool:
    """Whether a minimax composition with this safety factor is sound in a dtype.

    Rounding in a step moves singular values by about 0.3 eps times the sum of the absolute (shifted)
    coefficients of a steep minimax polynomial; above the safety factor the next step amplifies them.
    """
    growth = max(_GROWTH.get(degree, torch.inf) for degree in degrees)
    return torch.finfo(dtype).bits >= 32 or safety >= 1.0 + 0.15 * growth * torch.finfo(dtype).eps


@dataclass(frozen=True)
class PolarExpress(Composition):
    """Minimax composition with cushion and safety factor, made for (steps, lower, degree): arXiv 2505.16932.

    Attributes:
        lower: smallest singular value, relative to the normaliser, that shall come close to 1.
        degree: odd degree of the polynomials, one for all or one per step.
        safety: factor by which a singular value may exceed 1 through rounding.
        cushion: cap on the ratio of a step's design interval, which bounds the rounding error.
    """

    name: ClassVar[str] = "polar-express"
    why_not_half: ClassVar[str] = ": half precision needs a larger safety factor at this degree"
    auto_normalise: ClassVar[str] = "schatten4"

    steps: int = 5
    lower: float = 1e-3
    degree: int | tuple[int, ...] = 5
    safety: float = 1.01
    cushion: float = CUSHION

    @cached_property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        degrees = (self.degree,) if isinstance(self.degree, int) else self.degree
        return tuple(dtype for dtype in super().dtypes if bears(dtype, degrees, self.safety))

    @property
    def schedule(self) -> schedules.Schedule:
        return schedules.polar_express(self.steps, self.lower, self.degree, self.safety, self.cushion)


@dataclass(frozen=True)
class Cans(Composition):
    """Pure minimax composition, the smallest delta on [lower, 1] for its degrees: arXiv 2506.10935.

    With no tolerance for singular values above its design interval, it is sound in float32 and float64 only.
    """

    name: ClassVar[str] = "cans"
    why_not_half: ClassVar[str] = ": half precision needs a safety factor, which polar-express has"
    auto_normalise: ClassVar[str] = "schatten4"

    steps: int = 5
    lower: float = 1e-3
    degree: int | tuple[int, ...] = 5

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        return (torch.float64, torch.float32)

    @property
    def schedule(self) -> schedules.Schedule:
        return schedules.cans(self.steps, self.lower, self.degree)


@dataclass(frozen=True)
class Polynomial(Composition):
    """Anyone's own schedule: one tuple of coefficients of s, s^3, s^5, ... per step."""

    name: ClassVar[str] = "polynomial"

    coefficients: tuple[tuple[float, ...], ...]

    @property
    def schedule(self) -> schedules.Schedule:
        return schedules.Schedule(0.0, "given by the user", self.coefficients)

    def __post_init__(self) -> None:
        count = len(self.coefficients) if isinstance(self.coefficients, tuple | list) else 0
        if count > MOST_STEPS:
            raise ValueError(f"polynomial: coefficients must have at most {MOST_STEPS} steps, got {count}")
        try:
            rows = tuple(tuple(float(c) for c in step) for step in self.coefficients)
        except TypeError:
            raise TypeError("polynomial: coefficients must be one sequence of numbers per step") from None
        if not rows or any(len(step) < 2 for step in rows):
            raise ValueError("polynomial: coefficients needs at least one step of at least two numbers")
        if max(map(len, rows)) > MOST_NUMBERS:
            raise ValueError(
                f"polynomial: a step has at most {MOST_NUMBERS} coefficients, got {max(map(len, rows))}: compose steps"
            )
        if not all(isfinite(c) for step in rows for c in step):
            raise ValueError("polynomial: coefficients must be finite")
        object.__setattr__(self, "coefficients", rows)
        super().__post_init__()
