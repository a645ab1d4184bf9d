"""delta, gap, overshoot and lifted of a spectral oracle from matrix-vector products, without an SVD.

X = -d_hat has (up to rounding) the singular vectors of M, with singular values p_i near 1. So its polar factor is that
of M, and Krylov spaces of X X^T, whose spectrum is narrow, converge in a few steps, whereas those of M M^T, whose
spectrum spans decades, do not:

    overshoot        the largest Ritz value of X X^T
    1 - smallest     the smallest Ritz value whose vector is not in the null space of M (null vectors are no error)
    lifted           the weight of the Ritz values of at least 1/4, by Gauss quadrature over random vectors
    dual norm of M   tr |M| = E v^T |M| v over random v,  |M| v = M P^T v,  P^T v = X^T (X X^T)^(-1/2) v

The trace is exact over a few leading singular vectors of M. On the rest, a weighted sum of v^T v, v^T M M^T v,
v^T X M^T v and v^T X X^T v, all of known expectation, is the control variate, so that the noise is proportional to the
gap and not to the norm.

Estimates are low: Ritz values lie inside the spectrum, and max |1 - p_i| <= delta for any X. If X does not have the
singular vectors of M, delta and the gap are underestimated; use exact=True. If M is stored in half precision and its
spectrum crosses the rank threshold, directions below it may be included: delta is then high.
Shapes: m, x are (batch, n, k), n <= k; basis vectors are rows, (batch, probes, steps, n).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from inexact_muon.polar.scaling import probes
from inexact_muon.schedules.judgement import HALF

SHARE = 0.05
"""Largest fraction of the oracle's flops that an estimate may take, for n >= 512.

The cheapest plan exceeds it for rational oracles on small matrices: 12% at 512 x 512, 16% at 512 x 2048, half of that
for twice the sides. Fewer probes would not know their own error.
"""

LOWEST = 3
"""Number of lowest Ritz vectors that are checked against the null space of M."""

ZERO = 1e-5
"""Ritz values of X X^T (of scale 1) below this are dominated by float32 rounding and count as zero."""

DEAD = 1e6
"""Marks the Ritz values of an exhausted space, in units of the first Rayleigh quotient, and those that are dropped:
far above all others, and not so far that rounding errors of an eigendecomposition matter."""

NOISE = 64.0
"""A vector whose norm M reduces to this many eps of sigma_1 is numerically a null vector."""

SHORT = 1e-2
"""Singular values of X below this make an estimate doubtful."""

DOUBT = 7e-3
"""A third of the tolerated error of the gap."""


@dataclass(frozen=True)
class Products:
    """Amount of work of an estimate.

    Attributes:
        random, leading: probes of the trace, random ones and leading singular vectors of M.
        steps, leading_steps: Krylov steps for each of these, on X and on M.
        ends, end_steps: Krylov spaces for the two ends of the spectrum of X, and their steps.
    """

    random: int
    leading: int
    steps: int = 8
    leading_steps: int = 16
    ends: int = 1
    end_steps: int = 16

    def flops(self, n: int, m: int) -> int:
        """Flops of the matrix-vector products, as in schedules.cost."""
        trace = 3 * self.leading_steps + (self.random + self.leading) * (2 * self.steps + 2)
        return 2 * n * m * (trace + self.ends * (2 * self.end_steps + LOWEST))


PLANS = (
    Products(random=20, leading=8, ends=2),
    Products(random=9, leading=5, ends=2),
    Products(random=8, leading=4),
    Products(random=5, leading=3),
    Products(random=5, leading=3, leading_steps=12, steps=6),
)
"""From most to least accurate."""


def choose_plan(n: int, m: int, oracle_flops: int) -> Products:
    """The most accurate plan within SHARE of the oracle; below n = 512 the noise, which falls as n^-1/2, decides."""
    if min(n, m) < 512:
        return Products(random=6000 // min(n, m), leading=8, steps=12, ends=2)
    return next((plan for plan in PLANS if plan.flops(n, m) <= SHARE * oracle_flops), PLANS[-1])


def estimate(m: Tensor, x: Tensor, threshold: Tensor, plan: Products) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(delta, dual norm of m, overshoot, lifted) of x as polar factor of m, (batch,) in float64, and the doubtful ones.

    Doubtful are matrices with a vector whose norm x reduces below `SHORT` (usually null vectors of m, which perturb
    every Krylov space), and those whose trace has a standard error above `DOUBT`.

    Args:
        threshold: singular values of m up to this count as zero, (batch,).
    """
    n = m.shape[-2]
    heads = min(plan.leading, n - 1)
    lead, weights, top = _leading(m, x, plan.leading_steps, heads)
    # The ends of the spectrum may be in leading directions, which are projected out for the trace only.
    drawn = probes(n, plan.random + 1, m)[:, 1:].expand(m.shape[0], -1, -1)
    v = drawn - lead @ (lead.mT @ drawn)
    v = v * ((n - heads) ** 0.5 / torch.linalg.vector_norm(v, dim=-2, keepdim=True))
    starts = torch.cat((lead, v), dim=-1).mT

    mv, xv = starts @ m, starts @ x
    space = lanczos(lambda q: (q @ x.mT) @ x, xv, plan.steps)
    absolute = (mv * space.inverse_root(xv)).sum(-1).double()  # v^T |M| v
    controls = _forms(starts, mv, xv)
    totals = _forms(m.new_ones(m.shape[0], n, 1), m, x).sum(-2)  # over the unit vectors
    residual = absolute - (controls * weights.unsqueeze(-2)).sum(-1)
    null = torch.maximum(2.0 * threshold.double(), NOISE * torch.finfo(m.dtype).eps * top)
    ends = lanczos(lambda q: (q @ x) @ x.mT, drawn.mT[:, -plan.ends :], plan.end_steps)
    smallest, largest = _extremes(m, ends, null)
    length, image, quotient = controls[:, :heads, 0], controls[:, :heads, 1], controls[:, :heads, 3]
    size = (quotient / length.clamp(min=0.5)).sqrt()  # of X v for leading v, at hand; v = 0 in an exhausted space
    largest = largest.maximum(size.amax(-1))
    counted = (length > 0.5) & (image.sqrt() > null.unsqueeze(-1))
    smallest = smallest.minimum(torch.where(counted, size, torch.inf).amin(-1))
    dual = residual[:, :heads].sum(-1) + residual[:, heads:].mean(-1) + (totals * weights).sum(-1)
    # Bounded by the descent per unit length that x achieves, and by Cauchy-Schwarz.
    least = totals[:, 2] / torch.where(largest > 0, largest, torch.ones_like(largest))
    dual = dual.maximum(least).minimum((n * totals[:, 1]).sqrt())
    noise = residual[:, heads:].std(-1) / plan.random**0.5
    low = torch.where(ends.live, ends.ritz, torch.inf).amin(dim=(-2, -1))
    doubtful = (low < SHORT * SHORT) | (noise > DOUBT * dual)
    lifted = (ends.vectors[..., 0, :].square() * (ends.live & (ends.ritz >= HALF * HALF))).sum(-1).mean(-1)
    return torch.maximum(1.0 - smallest, largest - 1.0).clamp(min=0.0), dual, largest, lifted, doubtful


