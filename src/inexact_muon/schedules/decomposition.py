"""Maps that are applied to a singular value decomposition, such as the exact sign function."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from inexact_muon.schedules.gram import FULL
from inexact_muon.schedules.operations import Operation
from inexact_muon.schedules.scalar_map import Array, ScalarMap


@dataclass(frozen=True)
class ByDecomposition(ScalarMap):
    """A map that is not computed by an iteration, but applied to a singular value decomposition."""

    @property
    def dtypes(self) -> tuple[str, ...]:
        return FULL

    def computes_in(self, dtype: str | None) -> str:
        return dtype or "float64"

    def operations(self, n: int, m: int, dtype: str = "float64", form: str = "auto") -> tuple[Operation, ...]:
        """Golub and Van Loan's count for U, S, V by R-SVD, 6 m n^2 + 20 n^3, and the product U V^T."""
        parts = Operation("decomposition", n, n, m, 3, dtype), Operation("decomposition", n, n, n, 10, dtype)
        return *parts, Operation("product", n, m, n, 1, dtype)


@dataclass(frozen=True)
class Exact(ByDecomposition):
    """The sign function: 1 on every positive singular value, 0 at zero."""

    lower: float = 0.0
    source: str = "singular value decomposition"

    def scalar(self, s: ArrayLike) -> Array:
        return np.sign(np.asarray(s, dtype=np.float64))

    def image(self, low: float, high: float) -> tuple[float, float]:
        return float(np.sign(low)), float(np.sign(high))
