"""Measures inexactness: delta of the paper, and the two numbers that the descent lemma needs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from inexact_muon.inexactness.estimate import choose_plan, estimate
from inexact_muon.lmo import Ball, Spectral
from inexact_muon.lmo.spectral import polar_error
from inexact_muon.polar import PolarMethod
from inexact_muon.polar._base import check_finite, no_autocast
from inexact_muon.polar.exact import rank_threshold
from inexact_muon.polar.scaling import to_unit_entries
from inexact_muon.schedules.judgement import HALF

SMALL = 128
"""Up to this short side an estimate decomposes the Gram matrix instead of sampling."""

SWAPPED = 2.0
"""No oracle returns a direction of this norm, and none in use one of the inverse."""

FLOOR = 1e-7
"""Singular values, relative to the largest, that the Gram matrix resolves in float64."""

LARGE = 1024
"""Up to this short side a doubtful estimate is replaced by a decomposition of the Gram matrix."""


@dataclass(frozen=True)
class Inexactness:
    """Error of an LMO output. Floats for one matrix, tensors of the batch shape for a batch.

    Attributes:
        delta: norm(d_hat - d), the paper's Assumption 1; the distance to the set of solutions if there are several.
        gap: eta = 1 + <m, d_hat>/dual_norm(m), the fraction of descent lost; negative if d_hat overshoots.
        overshoot: nu = norm(d_hat).
        lifted: share of the singular directions, null ones of m included, whose length in d_hat is at least half the
            radius; None for balls other than the spectral one, or if unknown.
        factor: nu/(1-eta), the deterministic slow-down; inf if gap >= 1; at most (1+delta)/(1-delta).
        stochastic_factor: nu^(1/4) ((1-eta+nu)/2)^(3/4) / (1-eta); at most (1+delta)^(1/4)/(1-delta).
    """

    delta: Any
    gap: Any
    overshoot: Any
    lifted: Any = None
    factor: Any = field(init=False)
    stochastic_factor: Any = field(init=False)

    def __post_init__(self) -> None:
        descent = 1.0 - self.gap
        stochastic = self.overshoot**0.25 * (0.5 * (descent + self.overshoot)) ** 0.75
        object.__setattr__(self, "factor", _per_descent(self.overshoot, descent))
        object.__setattr__(self, "stochastic_factor", _per_descent(stochastic, descent))


def worst(each: Sequence[Inexactness]) -> Inexactness | None:
    """The largest delta, gap and overshoot and the smallest share of lifted directions; None of nothing."""
    if not each:
        return None
    delta, gap, overshoot = (max(getattr(i, name) for i in each) for name in ("delta", "gap", "overshoot"))
    return Inexactness(delta, gap, overshoot, min((i.lifted for i in each if i.lifted is not None), default=None))


def _per_descent(value: Any, descent: Any) -> Any:
    """value / kept, or inf where no descent is kept."""
    if isinstance(descent, Tensor):
        return torch.where(descent > 0, value / descent, torch.inf)
    return value / descent if descent > 0 else torch.inf


def measure(ball: Ball, m: Tensor, d_hat: Tensor, exact: bool = False) -> Inexactness:
    """Inexactness of d_hat as output of `ball` for m.

    Args:
        d_hat: a descent direction, as `ball(m)` returns.
        exact: use an SVD in float64. Otherwise, for the spectral ball, use an estimate that takes about a twentieth
            of the oracle's work (`inexact_muon.inexactness.estimate`): delta within 10% while it is below 0.9, the gap
            within 0.02, from a short side of 512 on 0.04, for oracles of error up to about a third. Up to 1024, a
            doubtful estimate (rank-deficient m) is replaced by a decomposition of n x n matrices. The estimate assumes
            that d_hat has the singular vectors of m, as the output of every polar method does, and is low otherwise;
            rounding may turn them by sqrt(n) eps ||m||/sigma_n, in the Schatten-4 norm.
            Other balls are always measured exactly.

    Raises:
        ValueError: shapes differ, an entry is not finite, or d_hat is an ascent direction.

    Example:
        >>> ball, m = Spectral(), torch.eye(3)
        >>> round(measure(ball, m, ball(m), exact=True).overshoot, 3)
        1.121
    """
    if not isinstance(ball, Ball):
        raise TypeError(f"measure(ball, m, d_hat): the first argument must be a ball, got {type(ball).__name__}")
    ball.check(m)
    if d_hat.shape != m.shape:
        raise ValueError(f"d_hat has shape {tuple(d_hat.shape)}, m has {tuple(m.shape)}")
    if m.numel() == 0:
        raise ValueError(f"m is empty, shape {tuple(m.shape)}: nothing to measure")
    check_finite(m)
    check_finite(d_hat, "d_hat")
    inexactness, dual, descent = assess(ball, m, d_hat, exact)
    if bool((descent < 0).any()):
        raise ValueError(
            "d_hat is an ascent direction (<m, d_hat> > 0): pass the LMO's output, for the spectral ball minus the "
            "polar factor"
        )
    if descent.ndim == 0 and _looks_swapped(ball, m, d_hat, dual, descent):
        warnings.warn(
            f"m looks like an oracle's answer and d_hat, of norm {inexactness.overshoot:.3g}, like a momentum: write "
            "measure(ball, m, d_hat)",
            stacklevel=2,
        )
    return inexactness


def _looks_swapped(ball: Ball, m: Tensor, d_hat: Tensor, dual: Tensor, descent: Tensor) -> bool:
    """Whether d_hat has a momentum's length and m, of an answer's, answers d_hat better than d_hat answers m."""
    length, own = ball.norm(d_hat), ball.norm(m)
    if not length or 1 / SWAPPED < length < SWAPPED or not 0.5 < own < 1.5:
        return False
    there = descent / (ball.dual_norm(d_hat) * own)
    return bool(there > 0.75 and there > 0.05 + descent / (dual * length))


def assess(ball: Ball, m: Tensor, d_hat: Tensor, exact: bool = False) -> tuple[Inexactness, Tensor, Tensor]:
    """`measure` without validation, with dual_norm(m) and -<m, d_hat>; ascent directions have a gap above 1.

    For stacked matrices the two have common units, so that they can be summed.
    """
    sampled = isinstance(ball, Spectral) and not exact
    with no_autocast(m):
        delta, inner, dual, overshoot, lifted = (_spectral if sampled else _exact)(ball, m, d_hat)
    gap = torch.where(dual > 0, 1.0 + inner / torch.where(dual > 0, dual, 1.0), 0.0)
    values = [delta, gap, overshoot] if lifted is None else [delta, gap, overshoot, lifted]
    return Inexactness(*(value if delta.ndim else float(value) for value in values)), dual, -inner


def predict(method: PolarMethod, singular_values: ArrayLike) -> Inexactness:
    """A priori inexactness of a polar method on this spectrum, from its coefficients, in exact arithmetic."""
    judgement = method.judge(singular_values)
    return Inexactness(judgement.delta, judgement.gap, judgement.overshoot, judgement.lifted)


def _exact(ball: Ball, m: Tensor, d_hat: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    wide, lifted = d_hat.double(), None
    inner = (m.double() * wide).sum(dim=(-2, -1) if m.ndim >= 2 else tuple(range(m.ndim)))
    if isinstance(ball, Spectral):
        lifted = _lifted(torch.linalg.svdvals(wide / ball.radius(m.shape)))
    return ball.distance(m, d_hat), inner, ball.dual_norm(m.double()), ball.norm(wide), lifted


def _spectral(ball: Ball, m: Tensor, d_hat: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """The estimate, after scaling m to entries near 1 and transposing it to be wide; neither changes the result."""
    assert isinstance(ball, Spectral)
    batch, (n, k) = m.shape[:-2], m.shape[-2:]
    work = torch.promote_types(m.dtype, torch.float32)
    plain = m.detach().to(work).reshape(-1, n, k)
    a = to_unit_entries(plain)
    x = (d_hat.detach().to(work) / -ball.radius(m.shape)).reshape(-1, n, k)
    if n > k:
        a, x = a.mT, x.mT
    threshold = rank_threshold(a, m.dtype)
    if min(n, k) <= SMALL:
        values = _from_gram(a, x, threshold)
    else:
        *values, doubtful = estimate(a, x, threshold, choose_plan(n, k, ball.polar.flops(n, k)))
        if min(n, k) <= LARGE and bool(doubtful.any()):
            for value, better in zip(values, _from_gram(a[doubtful], x[doubtful], threshold[doubtful]), strict=True):
                value[doubtful] = better
    delta, dual, overshoot, lifted = (value.reshape(batch) for value in values)
    inner = -(a.double() * x.double()).sum(dim=(-2, -1))
    unit = plain.abs().amax(dim=(-2, -1)).double() / a.abs().amax(dim=(-2, -1)).clamp(min=1.0).double()
    unit = (unit * ball.radius(m.shape)).reshape(batch)
    return delta, unit * inner.reshape(batch), unit * dual, overshoot, lifted


def _from_gram(m: Tensor, x: Tensor, threshold: Tensor) -> list[Tensor]:
    """[delta, dual norm, overshoot, lifted] from eigendecompositions of n x n matrices, in float64.

    A Gram matrix resolves squares down to eps, singular values down to `FLOOR`. If m may have smaller ones that are no
    rounding, which decide delta, m itself is decomposed.
    """
    m, x = m.double(), x.double()
    square, u = torch.linalg.eigh(m @ m.mT)
    s = square.clamp(min=0.0).sqrt()
    floor, least = FLOOR * s[..., -1:], threshold.double().unsqueeze(-1)
    vh = (u.mT @ m) / torch.where(s > floor, s, torch.ones_like(s)).unsqueeze(-1)
    if bool(((s <= floor) & (floor > least)).any()):
        u, s, vh = torch.linalg.svd(m, full_matrices=False)
        least = torch.maximum(least, max(m.shape[-2:]) * torch.finfo(m.dtype).eps * s[..., :1])
    error = polar_error(x, u, vh, s > least)
    lengths = _lengths(x)
    return [_lengths(error)[..., -1], s.sum(-1), lengths[..., -1], _lifted(lengths)]


def _lengths(x: Tensor) -> Tensor:
    """Singular values in ascending order."""
    return torch.linalg.eigvalsh(x @ x.mT).clamp(min=0.0).sqrt()


def _lifted(lengths: Tensor) -> Tensor:
    return (lengths >= HALF).double().mean(-1)
