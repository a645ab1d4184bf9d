"""The measured error is within the error bound plus the stated rounding term, for every method and input."""

from dataclasses import replace

import pytest
import torch

from cases import DTYPES, POLARS, SHAPES
from inexact_muon import lmo
from inexact_muon.polar import PolarMethod
from inexact_muon.testing import allowed_error
from matrices import SPECTRA, matrix


def computed(name: str, dtype: torch.dtype) -> list[PolarMethod]:
    """The method as it runs by default on this input, and with products in the input's own dtype where that differs."""
    method = POLARS[name]
    other = dtype in method.dtypes and dtype != method.compute_dtype(torch.empty(0, dtype=dtype))
    return [method, replace(method, dtype=dtype)] if other else [method]


def excess(method: PolarMethod, m: torch.Tensor) -> float:
    """Measured delta minus what is allowed."""
    x = method(m)
    assert x.shape == m.shape
    assert x.dtype == m.dtype
    return float(lmo.Spectral().distance(m, -x)) - allowed_error(method, m)


@pytest.mark.parametrize("name", POLARS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_within_the_bound(name: str, dtype: torch.dtype) -> None:
    for method in computed(name, dtype):
        for shape in SHAPES:
            for spectrum in SPECTRA:
                m = matrix(*shape, spectrum, seed=3, dtype=dtype)
                assert excess(method, m) <= 0, (str(method), shape, spectrum)


@pytest.mark.slow
@pytest.mark.parametrize("name", POLARS)
def test_within_the_bound_at_a_real_size(name: str) -> None:
    for shape in ((256, 256), (128, 512)):
        for spectrum in SPECTRA:
            m = matrix(*shape, spectrum, seed=5, dtype=torch.float32)
            assert excess(POLARS[name], m) <= 0, (shape, spectrum)


@pytest.mark.parametrize("name", ["polar-express(steps=5)", "jordan(steps=5)", "you(steps=6)"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_products_at_a_real_size(name: str, dtype: torch.dtype) -> None:
    method = replace(POLARS[name], dtype=dtype)
    for spectrum in SPECTRA:
        m = matrix(128, 256, spectrum, seed=5, dtype=torch.float32)
        assert excess(method, m) <= 0, spectrum


@pytest.mark.parametrize("name", POLARS)
def test_singular_values_are_the_scalar_map(name: str) -> None:
    """A slow twin in float64: U diag(f(sigma/c)) V^T, with c from its definition."""
    method = POLARS[name]
    for n, m in ((24, 24), (16, 60)):
        a = matrix(n, m, "log-uniform-1e-3", seed=9)
        u, s, vh = torch.linalg.svd(a, full_matrices=False)
        power = {"frobenius": 2, "schatten4": 4}.get(method.normaliser)
        c = float((s**power).sum() ** (1 / power)) * (1 + 2.0**-40) if power else float(s.max())
        twin = (u * torch.from_numpy(method.scalar((s / c).numpy()))) @ vh
        torch.testing.assert_close(method(a), twin, rtol=0, atol=3e-9)


@pytest.mark.parametrize("name", POLARS)
def test_batches_are_their_matrices(name: str) -> None:
    batch = torch.stack([matrix(12, 20, spectrum, seed=1, dtype=torch.float32) for spectrum in SPECTRA])
    batch = torch.stack((batch, 3.0 * batch))  # (2, spectra, 12, 20)
    got = POLARS[name](batch)
    for i in range(2):
        for j in range(len(SPECTRA)):
            torch.testing.assert_close(got[i, j], POLARS[name](batch[i, j]), rtol=0, atol=2e-3)
    transposed = POLARS[name](batch.mT)
    torch.testing.assert_close(transposed, got.mT, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", POLARS)
@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0), (0, 3, 4), (2, 0, 4)])
def test_empty_gives_empty(name: str, shape: tuple[int, ...]) -> None:
    assert POLARS[name](torch.zeros(shape)).shape == shape
