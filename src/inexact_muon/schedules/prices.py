"""Cost of the operations of an oracle on a device type, in units of one n x n x n product in the fast dtype.

`polar.cheapest`, `polar="auto"`, the advice on checkpoints and `inexact-muon plan` all use these tables. They are
shipped and not measured at run time, so that every rank, run and resumed run makes the same choice; `polar.calibrate`
measures the table of a machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Protocol

from inexact_muon.schedules.operations import Curve, Kind, Operation, at


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
        curves: kind, or (kind, dtype), which has precedence -> cost relative to a product of the same size and dtype.
            Operations without a curve are not supported on the device.
        launch: cost of launching an operation, in multiplications of a product.
    """

    device: str
    dtypes: Mapping[str, float]
    curves: Mapping[Kind | tuple[Kind, str], Curve]
    launch: float = 0.0

    def of(self, oracle: Priced, n: int, m: int) -> float:
        """Cost for one n x m matrix in products; inf if an operation is not supported on the device."""
        return sum(self.price(o) for o in oracle.operations(n, m, self.device)) / min(n, m) ** 3

    def price(self, operation: Operation) -> float:
        """Cost of an operation, in multiplications of a product in the fast dtype."""
        curve = self.curves.get((operation.kind, operation.dtype)) or self.curves.get(operation.kind)
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
