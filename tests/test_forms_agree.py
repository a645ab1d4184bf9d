"""Direct and Gram form are one map; auto takes the cheaper one where it is as good."""

from dataclasses import replace

import pytest
import torch

from cases import POLARS
from inexact_muon import polar, schedules
from inexact_muon.polar.iteration import expand_about, factors_of, polynomial, run
from inexact_muon.schedules.scalar_map import restarts
from matrices import SPECTRA, matrix

COMPOSED = {name: m for name, m in POLARS.items() if isinstance(m.map, schedules.Schedule) and m.map.gram_dtypes}
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-3}
"""Documented in `runs_gram`."""


@pytest.mark.parametrize("name", COMPOSED)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_the_forms_agree(name: str, dtype: torch.dtype) -> None:
    method = COMPOSED[name]
    for n, m in ((32, 32), (48, 192)):
        for spectrum in SPECTRA:
            a = matrix(n, m, spectrum, seed=7, dtype=dtype)
            one, other = replace(method, form="direct")(a), replace(method, form="gram")(a)
            assert float(torch.linalg.matrix_norm((one - other).double(), 2)) <= TOLERANCE[dtype], (n, m, spectrum)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPOSED)
def test_the_forms_agree_at_a_real_size(name: str) -> None:
    for spectrum in SPECTRA:
        a = matrix(128, 512, spectrum, seed=7, dtype=torch.float32)
        one, other = (replace(COMPOSED[name], form=form)(a).double() for form in ("direct", "gram"))
        assert float(torch.linalg.matrix_norm(one - other, 2)) <= TOLERANCE[torch.float32], spectrum


@pytest.mark.parametrize("name", COMPOSED)
def test_auto_is_one_of_the_two_and_the_cheaper(name: str) -> None:
    method = COMPOSED[name]
    for n, m in ((16, 16), (16, 24), (16, 26), (64, 16)):
        a = matrix(n, m, "power-law", seed=7, dtype=torch.float32)
        taken = "gram" if method.runs_gram(n, m, torch.float32) else "direct"
        assert torch.equal(method(a), replace(method, form=taken)(a))
        forms = [replace(method, form=form).flops(n, m) for form in ("direct", "gram")]
        assert method.flops(n, m) == min(forms) or len(method.map.coefficients) == 1


def test_the_gram_form_by_dtype() -> None:
    """bfloat16 cannot bear it; float16 can, if no first step of two is too steep."""
    quintics, ninths = polar.PolarExpress(5), polar.PolarExpress(4, degree=9)
    assert [quintics.runs_gram(8, 80, d) for d in (torch.float32, torch.float16, torch.bfloat16)] == [True, True, False]
    assert [ninths.runs_gram(8, 80, d) for d in (torch.float32, torch.float16, torch.bfloat16)] == [True, False, False]
    assert not quintics.runs_gram(8, 12, torch.float16)
    refused = r"the Gram form diverges in bfloat16: use form='direct', or dtype float16 or float32"
    with pytest.raises(ValueError, match=refused):
        polar.PolarExpress(5, dtype=torch.bfloat16, form="gram")
    with pytest.raises(ValueError, match=r"the Gram form diverges in float16: use form='direct', or dtype float32"):
        polar.PolarExpress(4, degree=9, dtype=torch.float16, form="gram")


def test_a_tilted_composition_has_the_direct_form_alone() -> None:
    tilted = polar.PolarExpress(5, power=-0.1)
    assert not tilted.runs_gram(8, 80, torch.float32)
    a = matrix(16, 64, "power-law", seed=7, dtype=torch.float32)
    assert torch.equal(tilted(a), replace(tilted, form="direct")(a))
    (q,) = tilted.multiplier((a.double() @ a.double().mT)[None])
    assert float(torch.linalg.matrix_norm(q @ a.double() - tilted(a).double(), 2)) <= 1e-3
    for form in ({"form": "gram"}, {"form": "gram", "dtype": torch.float32}):
        with pytest.raises(ValueError, match="has no Gram form: leave form out"):
            replace(tilted, **form)  # type: ignore[arg-type]


def test_the_gram_form_is_priced_with_the_restarts_of_its_dtype() -> None:
    """In n x n x n products at m = 4 n: 8 for each segment, a square for each step, 3 for each step but the first of a
    segment; direct 9 for each step."""
    found = {
        dtype: [polar.PolarExpress(steps, dtype=dtype).flops(64, 256) / (2 * 64**3) for steps in (5, 6, 8)]
        for dtype in (torch.float32, torch.float16, torch.bfloat16)
    }
    assert found == {torch.float32: [30, 39, 47], torch.float16: [35, 39, 52], torch.bfloat16: [45, 54, 72]}
    assert (restarts(8), restarts(8, "float16")) == ((2, 5), (2, 4, 6))


def test_restarts_keep_ill_conditioned_input_in_order() -> None:
    """Without them rounding in the Gram form costs ten times the documented tolerance."""
    schedule = schedules.polar_express(8)
    x = matrix(64, 256, "log-uniform-1e-6", seed=7, dtype=torch.float32).unsqueeze(0)
    exact = run([x.double()], factors_of(schedule, range(1, 8)), torch.float64, "schatten4")[0]
    errors = []
    for again in ((), restarts(8)):
        got = run([x], factors_of(schedule, again), torch.float32, "schatten4")[0]
        errors.append(float(torch.linalg.matrix_norm(got.double() - exact, 2)))
    assert errors[1] < 2e-3 < 2e-2 < errors[0]


@pytest.mark.parametrize("terms", range(2, 8))
def test_polynomial_of_a_gram_matrix(terms: int) -> None:
    """Against the slow twin sum_k c_k A^k; half precision expands about another point."""
    generator = torch.Generator().manual_seed(terms)
    step = tuple(float(c) for c in torch.randn(terms, generator=generator, dtype=torch.float64))
    a = matrix(6, 9, "gaussian", seed=1)
    a = (a @ a.mT).unsqueeze(0)
    slow = sum(c * torch.linalg.matrix_power(a, k) for k, c in enumerate(step))
    constant, rest = polynomial(a, step, 1.0)
    torch.testing.assert_close(constant * torch.eye(6, dtype=a.dtype) + rest, slow, rtol=0, atol=1e-12)
    constant, rest = polynomial(a.bfloat16(), step, 1.0)
    got = constant * torch.eye(6, dtype=a.dtype) + rest.double()
    torch.testing.assert_close(got, slow, rtol=0, atol=0.1)


def test_expansion_about_a_point_is_the_same_polynomial() -> None:
    step, y = (2.0, -1.5, 0.7, 0.3, -0.1), 0.37
    moved = expand_about(step, 0.5)
    assert sum(c * (y - 0.5) ** k for k, c in enumerate(moved)) == pytest.approx(
        sum(c * y**k for k, c in enumerate(step))
    )


def test_shifted_form_makes_degree_nine_usable_in_half_precision() -> None:
    """5.5 of the digest: the monomial form loses an order of magnitude."""
    method = polar.PolarExpress(4, degree=9, dtype=torch.float16)
    for spectrum in ("gaussian", "log-uniform-1e-3", "rank-deficient"):
        a = matrix(48, 96, spectrum, seed=3, dtype=torch.float32)
        difference = method(a).double() - replace(method, dtype=torch.float64)(a.double())
        assert float(torch.linalg.matrix_norm(difference, 2)) < 0.15, spectrum
