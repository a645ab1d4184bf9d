"""Matrix operations of an oracle, and their cost on a device type in units of one n x n x n product in the fast dtype.

    product         a (rows x inner)(inner x cols) product: 2 rows cols inner flops
    symmetric       a product with a symmetric result, of which half is enough; counted in full
    inverse         of a positive definite matrix: a Cholesky factor (n^3/3) and its inverse (2 n^3/3)
    decomposition   a part of a singular value decomposition, by its flops

Terms of lower order (norms, additions) are left out. `polar.cheapest`, `polar="auto"`, the advice on checkpoints and
`inexact-muon plan` all use these tables. They are shipped and not measured at run time, so that every rank, run and
resumed run makes the same choice; `polar.calibrate` measures the table of a machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, log
from typing import Literal, Protocol

import numpy as np

Kind = Literal["product", "symmetric", "inverse", "decomposition"]

FLOPS: dict[Kind, int] = {"product": 2, "symmetric": 2, "inverse": 1, "decomposition": 2}
"""Flops per rows x cols x inner."""


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


def pair(n: int, m: int, count: int, dtype: str) -> tuple[Operation, Operation]:
    """X X^T and Q X of an n x m matrix X."""
    return Operation("symmetric", n, n, m, count, dtype), Operation("product", n, m, n, count, dtype)


def square_products(degree: int) -> int:
    """Number of n x n products to compute h(A) from A, for an odd polynomial s h(s^2).

    Degree 9 needs as many as degree 7, by A^2 (c_2 I + c_3 A + c_4 A^2); from degree 11 on Horner in A^2.
    """
    return {3: 0, 5: 1, 7: 2, 9: 2}.get(degree, (degree + 1) // 4)


Curve = tuple[tuple[int, float], ...]
"""Points (n, cost)."""


def at(curve: Curve, n: int) -> float:
    """The curve at n: linear in log n between its points, constant outside."""
    return float(np.interp(log(n), [log(x) for x, _ in curve], [y for _, y in curve]))


class Priced(Protocol):
    """What has matrix operations, such as a polar method."""

    def operations(self, n: int, m: int, device: str = "cpu") -> tuple[Operation, ...]:
        """Those for one n x m matrix."""


@dataclass(frozen=True)
class Costs:
    """Cost of operations relative to a product, as points (n, cost) of a curve in log n.

    Attributes:
        device: "cpu", or anything else for an accelerator; determines the compute dtype of an oracle.
        dtypes: dtype -> cost of a product.
        curves: kind -> cost relative to a product of the same size and dtype. Operations without a curve are not
            supported on the device.
        launch: cost of launching an operation, in multiplications of a product.
    """

    device: str
    dtypes: Mapping[str, float]
    curves: Mapping[Kind, Curve]
    launch: float = 0.0

    def of(self, oracle: Priced, n: int, m: int) -> float:
        """Cost for one n x m matrix in products; inf if an operation is not supported on the device."""
        return sum(self.price(o) for o in oracle.operations(n, m, self.device)) / min(n, m) ** 3

    def price(self, operation: Operation) -> float:
        """Cost of an operation, in multiplications of a product in the fast dtype."""
        curve = self.curves.get(operation.kind)
        if not curve or not operation.count:
            return inf if operation.count else 0.0
        work = operation.volume * self.dtypes[operation.dtype] * at(curve, operation.rows)
        return work + operation.count * self.launch


CPU = Costs(
    "cpu",
    dtypes={"float32": 1.0, "float64": 2.2, "bfloat16": 1.0, "float16": 1.0},
    curves={
        "product": ((1, 1.0),),
        "symmetric": ((256, 1.0), (512, 0.92), (768, 0.72), (1536, 0.6), (4096, 0.55)),
        "inverse": (
            *((32, 12.0), (64, 9.5), (128, 4.2), (256, 3.0), (384, 1.9)),
            *((512, 1.7), (768, 1.28), (1536, 1.0), (4096, 0.8)),
        ),
        "decomposition": ((1, 10.0),),
    },
)
"""Measured by `inexact-muon bench` in float32 with two threads; half precision and decompositions are guesses."""

ACCELERATOR = Costs(
    "accelerator",
    dtypes={"bfloat16": 1.0, "float16": 1.0, "float32": 16.0, "float64": 16.0},
    curves={"product": ((1, 1.0),), "symmetric": ((1, 1.0),)},
    launch=1e9,
)
"""A launch of 3 us takes as long as about 1e9 multiplications of a product on an H100. Dtypes by the rates of the data
sheets: A100 312, 19.5, 19.5 and H100 SXM 989, 67, 67 TF dense in bfloat16, float32 proper (not TF32) and float64 on
tensor cores. Factorisations were not timed, and are not supported."""
