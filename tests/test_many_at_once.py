"""Working on many matrices together is working on each, and symmetric products are products."""

import pytest
import torch

from cases import POLARS
from inexact_muon.polar import kernel
from inexact_muon.polar.batching import COPIES
from inexact_muon.polar.kernel import spd_inverse, symmetric_product
from matrices import matrix

SHAPES = ((12, 12), (12, 30), (30, 12), (12, 12), (8, 20), (3, 12, 12), (2, 2, 8, 5), (0, 4), (4, 0), (1, 1))


def several(dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in SHAPES]


@pytest.mark.parametrize("name", POLARS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_together_is_each_alone(name: str, dtype: torch.dtype) -> None:
    ms, method = several(dtype), POLARS[name]
    tolerance = {torch.float64: 1e-9, torch.float32: 2e-3, torch.bfloat16: 2e-2}[dtype]
    for m, together in zip(ms, method.orthogonalise_all(ms), strict=True):
        assert (together.shape, together.dtype) == (m.shape, m.dtype)
        torch.testing.assert_close(together, method.orthogonalise(m), rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", ["polar-express(steps=5)", "zolotarev(poles=3)", "exact-svd()"])
def test_any_limit_gives_the_same(name: str) -> None:
    """From one matrix at a time to all at once; a batch is cut too."""
    ms, method = several(torch.float64), POLARS[name]
    whole = method.orthogonalise_all(ms)
    for copies in (0, 1, 3, 10):
        limited = method.orthogonalise_all(ms, limit=copies * COPIES * 12 * 12 * 8)
        for one, other in zip(whole, limited, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_inputs_and_scales_stay_apart() -> None:
    """A tiny, a huge and a zero matrix in one stack do not disturb each other."""
    m = matrix(12, 12, "gaussian", seed=3, dtype=torch.float32)
    ms = [m, m * 2.0**-100, m * 2.0**100, torch.zeros_like(m)]
    before = [x.clone() for x in ms]
    answers = POLARS["zolotarev(poles=3)"].orthogonalise_all(ms)
    assert torch.equal(answers[0], answers[1])
    assert torch.equal(answers[0], answers[2])
    assert not answers[3].any()
    assert all(torch.equal(x, y) for x, y in zip(ms, before, strict=True))


@pytest.mark.parametrize("n", [1, 7, 16, 33])
def test_symmetric_products(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By blocks as in full, also with odd sizes; the result is symmetric to the bit."""
    monkeypatch.setattr(kernel, "UNDIVIDED", 4)
    x = torch.randn(2, n, 40, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    gram = x @ x.mT
    blocks = symmetric_product(x, x.mT)
    torch.testing.assert_close(blocks, gram)
    torch.testing.assert_close(
        symmetric_product(gram, gram, add=gram, beta=0.3, alpha=2.0), 2.0 * gram @ gram + 0.3 * gram
    )
    assert n < 4 or torch.equal(blocks.tril(-1).mT, blocks.triu(1))


def test_large_matrices_take_symmetric_products() -> None:
    x = torch.randn(1, 400, 410, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(symmetric_product(x, x.mT), x @ x.mT)


@pytest.mark.parametrize("n", [1, 31, 64, 100, 128, 255, 256, 383, 384])
@pytest.mark.parametrize("batch", [1, 5])
def test_inverses(n: int, batch: int) -> None:
    """By blocks or by the library, to the accuracy of a Cholesky factor at condition number 1e6."""
    spectrum = torch.logspace(0, -6, n, dtype=torch.float64)
    q = torch.linalg.qr(torch.randn(batch, n, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64))[0]
    a = (q * spectrum) @ q.mT
    exact = (q / spectrum) @ q.mT
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 0.3)):
        inverse, failed = spd_inverse(a.to(dtype))
        assert not failed.any()
        assert float((inverse.double() - exact).abs().max() * spectrum[-1]) < tolerance


@pytest.mark.parametrize("n", [20, 128])
def test_inverses_say_what_failed(n: int) -> None:
    a = torch.eye(n).repeat(5, 1, 1)
    a[3, n - 1, n - 1] = -1.0
    a[1, 0, 0] = -1.0
    assert spd_inverse(a)[1].tolist() == [False, True, False, True, False]