@dataclass(frozen=True)
class Krylov:
    """Orthonormal bases Q of Krylov spaces and the eigendecompositions of Q A Q^T.

    `beyond` is the off-diagonal entry of the next step; `live` marks the Ritz values that exist, the others are
    infinite.
    """

    basis: Tensor
    ritz: Tensor
    vectors: Tensor
    beyond: Tensor
    live: Tensor

    def inverse_root(self, start: Tensor) -> Tensor:
        """A^(-1/2) start on the range of A, from the spaces generated by `start`."""
        length = torch.linalg.vector_norm(start, dim=-1, keepdim=True).double()
        root = torch.where(self.ritz > ZERO, self.ritz, torch.inf).rsqrt()  # 0 where not live
        coordinates = self.vectors @ (root * self.vectors[..., 0, :] * length).unsqueeze(-1)
        return (coordinates.mT.to(start.dtype) @ self.basis).squeeze(-2)


def lanczos(apply: Callable[[Tensor], Tensor], start: Tensor, steps: int) -> Krylov:
    """Independent Krylov spaces of a symmetric A >= 0, one per row of start, reorthogonalised twice.

    An exhausted space is continued by zero vectors, whose Ritz values are marked as not live.
    """
    steps = min(steps, start.shape[-1])
    basis = start.new_zeros(*start.shape[:-1], steps, start.shape[-1])
    diagonal: list[Tensor] = []
    off: list[Tensor] = []
    norm = torch.linalg.vector_norm(start, dim=-1, keepdim=True)
    alive, q, floor = norm > 0, start, torch.zeros_like(norm)
    for j in range(steps):
        q = torch.where(alive, q / torch.where(alive, norm, torch.ones_like(norm)), torch.zeros_like(q))
        basis[..., j, :] = q
        w = apply(q)
        quotient = (q * w).sum(-1, keepdim=True)
        diagonal.append(torch.where(alive, quotient, DEAD * (diagonal[0] if diagonal else 1.0 + quotient)))
        if j == 0:
            floor = 32.0 * torch.finfo(start.dtype).eps * torch.linalg.vector_norm(w, dim=-1, keepdim=True)
        seen = basis[..., : j + 1, :]
        for _ in range(2):
            w = w - ((w.unsqueeze(-2) @ seen.mT) @ seen).squeeze(-2)
        norm = torch.linalg.vector_norm(w, dim=-1, keepdim=True)
        alive, q = alive & (norm > floor), w
        off.append(torch.where(alive, norm, torch.zeros_like(norm)))
    across = torch.cat(off, -1)[..., : steps - 1].double()
    matrix = torch.diag_embed(torch.cat(diagonal, -1).double())
    matrix = matrix + torch.diag_embed(across, 1) + torch.diag_embed(across, -1)
    ritz, vectors = torch.linalg.eigh(matrix)
    live = ritz < 0.5 * DEAD * diagonal[0].double()
    return Krylov(basis, torch.where(live, ritz, torch.inf), vectors, off[-1].double(), live)


