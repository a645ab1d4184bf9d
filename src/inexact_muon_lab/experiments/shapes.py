"""Scalar maps as products of factors, each of which has one property that the map of an oracle may have.

They are for experiments that vary one property at a time. s is a singular value over the largest one. They are not
computed by an iteration: `Shaped` applies them to a decomposition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, make_dataclass
from functools import cached_property
from inspect import signature
from itertools import pairwise
from math import isfinite, prod
from typing import Any, ClassVar

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
class Shape:
    """A factor of a map, positive for s in (0, 1], with its parameters: see `shape`."""

    name: ClassVar[str]
    function: ClassVar[Callable[..., Array]]
    valid: ClassVar[Callable[..., bool]]
    rule: ClassVar[str]

    def __post_init__(self) -> None:
        for key, value in vars(self).items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
                raise ValueError(f"{self.name}: {key} must be a finite number, got {value!r}")
        if not self.valid(**vars(self)):
            raise ValueError(f"{self.name}: {self.rule.format(**vars(self))}")

    def __call__(self, s: Array) -> Array:
        """The factor at each s in (0, 1]."""
        return self.function(s, **vars(self))

    @property
    def kinks(self) -> tuple[float, ...]:
        """Points at which the factor or its derivative may be discontinuous: `tau`, if it has one."""
        return tuple(value for key, value in vars(self).items() if key == "tau")

    @property
    def rate(self) -> float:
        """Radians (`frequency`) or widths per factor e of s, for the grid of the search for extrema."""
        parameters = vars(self)
        return float(parameters.get("frequency", 1.0) / (parameters.get("width") or 1.0))


def shape(rule: str, valid: Callable[..., bool]) -> Callable[[Callable[..., Array]], Any]:
    """The class of a shape from a function of s and of parameters with defaults.

    Args:
        rule: what the parameters have to fulfil, for the error message.
        valid: whether they do.
    """

    def class_of(function: Callable[..., Array]) -> Any:
        parameters = list(signature(function).parameters.values())[1:]
        members: dict[str, Any] = {
            "name": function.__name__,
            "rule": rule,
            "__doc__": function.__doc__,
            "__module__": __name__,
        }
        members |= {"function": staticmethod(function), "valid": staticmethod(valid)}
        fields = [(p.name, float, p.default) for p in parameters]
        return make_dataclass(function.__name__, fields, bases=(Shape,), namespace=members, frozen=True)

    return class_of


@shape("p must lie in [-4, 4], got {p}", lambda p: abs(p) <= 4.0)
def power(s: Array, p: float = 0.5) -> Array:
    """s^p: p = 1 gives M/sigma_1, p = 0 the polar factor, and p < 0 favours small singular values."""
    return np.asarray(s**p)


@shape(
    "tau must lie in (0, 1), value must be at least 0, width 0 or at least 0.01",
    lambda tau, value, width: 0.0 < tau < 1.0 and value >= 0.0 and (width == 0.0 or width >= 0.01),
)
def floor(s: Array, tau: float = 0.01, value: float = 0.5, width: float = 0.0) -> Array:
    """1 above tau, `value` below it; with `width` > 0 a logistic curve in log s of this width instead of a step."""
    if width == 0.0:
        return np.where(s < tau, value, 1.0)
    return value + (1.0 - value) / (1.0 + np.exp(np.minimum(-np.log(s / tau) / width, 700.0)))


@shape(
    "|amplitude| must be below 1 and frequency lie in (0, 100]",
    lambda amplitude, frequency: abs(amplitude) < 1.0 and 0.0 < frequency <= 100.0,
)
def ripple(s: Array, amplitude: float = 0.1, frequency: float = 4.0) -> Array:
    """1 + amplitude cos(frequency log s), similar to an equioscillating map."""
    return 1.0 + amplitude * np.cos(frequency * np.log(s))


@shape(
    "tau must lie in (0, 1), value must be at least 0",
    lambda value, tau: 0.0 < tau < 1.0 and value >= 0.0,
)
def top(s: Array, value: float = 1.5, tau: float = 0.3) -> Array:
    """1 below tau, then linear in log s up to `value` at s = 1: an overshoot of the leading directions."""
    return 1.0 + (value - 1.0) * np.maximum(0.0, 1.0 - np.log(s) / np.log(tau))


@shape(
    "depth must be at most 1, centre lie in (0, 1], width be at least 0.05",
    lambda depth, centre, width: depth <= 1.0 and 0.0 < centre <= 1.0 and width >= 0.05,
)
def dip(s: Array, depth: float = 0.5, centre: float = 0.1, width: float = 0.7) -> Array:
    """1 - depth exp(-(log(s/centre)/width)^2/2): damps singular values near `centre`; depth < 0 raises them."""
    return 1.0 - depth * np.exp(-0.5 * (np.log(s / centre) / width) ** 2)


@shape("a must be at most 1, got {a}", lambda a: a <= 1.0)
def contra(s: Array, a: float = 0.5) -> Array:
    """1 - a s: damps the leading directions."""
    return 1.0 - a * s


@shape("tau must lie in (0, 1], got {tau}", lambda tau: 0.0 < tau <= 1.0)
def clip(s: Array, tau: float = 0.01) -> Array:
    """min(s/tau, 1): proportional to the singular value below tau."""
    return np.minimum(s / tau, 1.0)


SHAPES: dict[str, type[Shape]] = {cls.name: cls for cls in (power, floor, ripple, top, dip, contra, clip)}
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
        >>> str(Shaped((power(0.25),)))
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
