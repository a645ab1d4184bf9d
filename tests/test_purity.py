"""Oracles leave their input, the gradient graph, the random state and the default dtype alone."""

import pytest
import torch

from cases import BALLS, DTYPES, POLARS
from inexact_muon import lmo, measure
from inexact_muon.testing import check_ball, check_polar
from matrices import matrix


@pytest.mark.parametrize("name", POLARS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_input_is_untouched(name: str, dtype: torch.dtype) -> None:
    """torch.optim.Muon 2.13, pytorch_optimizer and gram-newton-schulz normalise it in place."""
    m = matrix(8, 12, "gaussian", seed=1, dtype=dtype)
    before = m.clone()
    x = POLARS[name](m)
    x.zero_()  # nor does the answer share its memory
    assert torch.equal(m, before)


@pytest.mark.parametrize("name", POLARS)
def test_contract_suite(name: str) -> None:
    check_polar(POLARS[name])


@pytest.mark.parametrize("name", BALLS)
def test_contract_suite_of_balls(name: str) -> None:
    check_ball(BALLS[name])


def test_the_suites_can_fail() -> None:
    class Broken(lmo.Sign):
        def unit_rho(self, fan_out: int, fan_in: int) -> float:
            return 1.0

    with pytest.raises(AssertionError, match="rho"):
        check_ball(Broken())


@pytest.mark.parametrize("name", BALLS)
def test_balls_leave_the_input(name: str) -> None:
    m = matrix(8, 12, "gaussian", seed=1, dtype=torch.float32)
    before = m.clone()
    BALLS[name](m).zero_()
    assert torch.equal(m, before)


def test_random_state_is_untouched() -> None:
    m = matrix(140, 140, "gaussian", seed=1, dtype=torch.float32)
    state = torch.random.get_rng_state()
    for ball in (lmo.Spectral(), lmo.Nuclear(), lmo.Perturbed(lmo.Euclidean(), delta=0.1)):
        measure(ball, m, ball(m))
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("name", POLARS)
def test_no_gradient_flows(name: str) -> None:
    m = torch.randn(4, 6, requires_grad=True)
    assert not POLARS[name](m).requires_grad


@pytest.mark.parametrize("name", POLARS)
def test_deterministic(name: str) -> None:
    m = matrix(16, 24, "log-uniform-1e-3", seed=1, dtype=torch.float32)
    assert torch.equal(POLARS[name](m), POLARS[name](m.clone()))


@pytest.mark.parametrize("name", POLARS)
def test_a_callers_autocast_does_not_reach_inside(name: str) -> None:
    m = matrix(16, 24, "log-uniform-1e-3", seed=1, dtype=torch.float32)
    expected = POLARS[name](m)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = POLARS[name](m)
    assert torch.equal(got, expected)


def test_measuring_under_autocast() -> None:
    m = matrix(140, 150, "gaussian", seed=1, dtype=torch.float32)
    for ball in (lmo.Spectral(), lmo.Nuclear()):
        d_hat = ball(m)
        expected = measure(ball, m, d_hat)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(ball(m), d_hat)
            assert measure(ball, m, d_hat) == expected
