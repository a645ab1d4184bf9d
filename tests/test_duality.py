"""Norm, dual norm, argmin and rho of every ball fit together."""

import math

import pytest
import torch

from cases import BALLS
from inexact_muon import lmo, polar
from matrices import SPECTRA, matrix

DIMS = (-2, -1)


@pytest.mark.parametrize("name", BALLS)
@pytest.mark.parametrize("shape", [(5, 7), (7, 5), (6, 6), (1, 4), (4, 1), (3, 5, 7), (2, 3, 4, 4)])
def test_the_answer_attains_the_dual_norm(name: str, shape: tuple[int, ...]) -> None:
    ball = BALLS[name]
    m = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    d = ball(m)
    dual = ball.dual_norm(m)
    assert dual.shape == shape[:-2]
    torch.testing.assert_close((m * d).sum(DIMS), -dual, rtol=1e-5, atol=0)
    torch.testing.assert_close(ball.norm(d), torch.ones_like(dual), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", BALLS)
def test_no_feasible_point_does_better(name: str) -> None:
    """Hoelder: <m, x> <= dual_norm(m) norm(x), for many x."""
    ball, generator = BALLS[name], torch.Generator().manual_seed(2)
    m = torch.randn(5, 7, generator=generator, dtype=torch.float64)
    x = torch.randn(500, 5, 7, generator=generator, dtype=torch.float64)
    assert bool(((m * x).sum(DIMS) <= ball.dual_norm(m) * ball.norm(x) * (1 + 1e-9)).all())


@pytest.mark.parametrize("name", BALLS)
@pytest.mark.parametrize("shape", [(5, 7), (7, 5), (4, 1)])
def test_rho_is_the_smallest(name: str, shape: tuple[int, int]) -> None:
    """Attained: by a constant, a partial isometry or a rank-one matrix, depending on the ball."""
    ball = BALLS[name]
    n, m = shape
    candidates = [torch.ones(n, m), torch.eye(n, m), torch.zeros(n, m).index_fill(0, torch.tensor([0]), 1.0)]
    ratios = [float(ball.dual_norm(v.double()) / v.double().norm()) for v in candidates]
    assert max(ratios) == pytest.approx(ball.rho(shape), rel=1e-9)


@pytest.mark.parametrize("name", BALLS)
def test_norm_is_the_dual_of_the_dual(name: str) -> None:
    """norm(x) = max <g, x> over dual_norm(g) <= 1; a lower bound from many g, tight from none."""
    ball, generator = BALLS[name], torch.Generator().manual_seed(3)
    x = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    g = torch.randn(400, 4, 6, generator=generator, dtype=torch.float64)
    assert bool(((g * x).sum(DIMS) / ball.dual_norm(g) <= ball.norm(x) * (1 + 1e-9)).all())


SCION = {
    ("spectral", "rms"): lambda fan_out, fan_in: math.sqrt(fan_out / fan_in),
    ("spectral", "rms-max"): lambda fan_out, fan_in: max(1.0, math.sqrt(fan_out / fan_in)),
    ("col-norm", "rms"): lambda fan_out, fan_in: math.sqrt(fan_out),
    ("row-norm", "rms"): lambda fan_out, fan_in: 1 / math.sqrt(fan_in),
    ("sign", "rms"): lambda fan_out, fan_in: 1 / fan_in,
    ("euclidean", "rms"): lambda fan_out, fan_in: math.sqrt(fan_out * fan_in),
}
"""Section 8 of the digest: radius of the dimension-normalised balls."""


@pytest.mark.parametrize("key", SCION, ids=str)
@pytest.mark.parametrize("shape", [(6, 10), (10, 6)])
def test_dimension_normalised_balls(key: tuple[str, str], shape: tuple[int, int]) -> None:
    scaled = next(b for b in BALLS.values() if (b.name, b.scale) == key)
    plain = next(b for b in BALLS.values() if (b.name, b.scale) == (key[0], "unit"))
    radius = SCION[key](*shape)
    m = torch.randn(shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    torch.testing.assert_close(scaled(m), radius * plain(m))
    torch.testing.assert_close(scaled.norm(m), plain.norm(m) / radius)
    torch.testing.assert_close(scaled.dual_norm(m), plain.dual_norm(m) * radius)
    assert scaled.rho(shape) == pytest.approx(plain.rho(shape) * radius)


def test_known_values() -> None:
    m = torch.tensor([[3.0, 0.0], [4.0, 0.0]], dtype=torch.float64)
    assert torch.equal(lmo.Sign()(m), torch.tensor([[-1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64))
    torch.testing.assert_close(lmo.Euclidean()(m), -m / 5)
    torch.testing.assert_close(lmo.ColNorm()(m), -m / 5)
    torch.testing.assert_close(lmo.RowNorm()(m), torch.tensor([[-1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64))
    torch.testing.assert_close(lmo.Spectral(polar=polar.ExactSVD())(m), -m / 5)
    torch.testing.assert_close(lmo.Nuclear()(m), -m / 5)
    assert float(lmo.Spectral().dual_norm(torch.diag(torch.tensor([3.0, 4.0])))) == pytest.approx(7.0)
    assert float(lmo.Nuclear().norm(torch.diag(torch.tensor([3.0, 4.0])))) == pytest.approx(7.0)


def test_vectors() -> None:
    v = torch.tensor([3.0, -4.0])
    torch.testing.assert_close(lmo.Euclidean()(v), -v / 5)
    torch.testing.assert_close(lmo.Euclidean(scale="rms")(v), -v / 5 * math.sqrt(2))
    assert torch.equal(lmo.Sign()(v), torch.tensor([-1.0, 1.0]))
    assert lmo.Sign().rho((2,)) == pytest.approx(math.sqrt(2))


def test_zero_rows_and_columns_get_zero() -> None:
    m = torch.tensor([[0.0, 2.0], [0.0, 1.0]])
    assert not lmo.ColNorm()(m)[:, 0].any()
    assert not lmo.RowNorm()(m.mT)[0].any()
    assert not lmo.Sign()(m)[:, 0].any()


@pytest.mark.parametrize("spectrum", SPECTRA)
def test_nuclear_power_iteration_is_feasible_and_loses_little(spectrum: str) -> None:
    m = matrix(20, 30, spectrum, seed=1)
    d = lmo.Nuclear()(m)
    assert float(lmo.Nuclear().norm(d)) == pytest.approx(1.0, abs=1e-9)
    assert float(-(m * d).sum() / lmo.Nuclear().dual_norm(m)) > 0.97
