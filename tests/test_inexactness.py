"""measure(exact=True) is the definition; the two numbers obey what the design proves."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import BALLS, POLARS
from inexact_muon import Inexactness, lmo, measure, polar, predict
from matrices import SPECTRA, factors, matrix

FULL_RANK = [name for name in SPECTRA if name != "rank-deficient"]


@pytest.mark.parametrize("name", POLARS)
@pytest.mark.parametrize("spectrum", FULL_RANK)
@pytest.mark.parametrize("exact", [True, False])
def test_prediction_and_measurement_agree(name: str, spectrum: str, exact: bool) -> None:
    """A priori from the coefficients, a posteriori from the matrix: float64, two roads to one number."""
    method = POLARS[name]
    m = matrix(20, 32, spectrum, seed=2)
    ball = lmo.Spectral(polar=method)
    found, expected = measure(ball, m, ball(m), exact=exact), predict(method, SPECTRA[spectrum](20))
    for field in ("delta", "gap", "overshoot", "factor", "stochastic_factor"):
        rel = 1e-6 if exact else 1e-3  # a Gram matrix resolves a singular value of 1e-6 to 1e-4 of itself
        assert getattr(found, field) == pytest.approx(getattr(expected, field), rel=rel, abs=rel / 10), field


@pytest.mark.parametrize("name", BALLS)
@pytest.mark.parametrize("spectrum", FULL_RANK)
def test_exact_oracles_have_no_error(name: str, spectrum: str) -> None:
    if name.startswith("nuclear") and spectrum in ("orthonormal", "gaussian"):
        pytest.skip("sigma_1 is not isolated: power iteration does not converge, see test_duality")
    m = matrix(10, 14, spectrum, seed=2)
    found = measure(BALLS[name], m, BALLS[name](m), exact=True)
    assert found.delta == pytest.approx(0.0, abs=1e-6)
    assert found.gap == pytest.approx(0.0, abs=1e-9)
    assert found.overshoot == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("name", BALLS)
def test_bounds_between_the_numbers(name: str) -> None:
    """|eta| <= delta, nu <= 1 + delta, 1 - eta <= nu, for arbitrary downhill answers."""
    ball, generator = BALLS[name], torch.Generator().manual_seed(5)
    for _ in range(40):
        m = torch.randn(5, 6, generator=generator, dtype=torch.float64)
        d_hat = ball.exact(m) + 0.3 * torch.randn(5, 6, generator=generator, dtype=torch.float64) * ball.radius((5, 6))
        if float((m * d_hat).sum()) >= 0:
            continue
        found = measure(ball, m, d_hat, exact=True)
        assert abs(found.gap) <= found.delta + 1e-9
        assert found.overshoot <= 1 + found.delta + 1e-9
        assert 1 - found.gap <= found.overshoot + 1e-9
        assert found.factor >= 1 - 1e-9
        assert found.stochastic_factor >= 1 - 1e-9


@settings(max_examples=200)
@given(delta=st.floats(0, 0.99), a=st.floats(-1, 1), b=st.floats(0, 1), scale=st.floats(0.1, 10))
def test_factors(delta: float, a: float, b: float, scale: float) -> None:
    """1 <= factor <= (1+delta)/(1-delta) and the stochastic one; a longer answer has the same factors."""
    gap, overshoot = a * delta, 1 - a * delta + b * (delta + a * delta)
    found = Inexactness(delta, gap, overshoot)
    assert 1 - 1e-12 <= found.factor <= (1 + delta) / (1 - delta) * (1 + 1e-12)
    assert 1 - 1e-12 <= found.stochastic_factor <= (1 + delta) ** 0.25 / (1 - delta) * (1 + 1e-12)
    longer = Inexactness(delta, 1 - scale * (1 - gap), scale * overshoot)
    assert longer.factor == pytest.approx(found.factor)
    assert longer.stochastic_factor == pytest.approx(found.stochastic_factor)


def test_no_descent_left() -> None:
    for gap in (1.0, 1.5):
        found = Inexactness(1.0, gap, 1.0)
        assert math.isinf(found.factor)
        assert math.isinf(found.stochastic_factor)
    batch = Inexactness(torch.ones(2), torch.tensor([1.0, 0.5]), torch.ones(2))
    assert batch.factor.tolist() == [math.inf, 2.0]


@pytest.mark.parametrize("exact", [True, False])
class TestRankDeficient:
    """The exact solution is a set: delta is the distance to it."""

    def deficient(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        u, s, vh = factors(16, 20, "rank-deficient", seed=3)
        return (u * s) @ vh, u, s, vh

    def test_any_completion_is_exact(self, exact: bool) -> None:
        m, u, _, vh = self.deficient()
        ball = lmo.Spectral()
        for block in (0.0, 0.5, 1.0, -1.0):
            weights = torch.where(torch.arange(16) < 4, 1.0, block).double()
            assert measure(ball, m, -(u * weights) @ vh, exact=exact).delta == pytest.approx(0.0, abs=1e-7)

    def test_what_sticks_out_of_the_null_block_counts(self, exact: bool) -> None:
        m, u, _, vh = self.deficient()
        weights = torch.where(torch.arange(16) < 4, 1.0, 1.25).double()
        found = measure(lmo.Spectral(), m, -(u * weights) @ vh, exact=exact)
        assert found.delta == pytest.approx(0.25, abs=1e-7)
        assert found.gap == pytest.approx(0.0, abs=1e-7)
        assert found.overshoot == pytest.approx(1.25, abs=1e-7)

    def test_error_on_the_range_counts(self, exact: bool) -> None:
        m, u, _, vh = self.deficient()
        weights = torch.where(torch.arange(16) < 4, 0.9, 0.0).double()
        assert measure(lmo.Spectral(), m, -(u * weights) @ vh, exact=exact).delta == pytest.approx(0.1, abs=1e-7)

    def test_mixing_range_and_null_space_counts(self, exact: bool) -> None:
        m, u, _, vh = self.deficient()
        d_hat = -(u[:, :4] @ vh[:4]) - 0.2 * torch.outer(u[:, 0], vh[9])
        assert measure(lmo.Spectral(), m, d_hat, exact=exact).delta == pytest.approx(0.2, abs=1e-7)

    def test_polynomials_leave_the_null_space_alone(self, exact: bool) -> None:
        """delta against a library's completed U V^T would read 1."""
        m, _, _, _ = self.deficient()
        ball = lmo.Spectral(polar=polar.PolarExpress(8))
        for dtype, tolerance in ((torch.float64, 1e-6), (torch.float32, 1e-3)):
            stored = m.to(dtype)
            assert measure(ball, stored, ball(stored), exact=exact).delta < tolerance