def _leading(m: Tensor, x: Tensor, steps: int, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Leading left Ritz vectors of M (batch, n, heads), weights of the control variates, and sigma_1.

    The weights fit |M| by the four controls on the remaining Ritz values of M, by ridge regression towards the best
    multiple of X M^T.
    """
    start = probes(m.shape[-2], 1, m).mT.expand(m.shape[0], 1, -1)
    space = lanczos(lambda q: (q @ m) @ m.mT, start, steps)
    order = torch.where(space.live, space.ritz, -1.0)[:, 0].argsort(dim=-1, descending=True, stable=True)
    ritz = torch.where(space.live, space.ritz, 0.0)[:, 0].gather(-1, order).clamp(min=0.0)
    vectors = space.vectors[:, 0].gather(-1, order.unsqueeze(-2).expand_as(space.vectors[:, 0]))
    y = vectors.mT.to(m.dtype) @ space.basis[:, 0]
    # An exhausted space has each singular value once: further copies are in the rest, so all of them count.
    rest = (torch.arange(ritz.shape[-1], device=m.device) >= heads) | ~space.live[:, 0].all(-1, keepdim=True)
    mass = (vectors[:, 0].abs() * rest).unsqueeze(-1)  # square roots of the quadrature weights
    a = _forms(y, y @ m, y @ x) * mass
    b = ritz.unsqueeze(-1).sqrt() * mass
    tiny = torch.finfo(torch.float64).tiny
    length = torch.linalg.vector_norm(a, dim=-2, keepdim=True).clamp(min=tiny)
    a = a / length
    prior = torch.zeros_like(a[:, :1]).mT
    prior[:, 2] = (a[..., 2:3] * b).sum(-2)
    normal = a.mT @ a + 1e-2 * torch.eye(4, dtype=a.dtype, device=a.device)
    weights = prior + torch.linalg.solve(normal, a.mT @ (b - a @ prior))
    return y[:, :heads].mT, (weights / length.mT).squeeze(-1), ritz[:, 0].sqrt()


def _forms(v: Tensor, mv: Tensor, xv: Tensor) -> Tensor:
    """v^T v, v^T M M^T v, v^T X M^T v, v^T X X^T v from rows v, M^T v, X^T v."""
    return torch.stack([(a * b).sum(-1) for a, b in ((v, v), (mv, mv), (mv, xv), (xv, xv))], dim=-1).double()


def _extremes(m: Tensor, space: Krylov, null: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest and largest singular value of X found by the spaces, without null vectors of M.

    Rounding leaves null-space components in every basis vector, which Lanczos amplifies. A Ritz vector whose norm M
    reduces below `null` is dropped. One whose residual exceeds its Ritz value may be partly null: it contributes its
    harmonic Ritz value, a Rayleigh quotient weighted by X X^T, which ignores null vectors (and is slightly high).
    """
    ritz, count = space.ritz, space.ritz.shape[-1]
    largest = torch.where(space.live, ritz, 0.0).amax(dim=(-2, -1)).clamp(min=0.0).sqrt()
    low = min(LOWEST, count)
    y = space.vectors[..., :low].mT.to(m.dtype) @ space.basis
    image = torch.linalg.vector_norm(y @ m.unsqueeze(1), dim=-1).double()
    short = (image <= null[:, None, None]) | ((ritz[..., :low] < ZERO) & (image <= 16.0 * null[:, None, None]))
    dropped = torch.nn.functional.pad(short, (0, count - low)) & space.live
    deficient = dropped.any(-1, keepdim=True).any(-2, keepdim=True)
    values = torch.where(dropped | (deficient & (ritz < ZERO)), torch.inf, ritz.clamp(min=0.0))
    residual = space.beyond * space.vectors[..., -1, :]
    unresolved = deficient | (residual.abs() > values).any(-1, keepdim=True)
    tilt = torch.where(unresolved, residual * values.clamp(min=ZERO).rsqrt(), 0.0)
    quotient = torch.diag_embed(values.clamp(max=DEAD)) + tilt.unsqueeze(-1) * tilt.unsqueeze(-2)
    smallest = torch.linalg.eigvalsh(quotient)[..., 0].amin(-1).clamp(min=0.0).sqrt()
    return torch.minimum(smallest, largest), largest
