"""Scalar maps as products of factors, each of which has one property that the map of an oracle may have.

They are for experiments that vary one property at a time. s is a singular value over the largest one. They are not
computed by an iteration: `Shaped` applies them to a decomposition.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from math import isfinite, prod
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from inexact_muon.polar.exact import Decomposed, decompose
from inexact_muon.schedules.design import extrema
from inexact_muon.schedules.scalar_map import Array, ByDecomposition

POINTS = 64
"""Grid points per factor e of s in the search for extrema; more if a factor oscillates."""


@dataclass(frozen=True)
class Shape(ABC):
    """A factor of a map: a positive function of s in (0, 1]."""

    name: ClassVar[str]

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
                raise ValueError(f"{self.name}: {field.name} must be a finite number, got {value!r}")
        if problem := self.problem():
            raise ValueError(f"{self.name}: {problem}")

    @abstractmethod
    def __call__(self, s: Array) -> Array:
        """The factor at each s in (0, 1]."""

    def problem(self) -> str:
        """Description of invalid parameters; empty if they are valid."""
        return ""

    @property
    def kinks(self) -> tuple[float, ...]:
        """Points at which the factor or its derivative may be discontinuous: `tau`, if it has one."""
        return (self.tau,) if hasattr(self, "tau") else ()

    @property
    def rate(self) -> float:
        """Radians (`frequency`) or widths per factor e of s, for the grid of the search for extrema."""
        return getattr(self, "frequency", 1.0) / (getattr(self, "width", 0.0) or 1.0)


@dataclass(frozen=True)
class Power(Shape):
    """s^p: p = 1 gives M/sigma_1, p = 0 the polar factor, and p < 0 favours small singular values."""

    name: ClassVar[str] = "power"
    p: float = 0.5

    def problem(self) -> str:
        return "" if abs(self.p) <= 4.0 else f"p must lie in [-4, 4], got {self.p}"

    def __call__(self, s: Array) -> Array:
        return np.asarray(s**self.p)


@dataclass(frozen=True)
class Floor(Shape):
    """1 above tau, `value` below it; with `width` > 0 a logistic curve in log s of this width instead of a step."""

    name: ClassVar[str] = "floor"
    tau: float = 0.01
    value: float = 0.5
    width: float = 0.0

    def problem(self) -> str:
        good = 0.0 < self.tau < 1.0 and self.value >= 0.0 and (self.width == 0.0 or self.width >= 0.01)
        return "" if good else "tau must lie in (0, 1), value must be at least 0, width 0 or at least 0.01"

    def __call__(self, s: Array) -> Array:
        if self.width == 0.0:
            return np.where(s < self.tau, self.value, 1.0)
        return self.value + (1.0 - self.value) / (1.0 + np.exp(np.minimum(-np.log(s / self.tau) / self.width, 700.0)))


@dataclass(frozen=True)
class Ripple(Shape):
    """1 + amplitude cos(frequency log s), similar to an equioscillating map."""

    name: ClassVar[str] = "ripple"
    amplitude: float = 0.1
    frequency: float = 4.0

    def problem(self) -> str:
        good = abs(self.amplitude) < 1.0 and 0.0 < self.frequency <= 100.0
        return "" if good else "|amplitude| must be below 1 and frequency lie in (0, 100]"

    def __call__(self, s: Array) -> Array:
        return 1.0 + self.amplitude * np.cos(self.frequency * np.log(s))


@dataclass(frozen=True)
class Top(Shape):
    """1 below tau, then linear in log s up to `value` at s = 1: an overshoot of the leading directions."""

    name: ClassVar[str] = "top"
    value: float = 1.5
    tau: float = 0.3

    def problem(self) -> str:
        return "" if 0.0 < self.tau < 1.0 and self.value >= 0.0 else "tau must lie in (0, 1), value must be at least 0"

    def __call__(self, s: Array) -> Array:
        return 1.0 + (self.value - 1.0) * np.maximum(0.0, 1.0 - np.log(s) / np.log(self.tau))


@dataclass(frozen=True)
class Dip(Shape):
    """1 - depth exp(-(log(s/centre)/width)^2/2): damps singular values near `centre`; depth < 0 raises them."""

    name: ClassVar[str] = "dip"
    depth: float = 0.5
    centre: float = 0.1
    width: float = 0.7

    def problem(self) -> str:
        good = self.depth <= 1.0 and 0.0 < self.centre <= 1.0 and self.width >= 0.05
        return "" if good else "depth must be at most 1, centre lie in (0, 1], width be at least 0.05"

    def __call__(self, s: Array) -> Array:
        return 1.0 - self.depth * np.exp(-0.5 * (np.log(s / self.centre) / self.width) ** 2)


@dataclass(frozen=True)
class Contra(Shape):
    """1 - a s: damps the leading directions."""

    name: ClassVar[str] = "contra"
    a: float = 0.5

    def problem(self) -> str:
        return "" if self.a <= 1.0 else f"a must be at most 1, got {self.a}"

    def __call__(self, s: Array) -> Array:
        return 1.0 - self.a * s


@dataclass(frozen=True)
class Clip(Shape):
    """min(s/tau, 1): proportional to the singular value below tau."""

    name: ClassVar[str] = "clip"
    tau: float = 0.01

    def problem(self) -> str:
        return "" if 0.0 < self.tau <= 1.0 else f"tau must lie in (0, 1], got {self.tau}"

    def __call__(self, s: Array) -> Array:
        return np.minimum(s / self.tau, 1.0)


SHAPES: dict[str, type[Shape]] = {shape.name: shape for shape in (Power, Floor, Ripple, Top, Dip, Contra, Clip)}
"""Name -> class, used to parse text."""


@dataclass(frozen=True)
class ShapedMap(ByDecomposition):
    """The product of the factors, 1 if there are none; 0 at s = 0."""

    factors: tuple[Shape, ...]

    def scalar(self, s: ArrayLike) -> Array:
        x = np.asarray(s, dtype=np.float64)
        size = np.abs(x)
        inside = np.where(size > 0.0, size, 1.0)
        return np.sign(x) * prod((factor(inside) for factor in self.factors), start=np.ones_like(inside))

    def image(self, low: float, high: float) -> tuple[float, float]:
        kinks = sorted({k for factor in self.factors for k in factor.kinks if low < k <= high})
        candidates = [low, high, *kinks, *(float(np.nextafter(k, 0.0)) for k in kinks)]
        edges = [low, *(k for k in kinks if k < high), high]
        rate = max([1.0, *(factor.rate for factor in self.factors)])
        for first, right in pairwise(edges):
            last = float(np.nextafter(right, 0.0)) if right in kinks else right
            candidates += extrema(self.scalar, first, last, 3 + int(POINTS * rate * np.log(last / first))).tolist()
        values = self.scalar(candidates)
        return float(values.min()), float(values.max())


@dataclass(frozen=True)
class Shaped(Decomposed):
    """U diag(f(sigma/sigma_1)) V^T with f a product of shapes, by a decomposition in float64.

    There is no error other than f, so that its effect on training can be studied. With f = 1 it is `ExactSVD`.

    Attributes:
        factors: factors of f, from this module.

    Example:
        >>> str(Shaped((Power(0.25),)))
        'shaped(factors=(power(p=0.25),))'
    """

    name: ClassVar[str] = "shaped"
    auto_normalise: ClassVar[str] = "spectral"

    factors: tuple[Shape, ...] = ()

    def __post_init__(self) -> None:
        factors = (self.factors,) if isinstance(self.factors, Shape) else self.factors
        if not isinstance(factors, tuple | list) or not all(isinstance(factor, Shape) for factor in factors):
            raise ValueError(f"shaped: factors must be shapes such as power(p=0.25), got {factors!r}")
        object.__setattr__(self, "factors", tuple(factors))
        super().__post_init__()

    @cached_property
    def map(self) -> ShapedMap:
        return ShapedMap(0.0, "product of shapes", self.factors)

    def solve_one(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        u, s, vh, nonzero = decompose(x, dtype)
        top = torch.where(s[..., :1] > 0, s[..., :1], torch.ones_like(s[..., :1]))
        f = torch.from_numpy(self.map.scalar((s / top).cpu().double().numpy())).to(s)
        return (u * (f * nonzero).unsqueeze(-2)) @ vh
