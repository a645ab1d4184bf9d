"""Perturbed makes an error of exactly the asked size."""

import pytest
import torch

from cases import BALLS
from inexact_muon import lmo, measure, polar
from matrices import matrix

PLAIN = {name: ball for name, ball in BALLS.items() if ball.scale == "unit"}


@pytest.mark.parametrize("name", BALLS)
@pytest.mark.parametrize("direction", ["random", "worst"])
@pytest.mark.parametrize("delta", [0.0, 0.05, 0.5])
@pytest.mark.parametrize("shape", [(6, 9), (9, 6)])
def test_delta_is_exact(name: str, direction: str, delta: float, shape: tuple[int, int]) -> None:
    m = matrix(*shape, "power-law", seed=1)
    ball = lmo.Perturbed(BALLS[name], delta=delta, direction=direction)
    found = measure(ball, m, ball(m), exact=True)
    assert found.delta == pytest.approx(delta, abs=1e-9)
    assert abs(found.gap) <= delta + 1e-9
    assert found.overshoot <= 1 + delta + 1e-9
    if delta < 1:
        assert 1 - 1e-9 <= found.factor <= (1 + delta) / (1 - delta) + 1e-9
        assert found.stochastic_factor <= (1 + delta) ** 0.25 / (1 - delta) + 1e-9


@pytest.mark.parametrize("name", ["spectral(polar=exact-svd())", "sign()", "col-norm()", "row-norm()"])
def test_worst_direction_nearly_attains_the_papers_factor(name: str) -> None:
    """Overshoot 1 + delta, gap delta up to the share of the one direction that was lengthened."""
    m = matrix(24, 24, "outlier", seed=1)
    ball = lmo.Perturbed(BALLS[name], delta=0.3, direction="worst")
    found = measure(ball, m, ball(m), exact=True)
    assert found.overshoot == pytest.approx(1.3, abs=1e-9)
    assert 0.26 < found.gap <= 0.3 + 1e-12
    random = lmo.Perturbed(BALLS[name], delta=0.3)
    assert measure(random, m, random(m), exact=True).factor < found.factor


def test_worst_gap_of_the_spectral_ball() -> None:
    """delta (1 - 2 sigma_n / sum sigma)."""
    m = torch.diag(torch.tensor([4.0, 2.0, 1.0], dtype=torch.float64))
    ball = lmo.Perturbed(lmo.Spectral(), delta=0.2, direction="worst")
    assert measure(ball, m, ball(m)).gap == pytest.approx(0.2 * (1 - 2 / 7))


def test_random_error_depends_on_seed_and_input_and_repeats() -> None:
    m = matrix(6, 9, "gaussian", seed=1)
    one, two = lmo.Perturbed(lmo.Spectral(), delta=0.2), lmo.Perturbed(lmo.Spectral(), delta=0.2, seed=1)
    assert torch.equal(one(m), one(m))
    assert not torch.equal(one(m), two(m))
    error = one(m) - lmo.Spectral().exact(m)
    other = one(2 * m) - lmo.Spectral().exact(m)
    assert not torch.allclose(error, other)


def test_inner_error_does_not_count() -> None:
    """The error is added to the exact solution, however crude the inner oracle."""
    m = matrix(6, 9, "gaussian", seed=1)
    ball = lmo.Perturbed(lmo.Spectral(polar=polar.NewtonSchulz(1)), delta=0.1)
    assert measure(ball, m, ball(m)).delta == pytest.approx(0.1, abs=1e-9)


def test_it_is_the_inner_ball_otherwise() -> None:
    m = matrix(6, 9, "gaussian", seed=1)
    inner = lmo.ColNorm(scale="rms")
    ball = lmo.Perturbed(inner, delta=0.1)
    assert torch.equal(ball.norm(m), inner.norm(m))
    assert torch.equal(ball.dual_norm(m), inner.dual_norm(m))
    assert ball.rho((6, 9)) == inner.rho((6, 9))
    torch.testing.assert_close(ball.exact(m), inner.exact(m))


def test_batches() -> None:
    m = torch.stack([matrix(5, 8, "gaussian", seed=s) for s in range(3)])
    for direction in ("random", "worst"):
        ball = lmo.Perturbed(lmo.Spectral(), delta=0.1, direction=direction)
        torch.testing.assert_close(measure(ball, m, ball(m)).delta, torch.full((3,), 0.1).double())
