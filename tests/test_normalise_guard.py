"""The normaliser is an upper bound on the largest singular value as it is computed: any n and m, dtype and input."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from inexact_muon import polar
from inexact_muon.polar.iteration import run
from inexact_muon.polar.kernel import symmetric_product
from inexact_muon.polar.scaling import LEAST_GUARD, gram_bound, guard
from inexact_muon.schedules import Schedule
from inexact_muon.schedules.judgement import NORMALISERS
from inexact_muon.schedules.scalar_map import polynomial_image
from matrices import orthonormal


def noise(n: int, m: int, seed: int = 0) -> Tensor:
    return torch.randn(n, m, generator=torch.Generator().manual_seed(seed))


def one_direction(n: int, m: int, seed: int = 0) -> Tensor:
    """A gradient of which one direction is most: its Gram matrix has entries of similar size, whose squares add up."""
    return noise(n, 1, seed) @ noise(1, m, seed + 1) + 0.1 * noise(n, m, seed + 2)


INPUTS = {
    "equal entries": lambda n, m: torch.full((n, m), 1.0 / 3.0),
    "positive": lambda n, m: noise(n, m).abs(),
    "one direction": one_direction,
    "equal singular values": lambda n, m: orthonormal(m, n, 1).mT.float(),
}


@pytest.mark.parametrize("dtype", list(LEAST_GUARD), ids=str)
@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("shape", [(300, 300), (256, 2000)])
def test_no_singular_value_exceeds_the_bound(name: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = INPUTS[name](*shape).div(32.0).to(dtype)[None]
    gram = symmetric_product(x, x.mT)
    square = torch.linalg.eigvalsh(x.double() @ x.double().mT)[0, -1]
    for normalise in NORMALISERS:
        bound = gram_bound(gram.clone(), normalise, dtype, [(1, shape[1])])
        assert float(bound) >= float(square), normalise


@pytest.mark.parametrize("steps", [5, 6, 8])
def test_cans_stays_within_its_bound_on_a_large_matrix(steps: int) -> None:
    method = polar.Cans(steps)
    x = method(one_direction(1024, 1024))
    assert bool(x.isfinite().all())
    assert float(torch.linalg.matrix_norm(x, 2)) <= 1.0 + method.error_bound(1e-3) + 1e-5


@pytest.mark.slow
def test_what_cheapest_chooses_for_a_large_matrix_is_within_its_error() -> None:
    for method in (polar.cheapest(2048, 2048, delta=0.05), polar.Cans(4, degree=(5, 9, 9, 9)), polar.Cans(5)):
        x = method(one_direction(2048, 2048))
        assert float(torch.linalg.matrix_norm(x, 2)) <= 1.0 + method.error_bound(1e-3) + 1e-5, str(method)


def pushed(coefficients: tuple[tuple[float, ...], ...], by: float) -> float:
    """Error of a composition on [1e-3, 1] if rounding raises the largest singular value after every step."""
    low, high = 1e-3, 1.0
    for step in coefficients:
        low, high = polynomial_image(step, low, high)
        high *= 1.0 + by
    return max(1.0 - low, high - 1.0)


WITHOUT_SAFETY = (polar.Cans(5), polar.Cans(6), polar.Cans(4, degree=9), polar.PolarExpress(5, safety=1.0))


@pytest.mark.parametrize("method", WITHOUT_SAFETY, ids=str)
def test_steps_without_a_safety_factor_absorb_rounding(method: polar.Cans | polar.PolarExpress) -> None:
    schedule = method.map
    assert isinstance(schedule, Schedule)
    margin, bound = schedule.margins("float32")[1], method.error_bound(1e-3)
    assert pushed(schedule.guarded("float32").coefficients, 0.9 * margin) <= bound + 1e-3
    assert pushed(schedule.coefficients, 0.9 * margin) > bound + 0.1, "what happens without"
    assert not any(polar.PolarExpress(5).map.margins("float32"))


def test_the_margin_follows_the_shape() -> None:
    for dtype in LEAST_GUARD:
        for normalise in NORMALISERS:
            shapes = ((1, 1), (64, 64), (1024, 1024), (1024, 4096), (8192, 28672))
            sizes = [guard(dtype, n, m, normalise) for n, m in shapes]
            assert sizes == sorted(sizes)
            assert sizes[0] == LEAST_GUARD[dtype]
    u = 2.0**-24
    assert guard(torch.float32, 1024, 4096) >= 0.5 * (4096 + 2048) * u
    assert guard(torch.float32, 1024, 4096) <= 3e-4, "and costs nothing that is seen"


def test_a_stack_does_not_change_the_margin_of_its_members() -> None:
    narrow, wide = one_direction(64, 64)[None], one_direction(64, 4096)[None]
    factors = polar.PolarExpress(5)._forms[torch.float32][0]
    both = run([narrow, wide], factors, torch.float32, "schatten4")
    alone = [run([x], factors, torch.float32, "schatten4")[0] for x in (narrow, wide)]
    for x, y in zip(both, alone, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-6)
