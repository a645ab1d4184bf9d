"""Oracles without torch: scalar map, precision and matrix operations.

`polar.PolarMethod` derives from `Oracle` and adds the computation. `FAMILIES` has the named oracles of this package for
code that does not load torch; both use the design functions of `schedules`, so their maps are the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from ast import literal_eval
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields, make_dataclass, replace
from functools import cached_property
from inspect import signature
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inexact_muon._text import call, nearest, read, write
from inexact_muon.schedules import design, published, zolotarev
from inexact_muon.schedules.decomposition import Exact
from inexact_muon.schedules.judge import Judgement, judge
from inexact_muon.schedules.operations import Operation, dtype_name
from inexact_muon.schedules.scalar_map import FORMS, ScalarMap

NORMALISERS = ("frobenius", "schatten4", "schatten8", "gershgorin", "tightest")
"""Upper bounds on the largest singular value. All but the first come free with the Gram matrix.

schatten4 = ||X X^T||_F^(1/2), schatten8 = ||(X X^T)^2||_F^(1/4) (one more n x n product unless the first
polynomial needs it), gershgorin = the largest row sum of |X X^T|, to the power 1/2, tightest = the smaller
of schatten4 and gershgorin. Row sums are not invariant under rotations: with the last two the
result is orthogonally equivariant only up to the method's error.
"""


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
        bound = (Operation("product", n, n, n, 1, dtype),) if self.normaliser == "schatten8" else ()
        return (*bound, *self.map.operations(n, m, dtype, self.form))

    def flops(self, n: int, m: int) -> int:
        """Floating-point operations for one n x m matrix on a CPU (products and factorisations only)."""
        return int(sum(o.flops for o in self.operations(n, m)))

    def __str__(self) -> str:
        return write(self)


@dataclass(frozen=True)
class Designed(Oracle):
    """An oracle whose fields, besides those of `Oracle`, are the arguments of a design function."""

    design: ClassVar[Callable[..., ScalarMap]]

    @cached_property
    def map(self) -> ScalarMap:
        shared = {f.name for f in fields(Oracle)}
        return type(self).design(**{f.name: getattr(self, f.name) for f in fields(self) if f.name not in shared})


def family(name: str, design: Callable[..., ScalarMap], **attributes: Any) -> type[Designed]:
    """Create the class of a named oracle; its fields are the arguments of `design`."""
    own = []
    for p in signature(design).parameters.values():
        default = MISSING if p.default is p.empty else p.default
        own.append((p.name, p.annotation, field(default=default, kw_only=p.kind is p.KEYWORD_ONLY)))
    namespace = {"name": name, "design": staticmethod(design), "from_gram": True, **attributes}
    return make_dataclass(name, own, bases=(Designed,), frozen=True, namespace=namespace)


FAMILIES: dict[str, type[Oracle]] = {
    made.name: made
    for made in (
        family("polar-express", design.polar_express, auto_normalise="schatten4"),
        family("newton-schulz", design.newton_schulz),
        family("jordan", published.jordan),
        family("you", published.you),
        family("cesista", published.cesista),
        family("cans", design.cans, auto_normalise="schatten4"),
        family("polynomial", published.polynomial),
        family("zolotarev", zolotarev.zolotarev, auto_normalise="schatten4", forms=("auto", "gram")),
        family("exact-svd", lambda: Exact(), forms=("auto",), from_gram=False),
    )
}
"""Name -> class, used to parse text without torch."""


def parse(text: str) -> Oracle:
    """Parse the text of an oracle in `FAMILIES`: "polar-express(steps=5)", "polar-express:5"."""
    return read(text, FAMILIES)


@dataclass(frozen=True)
class OracleText:
    """The parts of an oracle's text: "polar-express(steps=5, lower=0.01)" -> family, iterations, the rest.

    Texts of one oracle have equal parts: options that are defaults are left out.
    """

    family: str
    iterations: int | None
    options: tuple[str, ...] = ()

    @property
    def full(self) -> str:
        """The family, with all of its options."""
        return f"{self.family}({', '.join(self.options)})" if self.options else self.family

    @property
    def label(self) -> str:
        """The family, with the options that change the map: not the normaliser, which may tell two oracles apart."""
        return replace(self, options=tuple(o for o in self.options if not o.startswith("normalise="))).full


def parts(text: str, but: Sequence[str] = ()) -> OracleText:
    """Split a text into its parts; the family is the whole text if it cannot be parsed or if its name is in `but`."""
    try:
        name, arguments = call(text)
    except ValueError:
        name, arguments = "", []
    if not name or name in but:
        return OracleText(text, None)
    known = FAMILIES.get(name)
    count = getattr(known, "steps", getattr(known, "poles", None))
    names = [f.name for f in fields(known) if not f.kw_only] if known else []
    options = []
    for place, (key, value) in enumerate(arguments):
        field_name = key or (names[place] if place < len(names) else "")
        if value.isdigit() and (field_name in ("steps", "poles") or (not key and place == 0)):
            count = int(value)
        elif known is None or not _is_default(known, field_name, value):
            options.append(f"{field_name}={_canonical(value)}" if field_name else value)
    return OracleText(name, count, tuple(sorted(options) if known else options))


def _is_default(known: type[Oracle], name: str, text: str) -> bool:
    """Whether a field's text is its default; a normaliser's is "auto", and what that stands for."""
    if name == "normalise":
        return text in ("auto", known.auto_normalise)
    return _canonical(text) in [_canonical(str(f.default)) for f in fields(known) if f.name == name]


def _canonical(text: str) -> str:
    """One text for all ways to write a number."""
    try:
        return repr(literal_eval(text))
    except (ValueError, SyntaxError):
        return text
