"""Bringing a matrix into the unit ball of the spectral norm, without ever over- or underflowing.

Shapes: x is (batch, n, m) with n <= m; scales are (batch, 1, 1).
"""

from __future__ import annotations

import torch
from torch import Tensor

# The matrix is divided by (1 + guard) times the bound: casting to the compute dtype may push a
# singular value of 1 up by half a unit in the last place, and a minimax polynomial has no tolerance.
_GUARD = {
    torch.float64: 2.0**-40,
    torch.float32: 2.0**-18,
    torch.float16: 2.0**-9,
    torch.bfloat16: 2.0**-6,
}


def to_unit_entries(x: Tensor, dim: int | tuple[int, ...] = (-2, -1)) -> Tensor:
    """x times the power of two that brings its largest entry to [1, 2): exact, and the same for 2^k x."""
    largest = torch.linalg.vector_norm(x, torch.inf, dim=dim, keepdim=True).double()
    # In float64 the power of two of any float32 is a normal number, so that one product is enough.
    exponent = 1 - torch.frexp(largest).exponent
    if x.dtype != torch.float64:
        return torch.mul(x, torch.ldexp(torch.ones_like(largest), exponent), out=torch.empty_like(x))
    half = torch.div(exponent, 2, rounding_mode="floor")
    one = torch.ones_like(largest)
    return x * torch.ldexp(one, half) * torch.ldexp(one, exponent - half)


def guard(dtype: torch.dtype) -> float:
    """The relative amount by which `gram_bound` raises a bound."""
    return _GUARD[dtype]


def gram_bound(gram: Tensor, normalise: str, dtype: torch.dtype) -> Tensor:
    """An upper bound on the square of the largest singular value of X from X X^T; positive for zero, too.

    The bound itself is raised by what rounding to `dtype` can add.
    """
    precise = torch.promote_types(gram.dtype, torch.float32)
    if normalise == "schatten4":
        square = torch.linalg.vector_norm(gram, dim=(-2, -1), keepdim=True, dtype=precise)
    else:
        square = _squared(gram.to(precise), normalise)
    return square.mul_((1.0 + _GUARD[dtype]) ** 2).clamp_(min=torch.finfo(precise).tiny)


def _squared(wide: Tensor, normalise: str) -> Tensor:
    trace = wide.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True).unsqueeze(-1)
    if normalise == "frobenius":
        return trace
    # Dividing by the trace first keeps fourth powers inside the range of the dtype.
    trace = torch.where(trace > 0, trace, torch.ones_like(trace))
    unit = wide / trace
    if normalise == "schatten8":
        return trace * torch.linalg.vector_norm(unit @ unit, dim=(-2, -1), keepdim=True).sqrt()
    rows = unit.abs().sum(-1, keepdim=True).amax(-2, keepdim=True)
    if normalise == "tightest":
        rows = torch.minimum(rows, torch.linalg.vector_norm(unit, dim=(-2, -1), keepdim=True))
    return trace * rows
