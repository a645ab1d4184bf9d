"""Matrix operations of an oracle by kind, shape and dtype; `prices` has their costs.

    product         a (rows x inner)(inner x cols) product: 2 rows cols inner flops
    symmetric       a product with a symmetric result, of which half is enough; counted in full
    inverse         of a positive definite matrix: a Cholesky factor (n^3/3) and its inverse (2 n^3/3)
    decomposition   a part of a singular value decomposition, by its flops

Terms of lower order (norms, additions) are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["product", "symmetric", "inverse", "decomposition"]

FLOPS: dict[Kind, int] = {"product": 2, "symmetric": 2, "inverse": 1, "decomposition": 2}
"""Flops per rows x cols x inner."""

EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
"""Dtype -> machine epsilon, the distance from 1 to the next number."""


@dataclass(frozen=True)
class Operation:
    """`count` operations of one kind; `rows` is the short side of the oracle's matrix."""

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
        """Floating-point operations; an integer if count is an integer."""
        return FLOPS[self.kind] * self.volume


def square_products(degree: int) -> int:
    """Number of n x n products to compute h(A) from A, for an odd polynomial s h(s^2).

    Degree 9 needs as many as degree 7, by A^2 (c_2 I + c_3 A + c_4 A^2); from degree 11 on Horner in A^2.
    """
    return {3: 0, 5: 1, 7: 2, 9: 2}.get(degree, (degree + 1) // 4)


def dtype_name(dtype: Any) -> str:
    """Name of a torch dtype, or of a dtype that is given by its name: "float32" for torch.float32."""
    return str(dtype).removeprefix("torch.")
