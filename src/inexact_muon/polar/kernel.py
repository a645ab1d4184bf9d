"""Where symmetric products on an accelerator run as a kernel of their own, and that kernel as one operation of torch.

`torch.ops.inexact_muon.symmetric_product` writes alpha a b + beta add into `out`. On CUDA it is the Triton kernel of
`inexact_muon.polar.triton_kernel`; elsewhere it is `baddbmm`, so that traces and tests need no GPU. Nothing here was
timed: the gate follows measurements that others have published.
"""

from __future__ import annotations

from importlib.util import find_spec
from itertools import pairwise
from math import log2

import torch
from torch import Tensor

INSTALLED = find_spec("triton") is not None

PUBLISHED: dict[tuple[int, int], tuple[tuple[int, float], ...]] = {
    (8, 0): ((1024, 1.19), (2048, 1.69), (4096, 1.78), (8192, 1.73)),
    (9, 0): ((512, 0.7), (1024, 0.7), (2048, 0.78), (4096, 1.26), (8192, 1.46)),
}
"""CUDA capability -> (n, speed over the full product of the vendor's library) of Triton kernels for an n x n product.

A100: flash-muon; H100: dion, bfloat16. Devices that are not here are treated as `UNKNOWN`.
"""

SMALLEST = {(8, 0): 1024, (9, 0): 3072}
"""CUDA capability -> smallest side for which the kernel is used: what is measured faster, with a margin on an H100,
where break-even lies near 2800."""

LEAST = min(SMALLEST.values())
"""No device uses the kernel below this side."""

UNKNOWN = 4096
"""The same for devices for which nothing is published: the strictest."""

TILE, FEWEST = 128, 108
"""Side of a tile, and the fewest tiles of a batch: one for each multiprocessor of an A100."""


def uses_kernel(n: int, batch: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether products of a batch of n x n results run as the kernel: half precision, a side and a batch that pay."""
    if device.type != "cuda" or not INSTALLED or dtype not in (torch.float16, torch.bfloat16):
        return False
    tiles = -(-n // TILE)
    return n >= smallest_side(device) and batch * tiles * (tiles + 1) // 2 >= FEWEST


def smallest_side(device: torch.device) -> int:
    """The gate of a device."""
    if torch.version.hip is not None:
        return 2**31
    try:
        capability = torch.cuda.get_device_capability(device)
    except (AssertionError, RuntimeError):  # no such device here
        return UNKNOWN
    return SMALLEST.get(capability, UNKNOWN)


def speed(n: int, capability: tuple[int, int]) -> float:
    """The published speed of the kernel over the full product at n: linear in log n, constant outside; 1 if unknown."""
    points = PUBLISHED.get(capability, ((1, 1.0),))
    for (low, start), (high, end) in pairwise(points):
        if low <= n < high:
            return start + (end - start) * log2(n / low) / log2(high / low)
    return points[0][1] if n < points[0][0] else points[-1][1]


@torch.library.custom_op(
    "inexact_muon::symmetric_product",
    mutates_args=("out",),
    schema="(Tensor a, Tensor b, Tensor? add, float beta, float alpha, Tensor(a!) out) -> ()",
)
def symmetric_kernel(a: Tensor, b: Tensor, add: Tensor | None, beta: float, alpha: float, out: Tensor) -> None:
    """out = alpha a b + beta add, for (batch, n, k) and (batch, k, n) whose product is symmetric; add as well."""
    out.copy_(torch.baddbmm(out if add is None else add, a, b, beta=0.0 if add is None else beta, alpha=alpha))


@symmetric_kernel.register_fake
def _(a: Tensor, b: Tensor, add: Tensor | None, beta: float, alpha: float, out: Tensor) -> None:
    return None


@symmetric_kernel.register_kernel("cuda")
def _(a: Tensor, b: Tensor, add: Tensor | None, beta: float, alpha: float, out: Tensor) -> None:
    from inexact_muon.polar.triton_kernel import launch

    launch(a, b, add, beta, alpha, out)
