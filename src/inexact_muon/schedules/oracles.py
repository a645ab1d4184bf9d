"""Oracles without torch: scalar map, precision and matrix operations, and inexactness on a spectrum.

`polar.PolarMethod` derives from `Oracle` and adds the computation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inexact_muon._text import nearest, write
from inexact_muon.schedules.operations import Operation, dtype_name
from inexact_muon.schedules.scalar_map import FORMS, Array, ScalarMap

HALF = 0.5
"""A singular direction counts as lifted if the oracle makes it at least this long."""


@dataclass(frozen=True)
class Judgement:
    """delta = max |1-f(s)|, gap = 1 - <s, f(s)>/sum s, overshoot = max |f(s)| over the spectrum.

    lifted is the share of all singular directions, null ones included, with f(s) >= 1/2.
    rms, the root of the mean of (1-f(s))^2, is the Frobenius distance to the exact polar factor over the square root of
    the rank: all singular directions have the same weight, however small s is.
    """

    delta: float
    gap: float
    overshoot: float
    rms: float
    lifted: float


def judge(scalar_map: ScalarMap, singular_values: ArrayLike, normalise: str = "frobenius") -> Judgement:
    """Inexactness of a map on a spectrum, in exact arithmetic. Zero singular values count for `lifted` only.

    Args:
        singular_values: in any order and scale.
        normalise: the upper bound on the largest one by which the method divides.
    """
    values = np.asarray(singular_values, dtype=np.float64)
    s = values[values > 0.0]
    if s.size == 0:
        raise ValueError("singular_values has no positive entry: at least one is needed")
    f = scalar_map.scalar(s / normaliser(s, normalise))
    return Judgement(
        delta=float(np.abs(1.0 - f).max()),
        gap=float(1.0 - (s * f).sum() / s.sum()),
        overshoot=float(np.abs(f).max()),
        rms=float(np.sqrt(np.mean((1.0 - f) ** 2))),
        lifted=float((f >= HALF).sum() / values.size),
    )


def normaliser(singular_values: Array, normalise: str) -> float:
    """Schatten norm of a spectrum: frobenius (p = 2), schatten4 or spectral (the largest singular value)."""
    top = float(singular_values.max())
    if normalise == "spectral":
        return top
    power = {"frobenius": 2, "schatten4": 4}[normalise]
    return top * float(((singular_values / top) ** power).sum()) ** (1.0 / power)


NORMALISERS = ("frobenius", "schatten4")
"""Upper bounds on the largest singular value: ||X||_F, and ||X X^T||_F^(1/2), which comes free with the Gram matrix."""


@dataclass(frozen=True)
class Oracle(ABC):
    """The properties of a map M -> approximately U V^T, M = U diag(sigma) V^T, that do not depend on a matrix.

    Attributes:
        dtype: compute dtype; None selects the fast one of the device.
        form: direct, gram, or auto.
        normalise: one of `NORMALISERS`, or auto.
    """

    name: ClassVar[str]
    forms: ClassVar[tuple[str, ...]] = FORMS
    auto_normalise: ClassVar[str] = "frobenius"
    why_not_half: ClassVar[str] = ""
    from_gram: ClassVar[bool] = False

    dtype: Any = field(default=None, kw_only=True)
    form: str = field(default="auto", kw_only=True)
    normalise: str = field(default="auto", kw_only=True)

    def __post_init__(self) -> None:
        known = tuple(
            map(dtype_name, self.dtypes)
        )  # designs the map, so that a bad argument raises here and not in training
        if self.dtype is not None and dtype_name(self.dtype) not in known:
            raise ValueError(f"{self}: dtype must be one of {', '.join(known)}{self.why_not_half}")
        if self.form not in self.forms:
            raise ValueError(f"{self.name}: form must be one of {', '.join(self.forms)}, got {self.form!r}")
        if self.form == "gram" and not self.map.gram_dtypes:
            raise ValueError(f"{self}: a tilted composition has no Gram form: leave form out, or use power=0")
        if self.form == "gram" and self.dtype is not None and dtype_name(self.dtype) not in self.map.gram_dtypes:
            stable = "float16 or float32" if "float16" in self.map.gram_dtypes else "float32"
            raise ValueError(
                f"{self}: the Gram form diverges in {dtype_name(self.dtype)}: use form='direct', or dtype {stable}"
            )
        if self.normalise != "auto" and self.normalise not in NORMALISERS:
            raise ValueError(
                f"{self.name}: unknown normalise {self.normalise!r}: {nearest(self.normalise, ('auto', *NORMALISERS))}"
            )

    @property
    @abstractmethod
    def map(self) -> ScalarMap:
        """The scalar map f, with its source."""

    @property
    def dtypes(self) -> tuple[Any, ...]:
        """Compute dtypes in which the method is numerically stable."""
        return self.map.dtypes

    @cached_property
    def normaliser(self) -> str:
        """`normalise`, or the default of the method for auto."""
        return self.auto_normalise if self.normalise == "auto" else self.normalise

    def scalar(self, s: ArrayLike) -> NDArray[np.float64]:
        """The scalar map f at singular values s of the normalised matrix."""
        return self.map.scalar(s)

    def judge(self, singular_values: ArrayLike) -> Judgement:
        """delta, gap, overshoot and rms on a spectrum, in exact arithmetic."""
        return judge(self.map, singular_values, self.normaliser)

    def error_bound(self, lower: float) -> float:
        """max |1 - scalar(s)| over [lower, 1]; lower is relative to the method's own normaliser."""
        return self.map.error_bound(lower)

    def dtype_on(self, device: str = "cpu") -> str:
        """Dtype of the products on a device type: bfloat16 where it is fast and stable, float32 on a CPU."""
        half = device != "cpu" and "bfloat16" in map(dtype_name, self.dtypes)
        fast = self.map.for_form("bfloat16" if half else "float32", self.form)
        return self.map.computes_in(dtype_name(self.dtype) if self.dtype else fast)

    def operations(self, n: int, m: int, device: str = "cpu") -> tuple[Operation, ...]:
        """The matrix operations for one n x m matrix on a device type; `Costs.of` computes their cost.

        A method with a new kind of map overrides this, or only `flops`, which are then priced as products.
        """
        (n, m), dtype = sorted((n, m)), self.dtype_on(device)
        if type(self).flops is not Oracle.flops:
            return (Operation("product", n, n, n, self.flops(n, m) / (2 * n**3), dtype),)
        return self.map.operations(n, m, dtype, self.form)

    def flops(self, n: int, m: int) -> int:
        """Floating-point operations for one n x m matrix on a CPU (products and factorisations only)."""
        return int(sum(o.flops for o in self.operations(n, m)))

    def __str__(self) -> str:
        return write(self)
