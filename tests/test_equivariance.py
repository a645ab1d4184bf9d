"""method(Q m R) = Q method(m) R for orthogonal Q, R, and other rewritings that must not matter."""

import pytest
import torch

from cases import POLARS
from matrices import matrix, orthonormal


@pytest.mark.parametrize("name", POLARS)
@pytest.mark.parametrize("shape", [(12, 12), (8, 30), (30, 8)])
def test_rotations(name: str, shape: tuple[int, int]) -> None:
    n, m = shape
    a = matrix(n, m, "log-uniform-1e-3", seed=4)
    q, r = orthonormal(n, n, 100), orthonormal(m, m, 101)
    torch.testing.assert_close(POLARS[name](q @ a @ r), q @ POLARS[name](a) @ r, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", POLARS)
def test_permutations_and_signs(name: str) -> None:
    a = matrix(9, 14, "power-law", seed=6)
    generator = torch.Generator().manual_seed(0)
    rows, columns = torch.randperm(9, generator=generator), torch.randperm(14, generator=generator)
    signs = torch.where(torch.rand(14, generator=generator) < 0.5, -1.0, 1.0).double()
    got = POLARS[name]((a[rows][:, columns]) * signs)
    torch.testing.assert_close(got, POLARS[name](a)[rows][:, columns] * signs, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", POLARS)
def test_odd(name: str) -> None:
    a = matrix(9, 14, "power-law", seed=6, dtype=torch.float32)
    assert torch.equal(POLARS[name](-a), -POLARS[name](a))


@pytest.mark.parametrize("name", POLARS)
def test_zero_rows_stay_zero_and_change_nothing(name: str) -> None:
    a = matrix(8, 12, "power-law", seed=6)
    padded = torch.cat((a, torch.zeros(3, 12, dtype=a.dtype)))
    got = POLARS[name](padded)
    assert float(got[8:].abs().max()) < 1e-12
    torch.testing.assert_close(got[:8], POLARS[name](a), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", POLARS)
def test_memory_layout_does_not_matter(name: str) -> None:
    a = matrix(10, 16, "gaussian", seed=8, dtype=torch.float32)
    strided = torch.empty(20, 32)[::2, ::2]
    strided.copy_(a)
    expected = POLARS[name](a)
    for view in (strided, a.mT.contiguous().mT):
        assert not view.is_contiguous()
        torch.testing.assert_close(POLARS[name](view), expected, rtol=0, atol=2e-4)
