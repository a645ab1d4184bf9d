"""Scale a matrix to a spectral norm of at most 1, without overflow or underflow.

Shapes: x is (batch, n, m) with n <= m; scales are (batch, 1, 1).
"""

from __future__ import annotations

import torch
from torch import Tensor

# The matrix is divided by (1 + guard) times the bound: casting to the compute dtype may raise a singular value of 1 by
# half a unit in the last place, and a minimax polynomial diverges above its design interval.
_GUARD = {
    torch.float64: 2.0**-40,
    torch.float32: 2.0**-18,
    torch.float16: 2.0**-9,
    torch.bfloat16: 2.0**-6,
}


def to_unit_entries(x: Tensor, dim: int | tuple[int, ...] = (-2, -1)) -> Tensor:
    """x times the power of two for which its largest entry is in [1, 2): exact, and the same for x and 2^k x."""
    largest = torch.linalg.vector_norm(x, torch.inf, dim=dim, keepdim=True).double()
    # In float64 the power of two for any float32 value is a normal number, so one multiplication is enough.
    exponent = 1 - torch.frexp(largest).exponent
    if x.dtype != torch.float64:
        return torch.mul(x, torch.ldexp(torch.ones_like(largest), exponent), out=torch.empty_like(x))
    half = torch.div(exponent, 2, rounding_mode="floor")
    one = torch.ones_like(largest)
    return x * torch.ldexp(one, half) * torch.ldexp(one, exponent - half)


def guard(dtype: torch.dtype) -> float:
    """Relative margin that `gram_bound` adds to a bound."""
    return _GUARD[dtype]


def gram_bound(gram: Tensor, normalise: str, dtype: torch.dtype) -> Tensor:
    """An upper bound on the square of the largest singular value of X, from X X^T; positive also for X = 0.

    It includes a margin for rounding X to `dtype`.
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
