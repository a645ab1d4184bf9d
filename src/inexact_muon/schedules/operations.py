"""The matrix operations of an oracle, by kind, shape and dtype: what is counted here is priced in `prices`.

    product         an (rows x inner)(inner x cols) product: 2 rows cols inner flops
    symmetric       one that is symmetric in exact arithmetic, so that half of it is enough; counted in full
    inverse         of a positive definite matrix: a Cholesky factor (n^3/3) and its inverse (2 n^3/3)
    decomposition   a part of a singular value decomposition, by the flops that it takes

Terms of lower order (norms, additions) are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["product", "symmetric", "inverse", "decomposition"]

FLOPS: dict[Kind, int] = {"product": 2, "symmetric": 2, "inverse": 1, "decomposition": 2}
"""For each of rows x cols x inner."""

EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
"""Dtype -> the distance from 1 to the next number."""

BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Operation:
    """`count` operations of one kind; the short side of the matrix that an oracle works on is `rows`."""

    kind: Kind
    rows: int
    cols: int
    inner: int
    count: float = 1
    dtype: str = "float32"

    @property
    def volume(self) -> float:
        """rows x cols x inner, times count."""
        return self.count * self.rows * self.cols * self.inner

    @property
    def flops(self) -> float:
        """Floating point operations; an integer if count is one."""
        return FLOPS[self.kind] * self.volume


def square_products(degree: int) -> int:
    """Products of n x n matrices that h(A) of an odd polynomial s h(s^2) needs once A exists.

    Degree 9 costs what degree 7 does, A^2 (c_2 I + c_3 A + c_4 A^2); from 11 on Horner in A^2.
    """
    return {3: 0, 5: 1, 7: 2, 9: 2}.get(degree, (degree + 1) // 4)


def dtype_name(dtype: Any) -> str:
    """ "float32" of torch.float32, or of itself."""
    return str(dtype).removeprefix("torch.")
