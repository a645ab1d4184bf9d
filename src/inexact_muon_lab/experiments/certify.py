"""Bounds on the error of an output of the spectral ball, from products."""

from __future__ import annotations

import torch
from torch import Tensor

from inexact_muon.inexactness.measuring import UPHILL, Inexactness, assess, check_answer
from inexact_muon.lmo import Spectral
from inexact_muon.polar.scaling import to_unit_entries

CERTAIN = 0.9
"""Certificates from products are used below this value; above it an SVD is computed."""


def certify(m: Tensor, d_hat: Tensor) -> Inexactness:
    """A posteriori upper bounds on delta, gap and overshoot of a spectral output of radius 1, in float64.

    With E = I - X X^T, X = -d_hat and eps = ||E^4||_F^(1/4) >= ||E||_2, every singular value p of X satisfies
    |1 - p^2| <= eps, so X is within 1 - sqrt(1 - eps) of its own polar factor if eps < 1. That differs from the polar
    factor of m by at most `_alignment_bound`, which is computed from m X^T and added. This needs only products and the
    eigenvalues of m X^T. If the sum is not below `CERTAIN` (m is rank deficient, X is far from its polar factor, has
    other singular vectors or was computed in half precision), the three numbers come from an SVD, as in
    `measure(exact=True)`.

    Raises:
        ValueError: shapes differ, an entry is not finite, or d_hat is an ascent direction.
    """
    ball = Spectral()
    check_answer(ball, m, d_hat)
    scaled = to_unit_entries(m.detach().double())
    x = -d_hat.detach().double()
    if bool(((scaled * x).sum(dim=(-2, -1)) < 0).any()):
        raise ValueError(UPHILL)
    if x.shape[-2] > x.shape[-1]:
        scaled, x = scaled.mT, x.mT
    gram = x @ x.mT
    identity = torch.eye(x.shape[-2], dtype=x.dtype, device=x.device)
    square = torch.linalg.matrix_power(identity - gram, 2)
    eps = torch.linalg.matrix_norm(square @ square) ** 0.25 + x.shape[-1] * torch.finfo(x.dtype).eps
    overshoot = (1.0 + eps).sqrt()
    below = 1.0 - (1.0 - eps).clamp(min=0.0).sqrt()
    delta = torch.maximum(below, overshoot - 1.0) + _alignment_bound(scaled, x, gram, eps)
    values = [delta, delta.clamp(max=1.0), overshoot]
    if bool((~(delta < CERTAIN)).any()):
        svd, _, _ = assess(ball, m, d_hat, exact=True)
        exact = [torch.as_tensor(v, dtype=x.dtype, device=x.device) for v in (svd.delta, svd.gap, svd.overshoot)]
        values = [torch.where(delta < CERTAIN, v, e) for v, e in zip(values, exact, strict=True)]
    return Inexactness(*(value if delta.ndim else float(value) for value in values))


def _alignment_bound(m: Tensor, x: Tensor, gram: Tensor, eps: Tensor) -> Tensor:
    """A bound on the distance between the polar factors of m and x, or inf.

    With S = x x^T and H the symmetric part of m x^T, if they commute and H > 0, H S^-1 x has the polar factor of x. m
    differs from such a matrix by D: the remainder of m, the asymmetry and the commutator. Polar factors of matrices
    with smallest singular value s differ by at most 3 ||D||_F / s; doubled for second-order terms.
    """
    product = m @ x.mT
    half = 0.5 * (product + product.mT)
    bad = eps >= 0.5
    safe = torch.where(bad[..., None, None], torch.eye(gram.shape[-1], dtype=x.dtype, device=x.device), gram)
    factor = torch.linalg.cholesky_ex(safe).L
    rest = m - product @ torch.cholesky_solve(x, factor)
    commutator = half @ gram - gram @ half
    parts = (rest, product - half, commutator)
    off = sum(torch.linalg.matrix_norm(part) for part in parts) / (1.0 - eps).clamp(min=0.5)
    smallest = torch.linalg.eigvalsh(half)[..., 0]
    bound = 2.0 * 3.0 * off * (1.0 + eps).sqrt() / torch.where(smallest > 0, smallest, 1.0)
    return torch.where(bad | (smallest <= 0), torch.inf, bound)
