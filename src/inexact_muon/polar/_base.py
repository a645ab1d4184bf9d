"""Base class of polar methods: frozen dataclasses, callable on (..., n, m), with a known scalar map."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import torch
from numpy import float64
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from inexact_muon._text import nearest, write
from inexact_muon.polar.batching import LIMIT, solve_all
from inexact_muon.schedules.judgement import NORMALISERS, Judgement, judge
from inexact_muon.schedules.prices import Operation
from inexact_muon.schedules.scalar_map import EPS, FORMS, ScalarMap

DTYPES = {name: getattr(torch, name) for name in EPS}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class PolarMethod(ABC):
    """M -> approximately U V^T, where M = U diag(sigma) V^T.

    The result is U diag(f(sigma/c)) V^T, where f is the method's scalar map and c >= sigma_1 its normaliser, up to
    rounding in the compute dtype. The zero matrix maps to zero, and 2^k M bitwise to the result for M.

    Attributes:
        dtype: compute dtype. None selects float64 for float64 input, otherwise bfloat16 on a GPU with native support
            and float32 everywhere else.
        form: direct, gram, or auto (see `inexact_muon.polar.iteration`).
        normalise: one of `inexact_muon.schedules.judgement.NORMALISERS`, or auto.
    """

    name: ClassVar[str]
    forms: ClassVar[tuple[str, ...]] = FORMS
    auto_normalise: ClassVar[str] = "frobenius"
    why_not_half: ClassVar[str] = ""
    from_gram: ClassVar[bool] = False

    dtype: torch.dtype | None = field(default=None, kw_only=True)
    form: str = field(default="auto", kw_only=True)
    normalise: str = field(default="auto", kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.dtype, str):  # from text
            if self.dtype not in DTYPES:
                raise ValueError(f"{self.name}: unknown dtype {self.dtype!r}: {nearest(self.dtype, DTYPES)}")
            object.__setattr__(self, "dtype", DTYPES[self.dtype])
        known = self.map.dtypes  # designs the map, so that a bad argument raises here and not in training
        if self.dtype is not None and NAMES.get(self.dtype) not in known:
            raise ValueError(f"{self}: dtype must be one of {', '.join(known)}{self.why_not_half}")
        if self.form not in self.forms:
            raise ValueError(f"{self.name}: form must be one of {', '.join(self.forms)}, got {self.form!r}")
        stable = self.map.gram_dtypes
        if self.form == "gram" and not stable:
            raise ValueError(f"{self}: a tilted composition has no Gram form: leave form out, or use power=0")
        if self.form == "gram" and self.dtype is not None and NAMES[self.dtype] not in stable:
            other = "float16 or float32" if "float16" in stable else "float32"
            raise ValueError(
                f"{self}: the Gram form diverges in {NAMES[self.dtype]}: use form='direct', or dtype {other}"
            )
        if self.normalise not in ("auto", *NORMALISERS):
            raise ValueError(
                f"{self.name}: unknown normalise {self.normalise!r}: {nearest(self.normalise, ('auto', *NORMALISERS))}"
            )

    @property
    @abstractmethod
    def map(self) -> ScalarMap:
        """The scalar map f, with its source."""

    @cached_property
    def normaliser(self) -> str:
        """`normalise`, or the default of the method for auto."""
        return self.auto_normalise if self.normalise == "auto" else self.normalise

    def scalar(self, s: ArrayLike) -> NDArray[float64]:
        """The scalar map f at singular values s of the normalised matrix."""
        return self.map.scalar(s)

    def judge(self, singular_values: ArrayLike) -> Judgement:
        """delta, gap and overshoot on a spectrum, in exact arithmetic."""
        return judge(self.map, singular_values, self.normaliser)

    def error_bound(self, lower: float) -> float:
        """max |1 - scalar(s)| over [lower, 1]; lower is relative to the method's own normaliser."""
        return self.map.error_bound(lower)

    def dtype_on(self, device: str = "cpu") -> str:
        """Dtype of the products on a device type: bfloat16 where it is fast and stable, float32 on a CPU."""
        half = device != "cpu" and "bfloat16" in self.map.dtypes
        fast = self.map.for_form("bfloat16" if half else "float32", self.form)
        return self.map.computes_in(NAMES[self.dtype] if self.dtype else fast)

    def operations(self, n: int, m: int, device: str = "cpu") -> tuple[Operation, ...]:
        """The matrix operations for one n x m matrix on a device type; `Costs.of` computes their cost.

        A method with a new kind of map overrides this, or only `flops`, which are then priced as products.
        """
        (n, m), dtype = sorted((n, m)), self.dtype_on(device)
        if type(self).flops is not PolarMethod.flops:
            return (Operation("product", n, n, n, self.flops(n, m) / (2 * n**3), dtype),)
        return self.map.operations(n, m, dtype, self.form)

    def flops(self, n: int, m: int) -> int:
        """Floating-point operations for one n x m matrix on a CPU (products and factorisations only)."""
        return int(sum(o.flops for o in self.operations(n, m)))

    @abstractmethod
    def solve(self, xs: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
        """Apply the method to each stack of xs, (batch_i, n, m_i) with the same n <= m_i.

        Matrices are scaled such that products neither overflow nor underflow, or are zero.
        """

    def flops_on(self, n: int, m: int, device: torch.device | str | None) -> int:
        """`flops` in the dtype and form that are used on a device."""
        kind = "accelerator" if at_least(torch.device(device or "cpu"), NATIVE_BFLOAT16) else "cpu"
        return int(sum(operation.flops for operation in self.at(n, m, device).operations(n, m, kind)))

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Compute dtypes in which the method is numerically stable."""
        return tuple(DTYPES[name] for name in self.map.dtypes)

    __str__ = write

    def multiplier(self, gram: Tensor) -> Tensor:
        """The matrix Q of the result Q X, from X X^T alone: (batch, n, n) in float64. Only if `from_gram` is True."""
        raise NotImplementedError(f"{self.name} needs more than the Gram matrix: use a method with from_gram=True")

    def at(self, n: int, m: int, device: torch.device | str | None = None) -> PolarMethod:
        """The method used for n x m matrices on a device: self, except for `Auto`, which chooses by shape."""
        return self

    def only(self, shapes: Sequence[tuple[int, int]], like: Tensor) -> PolarMethod:
        """The method for matrices of all these shapes with this dtype and device; self if `Auto` has several."""
        return self

    def __call__(self, m: Tensor) -> Tensor:
        """The approximate polar factor of real (..., n, m), in the shape, dtype and device of m; m is not modified.

        Raises:
            TypeError: not a tensor, or a complex or integer one.
            ValueError: fewer than two dimensions, or a NaN or infinite entry.
        """
        check_matrix(m)
        check_finite(m)
        return self.orthogonalise(m)

    def orthogonalise(self, m: Tensor) -> Tensor:
        """`__call__` without input checks, which would synchronise an accelerator with the host."""
        return self.orthogonalise_all([m])[0]

    def orthogonalise_all(self, ms: Sequence[Tensor], limit: int = LIMIT, cast: bool = True) -> list[Tensor]:
        """`orthogonalise` of each matrix, batched where that is faster (see `inexact_muon.polar.batching`).

        Args:
            limit: bytes of workspace; a single matrix may take up to six copies of itself regardless.
            cast: return the dtype of the input; if False, results computed in a narrower dtype keep it.
        """
        if not ms:
            return []
        kind = ms[0].device.type
        autocast = kind not in ("cpu", "cuda") or torch.is_autocast_enabled(kind)
        with no_autocast(ms[0]) if autocast else nullcontext():
            return solve_all(ms, self.solve, self.compute_dtype, limit, cast)

    def compute_dtype(self, m: Tensor) -> torch.dtype:
        """Dtype of the matrix products for this input."""
        return self.dtype or (torch.float64 if m.dtype == torch.float64 else self.computes_on(m.device))

    def computes_on(self, device: torch.device) -> torch.dtype:
        """Dtype of the matrix products on a device, for input that is not float64."""
        if self.dtype is not None:
            return self.dtype
        native = device.type == "cuda" and at_least(device, NATIVE_BFLOAT16) and torch.bfloat16 in self.dtypes
        fast = "bfloat16" if native else "float32"
        return DTYPES[self.map.for_form(fast, self.form) if self.form == "gram" else fast]


NATIVE_BFLOAT16 = (8, 0)
"""CUDA compute capability from which bfloat16 products are fast; below it the default is float32."""

FAST_FLOAT16 = (7, 0)
"""CUDA compute capability from which float16 products with float32 accumulation are as fast as bfloat16 ones."""


def at_least(device: torch.device, capability: tuple[int, int]) -> bool:
    """Whether this is a CUDA device of at least this compute capability; assumed if the machine has no such device."""
    if device.type != "cuda":
        return False
    try:
        return torch.cuda.get_device_capability(device) >= capability
    except (AssertionError, RuntimeError):
        return True


def no_autocast(m: Tensor) -> AbstractContextManager[object]:
    """Context that disables autocast, so that products run in the compute dtype also in a caller's autocast region."""
    kind = m.device.type
    known = kind in ("cpu", "cuda") or torch.amp.is_autocast_available(kind)  # torch 2.6 cannot compile the latter
    return torch.autocast(kind, enabled=False) if known else nullcontext()


def check_matrix(m: object) -> None:
    """Raise unless m is a matrix or a stack of matrices of real floating-point numbers."""
    if not isinstance(m, Tensor):
        raise TypeError(f"m must be a torch.Tensor, got {type(m).__name__}")
    if not m.dtype.is_floating_point:
        raise TypeError(f"m must have a real floating dtype, got {m.dtype}")
    if m.ndim < 2:
        raise ValueError(f"m must have at least 2 dimensions (..., n, m), got shape {tuple(m.shape)}")


def check_finite(m: Tensor, what: str = "m") -> None:
    """Raise if m has a NaN or infinite entry, with the index of the first one."""
    finite = m.isfinite()
    if not bool(finite.all()):
        where = tuple(int(i) for i in (~finite).nonzero()[0])
        kind = "NaN" if bool(m[where].isnan()) else "Inf"
        count = int((~finite).sum())
        raise ValueError(f"{what} has {count} entries that are not finite, the first a {kind} at index {where}")
