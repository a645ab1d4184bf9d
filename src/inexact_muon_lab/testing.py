"""Contract suites for user-defined polar methods and balls.

    def test_my_oracle() -> None:
        check_polar(MyOracle())

Each check raises AssertionError with the property that failed. The project's own tests run the same suites.
"""

from __future__ import annotations

from math import inf, prod

import torch
from torch import Tensor

from inexact_muon.lmo import Ball
from inexact_muon.polar import POLARS, ExactSVD, PolarMethod, Zolotarev, parse
from inexact_muon.polar._base import NAMES
from inexact_muon.polar.exact import decompose
from inexact_muon.polar.polynomial import Composition
from inexact_muon.polar.rounding import rounding
from inexact_muon.polar.scaling import gram_bound, guard
from inexact_muon.schedules import Schedule


def rounding_term(method: PolarMethod, m: Tensor, lower: float = 1e-3) -> float:
    """Allowance for rounding on top of `method.error_bound` on m.

    Polynomials and rational functions: `inexact_muon.polar.rounding`; in half precision noise of a few eps is amplified
    like a small singular value, so eps (8 + 2 slope), but at most 0.2 (bfloat16) and 0.1 (float16), where it saturates,
    or eps/lower if that is more: the first factor and its product with X are rounded, by eps/2 of the largest singular
    value each, and no method tells that from the smallest one.
    Others: the polar factor has condition number 1/lower, lower being the smallest singular value over the largest.
    Casting adds 2 eps of its dtype.
    """
    compute = method.compute_dtype(m)
    eps, cast = torch.finfo(compute).eps, 2.0 * torch.finfo(m.dtype).eps
    (n, k), cap = m.shape[-2:], {torch.bfloat16: 0.2, torch.float16: 0.1}.get(compute, inf)
    if isinstance(method, Composition | Zolotarev) and cap == inf:
        return cast + rounding(method, n, k, compute)
    if isinstance(method.map, Schedule):
        return cast + min(max(cap, eps / lower), eps * (8.0 + 2.0 * abs(method.map.slope)))
    return cast + 32.0 * eps / lower


def allowed_error(method: PolarMethod, m: Tensor) -> float:
    """error_bound at the smallest singular value of m above rounding level, plus the rounding term.

    Below that level any f <= 1 is allowed; a map that is largest there may overshoot as far as it is designed to.
    """
    _, s, _, nonzero = decompose(m)
    if not bool(nonzero.any()):
        return 0.0
    smallest, compute = float(s[nonzero].min()), method.compute_dtype(m)
    allowance = rounding_term(method, m, smallest / float(s.max()))
    if isinstance(method, ExactSVD):
        return allowance
    bound = float(_normaliser(method, m.double(), compute))
    if isinstance(method.map, Schedule):
        gram = method.map.runs_gram(m.shape[-2], m.shape[-1], NAMES[compute], method.form)
        bound *= prod(1.0 + margin for margin in method.map.margins(NAMES[compute], gram))
    overshoot = 0.0 if bool(nonzero.all()) else method.map.image(1e-9, 1.0)[1] - 1.0
    return max(method.error_bound(min(1.0, smallest / bound)), overshoot) + allowance


def check_polar(method: PolarMethod, m: Tensor | None = None) -> None:
    """Check shape, dtype, zero, scale, purity, text and finiteness, on m or on a small Gaussian batch."""
    if m is None:
        m = torch.randn(2, 6, 9, generator=torch.Generator().manual_seed(0))
    before = m.clone()
    x = method(m)
    assert x.shape == m.shape, f"{method}: shape changed from {tuple(m.shape)} to {tuple(x.shape)}"
    assert x.dtype == m.dtype, f"{method}: dtype changed from {m.dtype} to {x.dtype}"
    assert torch.equal(m, before), f"{method}: the input was changed"
    assert bool(x.isfinite().all()), f"{method}: the output is not finite"
    assert torch.equal(method(m), x), f"{method}: two calls differ"
    assert torch.equal(method(torch.zeros_like(m)), torch.zeros_like(m)), f"{method}: zero does not map to zero"
    for power in (-40, 40):
        assert torch.equal(method(m * 2.0**power), x), f"{method}: 2^{power} m gives different bits than m"
    assert bool(((m * x).sum(dim=(-2, -1)) > 0).all()), f"{method}: <m, output> is not positive"
    if method.name in POLARS:
        assert parse(str(method)) == method, f"{method}: the text does not parse back"


def check_ball(ball: Ball, m: Tensor | None = None) -> None:
    """Check that norm, dual norm, argmin and rho are consistent, on m or on a small Gaussian batch."""
    if m is None:
        m = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    before = m.clone()
    d = ball.exact(m)
    dims = (-2, -1)
    dual = ball.dual_norm(m)
    assert torch.equal(m, before), f"{ball}: the input was changed"
    assert torch.allclose(ball.norm(d), torch.ones_like(dual), rtol=1e-6), f"{ball}: norm(d) is not 1"
    assert torch.allclose((m * d).sum(dims), -dual, rtol=1e-6), f"{ball}: <m, d> is not -dual_norm(m)"
    assert torch.allclose(ball.norm(-2.0 * m), 2.0 * ball.norm(m)), f"{ball}: norm is not homogeneous"
    assert bool((ball.norm(m + d) <= ball.norm(m) + ball.norm(d) + 1e-9).all()), (
        f"{ball}: the triangle inequality fails"
    )
    assert bool((dual <= ball.rho(m.shape) * torch.linalg.vector_norm(m, dim=dims) * (1 + 1e-9)).all()), (
        f"{ball}: dual_norm(m) exceeds rho ||m||"
    )
    assert bool((ball.distance(m, d) <= 1e-6).all()), f"{ball}: the exact solution has a distance from itself"
    answer = ball(m)
    assert bool(((m * answer).sum(dims) <= 0).all()), f"{ball}: the output is an ascent direction"
    assert torch.equal(ball(torch.zeros_like(m)), torch.zeros_like(m)), f"{ball}: zero does not map to zero"


def _normaliser(method: PolarMethod, m: Tensor, compute: torch.dtype) -> Tensor:
    if method.normaliser == "spectral":
        return torch.linalg.matrix_norm(m, 2, keepdim=True)
    m = m.mT if m.shape[-2] > m.shape[-1] else m
    n, k = m.shape[-2:]
    margin = 1.0 + guard(compute, n, k, method.normaliser)  # the norm may be high by as much as it may be low
    if method.normaliser == "frobenius":
        return torch.linalg.vector_norm(m, dim=(-2, -1), keepdim=True) * margin**2
    return gram_bound(m @ m.mT, method.normaliser, compute, [(max(1, m[..., 0, 0].numel()), k)]).sqrt() * margin
