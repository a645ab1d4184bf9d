"""Oracles for experiments: a map by its shape, and the leading directions taken out first."""

import numpy as np
import pytest
import torch

from inexact_muon import Muon, lmo, measure, polar, predict
from inexact_muon.polar.deflated import TIES
from inexact_muon.schedules import SHAPES, ShapedMap, shapes
from inexact_muon.testing import check_polar

DOMINATED = (3.0, 10.0, 100.0, 1000.0)
TOP = 1.0, 0.3, 0.1, 0.01, 1e-3


def with_spectrum(s: torch.Tensor, m: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """A matrix with these singular values and m columns."""
    generator = torch.Generator().manual_seed(len(s) + m)
    u = torch.linalg.qr(torch.randn(len(s), len(s), generator=generator, dtype=torch.float64)).Q
    v = torch.linalg.qr(torch.randn(m, len(s), generator=generator, dtype=torch.float64)).Q
    return ((u * s.double()) @ v.mT).to(dtype)


EXPECTED = {
    "power": (shapes.Power(-0.25), [s**-0.25 for s in TOP]),
    "floor": (shapes.Floor(0.05, 0.3), [1.0, 1.0, 1.0, 0.3, 0.3]),
    "ripple": (shapes.Ripple(0.2, 3.0), [1.0 + 0.2 * np.cos(3.0 * np.log(s)) for s in TOP]),
    "top": (shapes.Top(1.5, 0.1), [1.5, 1.0 + 0.5 * (1.0 - np.log(0.3) / np.log(0.1)), 1.0, 1.0, 1.0]),
    "dip": (shapes.Dip(0.5, 0.1, 0.01 + 0.04), [1.0, 1.0, 0.5, 1.0, 1.0]),
    "contra": (shapes.Contra(0.5), [1.0 - 0.5 * s for s in TOP]),
    "clip": (shapes.Clip(0.02), [1.0, 1.0, 1.0, 0.5, 0.05]),
}


def test_every_shape_is_here() -> None:
    assert set(EXPECTED) == set(SHAPES)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_answer_has_the_shape(name: str) -> None:
    shape, expected = EXPECTED[name]
    m = 7.0 * with_spectrum(torch.tensor(TOP), 9)
    got = torch.linalg.svdvals(polar.Shaped((shape,))(m))
    np.testing.assert_allclose(sorted(got.tolist()), sorted(expected), atol=1e-9)
    assert predict(polar.Shaped((shape,)), TOP).overshoot == pytest.approx(max(expected), abs=1e-9)
    check_polar(polar.Shaped((shape,)))


def test_factors_multiply() -> None:
    both = ShapedMap(0.0, "", (shapes.Power(0.5), shapes.Contra(0.5)))
    np.testing.assert_allclose(both.scalar(TOP), [s**0.5 * (1.0 - 0.5 * s) for s in TOP], atol=1e-15)


def test_no_factor_is_the_polar_factor() -> None:
    m = with_spectrum(torch.tensor(TOP), 12)
    torch.testing.assert_close(polar.Shaped()(m), polar.ExactSVD()(m), rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [shape for shape, _ in EXPECTED.values()], ids=str)
def test_extrema_between_grid_points_are_found(shape: shapes.Shape) -> None:
    product = ShapedMap(0.0, "", (shape, shapes.Ripple(0.3, 20.0)))
    dense = product.scalar(np.geomspace(1e-4, 1.0, 2_000_001))
    low, high = product.image(1e-4, 1.0)
    assert (low, high) == pytest.approx((dense.min(), dense.max()), rel=1e-6)
    assert low <= dense.min() + 1e-13
    assert high >= dense.max() - 1e-13


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("shaped(factors=(power(p=nan),))", "must be a finite number"),
        ("shaped(factors=(power(p=9.0),))", "p must lie"),
        ("shaped(factors=(floor(tau=2.0),))", "tau must lie"),
        ("shaped(factors=(jordan(steps=5),))", "factors must be shapes"),
        ("shaped(factors=(power(p=0.5),), normalise=frobenius)", "normalise has no effect"),
        ("power(p=0.5)", "is not a polar method"),
        ("deflated(method=deflated())", "method must be a polar method other than deflated"),
        ("deflated(rank=0)", "rank must be"),
        ("deflated(normalise=frobenius)", "belong inside"),
    ],
)
def test_refused_with_a_sentence(text: str, word: str) -> None:
    with pytest.raises(ValueError, match=word) as refused:
        polar.parse(text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("method", [polar.Deflated(), polar.Deflated(polar.Zolotarev(2, lower=1e-2), rank=3)], ids=str)
def test_deflated_keeps_the_contract(method: polar.Deflated) -> None:
    check_polar(method)
    assert method.flops(64, 256) > method.method.flops(64, 256)
    wide = torch.randn(2, 3, 6, 9, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(method(wide.mT), method(wide).mT, rtol=0, atol=1e-5)
    torch.testing.assert_close(method(wide)[1, 2], method(wide[1, 2]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("first", DOMINATED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_deflated_does_what_it_predicts_where_one_value_dominates(first: float, dtype: torch.dtype) -> None:
    s = torch.cat((torch.tensor([first]), torch.logspace(0, -2, 31)))
    ball = lmo.Spectral(polar=polar.Deflated(polar.PolarExpress(5)))
    m = with_spectrum(s, 80, dtype)
    found, expected = measure(ball, m, ball(m), exact=True), predict(ball.polar, s.numpy())
    assert found.gap == pytest.approx(expected.gap, abs=2e-3)
    assert found.overshoot == pytest.approx(expected.overshoot, abs=2e-3)
    torch.testing.assert_close(polar.Deflated(polar.ExactSVD())(m), polar.ExactSVD()(m), rtol=0, atol=2e-3)


@pytest.mark.parametrize("ratio", [1.0, 0.999, 0.99, 0.95, 0.9, 0.8, 0.5])
def test_deflated_with_ties_is_off_by_little(ratio: float) -> None:
    m = with_spectrum(ratio ** torch.arange(12.0), 30)
    for rank in (1, 3, 12, 40):
        error = polar.Deflated(polar.ExactSVD(), rank=rank)(m) - polar.ExactSVD()(m)
        assert float(torch.linalg.matrix_norm(error, 2)) <= TIES, rank


def test_deflated_helps_where_it_should() -> None:
    s = np.concatenate(([300.0], np.geomspace(1.0, 0.03, 255)))
    plain, deflated = polar.PolarExpress(4), polar.Deflated(polar.PolarExpress(4))
    assert deflated.judge(s).rms < 0.6 * plain.judge(s).rms


@pytest.mark.parametrize("text", ["shaped(factors=(floor(tau=0.01, value=0.3),))", "deflated(polar-express:3, rank=2)"])
def test_an_optimizer_trains_and_resumes_with_them(text: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    optimizer = Muon.for_model(model, lr=0.02, polar=text)
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    other = Muon.for_model(model, lr=0.02, polar=text)
    other.load_state_dict(optimizer.state_dict())
    assert [g["ball"] for g in other.param_groups] == [g["ball"] for g in optimizer.param_groups]
