"""The symmetric product as a custom torch operator, and the sizes for which it is used on an accelerator.

`torch.ops.inexact_muon.symmetric_product` writes alpha a b + beta add into `out`. On CUDA it runs the Triton kernel of
`inexact_muon.polar.triton_kernel`, elsewhere `baddbmm`, so that tracing and tests need no GPU. It was not timed here:
the sizes follow published measurements of similar kernels.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

from inexact_muon.schedules.prices import at

INSTALLED = find_spec("triton") is not None

PUBLISHED: dict[tuple[int, int], tuple[tuple[int, float], ...]] = {
    (8, 0): ((1024, 1.19), (2048, 1.69), (4096, 1.78), (8192, 1.73)),
    (9, 0): ((512, 0.7), (1024, 0.7), (2048, 0.78), (4096, 1.26), (8192, 1.46)),
}
"""CUDA compute capability -> (n, speed-up of a Triton kernel over the full n x n product of the vendor's library).

A100: flash-muon; H100: dion, bfloat16.
"""

SMALLEST = {(8, 0): 1024, (9, 0): 3072}
"""CUDA compute capability -> smallest side for which the kernel is used: where it was measured to be faster, with a
margin on an H100, which breaks even near 2800."""

LEAST = min(SMALLEST.values())
"""Below this side no device uses the kernel."""

UNKNOWN = 4096
"""Smallest side on devices without published measurements: larger than that of any other device."""

TILE, FEWEST = 128, 108
"""Side of a tile, and the minimum number of tiles in a batch: one per multiprocessor of an A100."""


def uses_kernel(n: int, batch: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the kernel computes a batch of n x n products: half precision only, large n and enough tiles."""
    if device.type != "cuda" or not INSTALLED or dtype not in (torch.float16, torch.bfloat16):
        return False
    tiles = -(-n // TILE)
    return n >= smallest_side(device) and batch * tiles * (tiles + 1) // 2 >= FEWEST


def smallest_side(device: torch.device) -> int:
    """Smallest side for which a device uses the kernel; ROCm never does."""
    if torch.version.hip is not None:
        return 2**31
    try:
        return SMALLEST.get(torch.cuda.get_device_capability(device), UNKNOWN)
    except (AssertionError, RuntimeError):  # this machine has no such device
        return UNKNOWN


def speed(n: int, capability: tuple[int, int]) -> float:
    """The published speed-up of the kernel over the full product at n, interpolated in log n; 1 if unknown."""
    return at(PUBLISHED.get(capability, ((1, 1.0),)), n)


@torch.library.custom_op(
    "inexact_muon::symmetric_product",
    mutates_args=("out",),
    schema="(Tensor a, Tensor b, Tensor? add, float beta, float alpha, Tensor(a!) out) -> ()",
)
def symmetric_kernel(a: Tensor, b: Tensor, add: Tensor | None, beta: float, alpha: float, out: Tensor) -> None:
    """out = alpha a b + beta add, for a (batch, n, k) and b (batch, k, n); a b and add are symmetric."""
    out.copy_(torch.baddbmm(out if add is None else add, a, b, beta=0.0 if add is None else beta, alpha=alpha))


@symmetric_kernel.register_fake
def _(a: Tensor, b: Tensor, add: Tensor | None, beta: float, alpha: float, out: Tensor) -> None:
    return None


@symmetric_kernel.register_kernel("cuda")
def _(a: Tensor, b: Tensor, add: Tensor | None, beta: float, alpha: float, out: Tensor) -> None:
    from inexact_muon.polar.triton_kernel import launch

    launch(a, b, add, beta, alpha, out)
