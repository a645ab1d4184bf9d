"""Oracles without torch: scalar map, precision and matrix operations, and the parts of an oracle's text.

`polar.PolarMethod` derives from `Oracle` and adds the computation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from ast import literal_eval
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from inspect import Parameter, signature
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inexact_muon._text import call, nearest, write
from inexact_muon.schedules import design, published, zolotarev
from inexact_muon.schedules.decomposition import Exact
from inexact_muon.schedules.judge import Judgement, judge
from inexact_muon.schedules.operations import Operation, dtype_name
from inexact_muon.schedules.scalar_map import FORMS, ScalarMap

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


DESIGNS: dict[str, Callable[..., ScalarMap]] = {
    "polar-express": design.polar_express,
    "newton-schulz": design.newton_schulz,
    "jordan": published.jordan,
    "you": published.you,
    "cesista": published.cesista,
    "cans": design.cans,
    "polynomial": published.polynomial,
    "zolotarev": zolotarev.zolotarev,
    "exact-svd": lambda: Exact(),
}
"""Name of an oracle -> the function that designs its map; its parameters are the oracle's own options."""

BY_GRAM = ("polar-express", "cans", "zolotarev")
"""Oracles that are normalised by schatten4 unless told otherwise; the others by frobenius."""

COUNTS = ("steps", "poles")
"""Options that count iterations."""


@dataclass(frozen=True)
class OracleText:
    """The parts of an oracle's text: "polar-express(steps=5, lower=0.01)" -> family, iterations, the rest.

    Texts of one oracle have equal parts: options that are defaults are left out.
    """

    family: str
    iterations: int | None
    options: tuple[str, ...] = ()

    @property
    def plain(self) -> bool:
        """Whether it is a family at a number of iterations, without other options."""
        return self.iterations is not None and not self.options

    @property
    def full(self) -> str:
        """The family, with all of its options."""
        return f"{self.family}({', '.join(self.options)})" if self.options else self.family

    @property
    def label(self) -> str:
        """The family, with the options that change the map: not the normaliser, which may tell two oracles apart."""
        return replace(self, options=tuple(o for o in self.options if not o.startswith("normalise="))).full


@lru_cache(maxsize=1024)  # the runs of a study name few oracles
def parts(text: str) -> OracleText:
    """Split a text into its parts; the family is the whole text if it cannot be parsed."""
    try:
        name, arguments = call(text)
    except ValueError:
        name, arguments = "", []
    if not name:
        return OracleText(text, None)
    own = signature(DESIGNS[name]).parameters if name in DESIGNS else {}
    count = next((own[key].default for key in COUNTS if key in own), None)
    names = [key for key, parameter in own.items() if parameter.kind is not parameter.KEYWORD_ONLY]
    options = []
    for index, (key, value) in enumerate(arguments):
        option = key or (names[index] if index < len(names) else "")
        if value.isdigit() and (option in COUNTS or (not key and index == 0)):
            count = int(value)
        elif name not in DESIGNS or _canonical(value) not in _defaults(name, option, own):
            options.append(f"{option}={_canonical(value)}" if option else value)
    return OracleText(name, count, tuple(sorted(options) if name in DESIGNS else options))


def _defaults(name: str, option: str, own: Mapping[str, Parameter]) -> tuple[str, ...]:
    """Texts of an option's default; "auto" is also the normaliser that it stands for."""
    if option == "normalise":
        return "auto", "schatten4" if name in BY_GRAM else "frobenius"
    defaults = {"dtype": None, "form": "auto", **{key: parameter.default for key, parameter in own.items()}}
    return (_canonical(str(defaults[option])),) if option in defaults else ()


def _canonical(text: str) -> str:
    """One text for all ways to write a number."""
    try:
        return repr(literal_eval(text))
    except (ValueError, SyntaxError):
        return text
