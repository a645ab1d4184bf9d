"""method(c m) = method(m) over the range of the dtype: the same bits for powers of two."""

import math

import pytest
import torch

from cases import BALLS, DTYPES, POLARS
from inexact_muon.testing import rounding_term
from matrices import matrix


def powers(dtype: torch.dtype) -> tuple[int, ...]:
    """Exponents at which a matrix with entries in [2^-8, 1] stays normal in the dtype."""
    info = torch.finfo(dtype)
    low, high = math.frexp(info.smallest_normal)[1], math.frexp(info.max)[1]
    return (low + 9, max(low + 9, low // 2), -1, 1, high // 2, high - 2)


def well_scaled(dtype: torch.dtype) -> torch.Tensor:
    """Entries of magnitude at least 2^-8, so that scaling to either end of the range is exact."""
    m = matrix(10, 14, "gaussian", seed=2, dtype=torch.float64)
    m = m / m.abs().max()
    return (m.sign() * m.abs().clamp(min=2.0**-8)).to(dtype)


@pytest.mark.parametrize("name", POLARS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_powers_of_two_give_the_same_bits(name: str, dtype: torch.dtype) -> None:
    m = well_scaled(dtype)
    expected = POLARS[name](m)
    for power in powers(dtype):
        scaled = torch.ldexp(m.double(), torch.tensor(power)).to(dtype)
        assert torch.equal(POLARS[name](scaled), expected), power


@pytest.mark.parametrize("name", POLARS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_any_factor_to_rounding(name: str, dtype: torch.dtype) -> None:
    m, method = well_scaled(dtype), POLARS[name]
    atol = 2 * rounding_term(method, m) + 1e-3 * (dtype == torch.float32)
    for factor in (1e-30, 3e-7, 0.1, 7.0, 1e12, 3e30):
        torch.testing.assert_close(method(m * factor), method(m), rtol=0, atol=atol)


@pytest.mark.parametrize("name", POLARS)
def test_subnormal_input(name: str) -> None:
    m = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]])
    tiny = m * 2.0**-148
    assert float(tiny.abs().max()) > 0
    assert torch.equal(POLARS[name](tiny), POLARS[name](m))


@pytest.mark.parametrize("name", BALLS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_balls(name: str, dtype: torch.dtype) -> None:
    m = well_scaled(dtype)
    for power in powers(dtype):
        scaled = torch.ldexp(m, torch.tensor(power, dtype=m.dtype)) if abs(power) < 100 else m * 2.0**power
        torch.testing.assert_close(BALLS[name](scaled), BALLS[name](m), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", POLARS)
def test_matrices_of_a_batch_do_not_see_each_other(name: str) -> None:
    m = well_scaled(torch.float32)
    batch = torch.stack((m * 2.0**-100, m, m * 2.0**100, torch.zeros_like(m)))
    got = POLARS[name](batch)
    assert torch.equal(got[0], got[1])
    assert torch.equal(got[2], got[1])
    assert not got[3].any()