@pytest.mark.parametrize("exact", [True, False])
def test_zero(exact: bool) -> None:
    zero = torch.zeros(4, 6)
    found = measure(lmo.Spectral(), zero, zero, exact=exact)
    assert (found.delta, found.gap, found.overshoot) == (0.0, 0.0, 0.0)
    for ball in BALLS.values():
        assert measure(ball, zero, zero, exact=True).delta == 0.0


def test_solution_sets_of_other_balls() -> None:
    m = torch.tensor([[1.0, 0.0], [-2.0, 0.0]], dtype=torch.float64)
    inside = torch.tensor([[-1.0, 0.3], [1.0, -0.9]], dtype=torch.float64)
    assert measure(lmo.Sign(), m, inside, exact=True).delta == 0.0
    outside = torch.tensor([[-1.0, 1.5], [1.0, 0.0]], dtype=torch.float64)
    assert measure(lmo.Sign(), m, outside, exact=True).delta == pytest.approx(0.5)
    unit = lmo.ColNorm()(m)
    unit[:, 1] = torch.tensor([0.6, 0.8], dtype=torch.float64)
    assert measure(lmo.ColNorm(), m, unit, exact=True).delta == pytest.approx(0.0, abs=1e-12)
    unit[:, 1] *= 2
    assert measure(lmo.ColNorm(), m, unit, exact=True).delta == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("shape", [(2, 3, 8, 12), (4, 12, 8)])
def test_batches_have_the_batch_shape(exact: bool, shape: tuple[int, ...]) -> None:
    m = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ball = lmo.Spectral()
    found = measure(ball, m, ball(m), exact=exact)
    assert found.delta.shape == found.gap.shape == found.factor.shape == shape[:-2]
    flat = m.reshape(-1, *shape[-2:])
    for i, delta in enumerate(found.delta.flatten()):
        assert measure(ball, flat[i], ball(flat[i]), exact=exact).delta == pytest.approx(float(delta), rel=1e-9)


def test_floats_for_one_matrix() -> None:
    m = torch.randn(5, 7)
    for exact in (True, False):
        found = measure(lmo.Spectral(), m, lmo.Spectral()(m), exact=exact)
        for field in ("delta", "gap", "overshoot", "factor", "stochastic_factor"):
            assert isinstance(getattr(found, field), float)


@pytest.mark.parametrize("scale", ["rms", "rms-max"])
@pytest.mark.parametrize("exact", [True, False])
def test_the_radius_does_not_matter(scale: str, exact: bool) -> None:
    m = matrix(20, 8, "gaussian", seed=1)
    plain, scaled = lmo.Spectral(), lmo.Spectral(scale=scale)
    one, other = measure(plain, m, plain(m), exact=exact), measure(scaled, m, scaled(m), exact=exact)
    assert other.delta == pytest.approx(one.delta)
    assert other.gap == pytest.approx(one.gap)


def test_the_nuclear_ball_where_the_largest_singular_value_is_repeated() -> None:
    """Solutions are U_1 Z V_1^T with Z >= 0 of trace 1."""
    ball, m = lmo.Nuclear(), torch.diag(torch.tensor([2.0, 2.0, 2.0, 1.0])).double()
    assert measure(ball, torch.eye(5), ball(torch.eye(5))).delta == pytest.approx(0.0, abs=1e-6)
    for weights, delta in (
        ((0.5, 0.5, 0, 0), 0.0),
        ((1, 0, 0, 0), 0.0),
        ((0.5, 0.1, 0.1, 0), 0.3),
        ((0.5, 0, 0, 0.5), 1.0),
    ):
        d_hat = -torch.diag(torch.tensor(weights, dtype=torch.float64))
        assert measure(ball, m, d_hat).delta == pytest.approx(delta, abs=1e-9), weights
    v = torch.tensor([[0.6, 0.8, 0.0, 0.0]]).double()
    assert measure(ball, m, -v.mT @ v).delta == pytest.approx(0.0, abs=1e-7)


def test_delta_is_worst_case_and_the_gap_is_not() -> None:
    """1.3 of the digest: a square Gaussian matrix has delta near 1 and loses next to nothing."""
    m = torch.randn(256, 256, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ball = lmo.Spectral(polar=polar.PolarExpress(6, normalise="frobenius"))
    found = measure(ball, m, ball(m), exact=True)
    assert found.delta > 0.3
    assert abs(found.gap) < 0.01
    assert found.factor < 1.02
