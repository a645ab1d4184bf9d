"""What every polar method is: a frozen value, callable on (..., n, m), with a known scalar map."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from inexact_muon._text import nearest
from inexact_muon.polar.batching import LIMIT, solve_all
from inexact_muon.schedules.operations import EPS
from inexact_muon.schedules.oracles import Oracle

DTYPES = {name: getattr(torch, name) for name in EPS}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class PolarMethod(Oracle):
    """M -> approximately U V^T, where M = U diag(sigma) V^T.

    The answer is U diag(f(sigma/c)) V^T, with f the method's scalar map and c >= sigma_1 its normaliser,
    up to rounding in the compute dtype. Zero gives zero; 2^k M gives the bits that M gives.

    Attributes:
        dtype: compute dtype; None takes the fast one of the device: float64 for float64 input, else bfloat16
            on a GPU with native support and float32 everywhere else.
        form: direct, gram, or auto (see `inexact_muon.polar.iteration`).
        normalise: one of `inexact_muon.schedules.oracles.NORMALISERS`, or auto.
    """

    dtype: torch.dtype | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.dtype, str):  # from text
            if self.dtype not in DTYPES:
                raise ValueError(f"{self.name}: unknown dtype {self.dtype!r}: {nearest(self.dtype, DTYPES)}")
            object.__setattr__(self, "dtype", DTYPES[self.dtype])
        super().__post_init__()

    @abstractmethod
    def solve(self, xs: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
        """The method on each of xs, (batch_i, n, m_i) of one n <= m_i, whose entries suit products or are all zero."""

    def flops_on(self, n: int, m: int, device: torch.device | str | None) -> int:
        """`flops` in the dtype and form that run on a device."""
        kind = "accelerator" if at_least(torch.device(device or "cpu"), NATIVE_BFLOAT16) else "cpu"
        return int(sum(operation.flops for operation in self.at(n, m, device).operations(n, m, kind)))

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Compute dtypes in which the method is sound."""
        return tuple(DTYPES[name] for name in self.map.dtypes)

    def multiplier(self, gram: Tensor) -> Tensor:
        """Q with answer Q X, from X X^T alone, (batch, n, n) in float64; only where `from_gram` says so."""
        raise NotImplementedError(f"{self.name} does not work from the Gram matrix alone")

    def at(self, n: int, m: int, device: torch.device | str | None = None) -> PolarMethod:
        """The method for n x m matrices on a device: itself, unless it is chosen by shape (`Auto`)."""
        return self

    def __call__(self, m: Tensor) -> Tensor:
        """The approximate polar factor: same shape, dtype and device; m is not touched.

        Args:
            m: real floating tensor (..., n, m).

        Raises:
            TypeError: not a tensor, or a complex or integer one.
            ValueError: fewer than two dimensions, or a NaN or infinite entry.
        """
        check_matrix(m)
        check_finite(m)
        return self.orthogonalise(m)

    def orthogonalise(self, m: Tensor) -> Tensor:
        """`__call__` without its checks, hence without a host synchronisation on an accelerator."""
        return self.orthogonalise_all([m])[0]

    def orthogonalise_all(self, ms: Sequence[Tensor], limit: int = LIMIT, cast: bool = True) -> list[Tensor]:
        """`orthogonalise` of each, worked on together where that is faster (see `inexact_muon.polar.batching`).

        Args:
            limit: bytes of work space; one matrix takes up to six copies of itself whatever the limit.
            cast: to the dtype of the input; else answers that were computed in a narrower one stay there.
        """
        if not ms:
            return []
        kind = ms[0].device.type
        if kind in ("cpu", "cuda") and not torch.is_autocast_enabled(kind):
            return solve_all(ms, self.solve, self.compute_dtype, limit, cast)
        with no_autocast(ms[0]):
            return solve_all(ms, self.solve, self.compute_dtype, limit, cast)

    def compute_dtype(self, m: Tensor) -> torch.dtype:
        """The dtype of the products for this input."""
        if self.dtype is not None:
            return self.dtype
        return torch.float64 if m.dtype == torch.float64 else self.computes_on(m.device)

    def computes_on(self, device: torch.device) -> torch.dtype:
        """The dtype of the products on a device for input that is not float64."""
        if self.dtype is not None:
            return self.dtype
        native = device.type == "cuda" and at_least(device, NATIVE_BFLOAT16) and torch.bfloat16 in self.dtypes
        found = "bfloat16" if native else "float32"
        return DTYPES[found if self.form != "gram" else self.map.for_form(found, self.form)]


NATIVE_BFLOAT16 = (8, 0)
"""CUDA capability from which products of bfloat16 are fast; below it float32 is the default."""

FAST_FLOAT16 = (7, 0)
"""CUDA capability from which products of float16 with sums in float32 are as fast as those of bfloat16."""


def at_least(device: torch.device, capability: tuple[int, int]) -> bool:
    """Whether this is a CUDA device of a capability; supposed of one that this machine does not have."""
    if device.type != "cuda":
        return False
    try:
        return torch.cuda.get_device_capability(device) >= capability
    except (AssertionError, RuntimeError):
        return True


def no_autocast(m: Tensor) -> AbstractContextManager[object]:
    """Products inside run in the dtype chosen here, also in a caller's autocast region."""
    kind = m.device.type
    known = kind in ("cpu", "cuda") or torch.amp.is_autocast_available(kind)  # torch 2.6 cannot compile the question
    return torch.autocast(kind, enabled=False) if known else nullcontext()


def check_matrix(m: object, what: str = "m") -> None:
    """One sentence for each way in which m is not a stack of real floating matrices."""
    if not isinstance(m, Tensor):
        raise TypeError(f"{what} must be a torch.Tensor, got {type(m).__name__}")
    if not m.dtype.is_floating_point:
        raise TypeError(f"{what} must have a real floating dtype, got {m.dtype}")
    if m.ndim < 2:
        raise ValueError(f"{what} must have at least 2 dimensions (..., n, m), got shape {tuple(m.shape)}")


def check_finite(m: Tensor, what: str = "m") -> None:
    """Says whether a NaN or an infinity is there, and where the first one is."""
    finite = m.isfinite()
    if not bool(finite.all()):
        where = tuple(int(i) for i in (~finite).nonzero()[0])
        kind = "NaN" if bool(m[where].isnan()) else "Inf"
        count = int((~finite).sum())
        raise ValueError(f"{what} has {count} entries that are not finite, the first a {kind} at index {where}")
