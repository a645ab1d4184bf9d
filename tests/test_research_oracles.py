"""Oracles for experiments: a map of the singular values by its shape."""

import numpy as np
import pytest
import torch

from inexact_muon import Muon, polar, predict
from inexact_muon.testing import check_polar
from inexact_muon_lab.experiments import shapes
from inexact_muon_lab.experiments.shapes import SHAPES, ShapedMap

TOP = 1.0, 0.3, 0.1, 0.01, 1e-3


def with_spectrum(s: torch.Tensor, m: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """A matrix with these singular values and m columns."""
    generator = torch.Generator().manual_seed(len(s) + m)
    u = torch.linalg.qr(torch.randn(len(s), len(s), generator=generator, dtype=torch.float64)).Q
    v = torch.linalg.qr(torch.randn(m, len(s), generator=generator, dtype=torch.float64)).Q
    return ((u * s.double()) @ v.mT).to(dtype)


EXPECTED = {
    "power": (shapes.power(-0.25), [s**-0.25 for s in TOP]),
    "floor": (shapes.floor(0.05, 0.3), [1.0, 1.0, 1.0, 0.3, 0.3]),
    "ripple": (shapes.ripple(0.2, 3.0), [1.0 + 0.2 * np.cos(3.0 * np.log(s)) for s in TOP]),
    "top": (shapes.top(1.5, 0.1), [1.5, 1.0 + 0.5 * (1.0 - np.log(0.3) / np.log(0.1)), 1.0, 1.0, 1.0]),
    "dip": (shapes.dip(0.5, 0.1, 0.01 + 0.04), [1.0, 1.0, 0.5, 1.0, 1.0]),
    "contra": (shapes.contra(0.5), [1.0 - 0.5 * s for s in TOP]),
    "clip": (shapes.clip(0.02), [1.0, 1.0, 1.0, 0.5, 0.05]),
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
    both = ShapedMap(0.0, "", (shapes.power(0.5), shapes.contra(0.5)))
    np.testing.assert_allclose(both.scalar(TOP), [s**0.5 * (1.0 - 0.5 * s) for s in TOP], atol=1e-15)


def test_no_factor_is_the_polar_factor() -> None:
    m = with_spectrum(torch.tensor(TOP), 12)
    torch.testing.assert_close(polar.Shaped()(m), polar.ExactSVD()(m), rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("error")
def test_a_narrow_floor_does_not_overflow() -> None:
    assert shapes.floor(0.5, 0.3, width=0.01)(np.array([1e-9, 1.0])) == pytest.approx([0.3, 1.0])


@pytest.mark.parametrize("shape", [shape for shape, _ in EXPECTED.values()], ids=str)
def test_extrema_between_grid_points_are_found(shape: shapes.Shape) -> None:
    product = ShapedMap(0.0, "", (shape, shapes.ripple(0.3, 20.0)))
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
    ],
)
def test_refused_with_a_sentence(text: str, word: str) -> None:
    with pytest.raises(ValueError, match=word) as refused:
        polar.parse(text)
    assert "\n" not in str(refused.value)


def test_an_optimizer_trains_and_resumes_with_it() -> None:
    text = "shaped(factors=(floor(tau=0.01, value=0.3),))"
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    optimizer = Muon.for_model(model, lr=0.02, polar=text)
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    other = Muon.for_model(model, lr=0.02, polar=text)
    other.load_state_dict(optimizer.state_dict())
    assert [g["ball"] for g in other.param_groups] == [g["ball"] for g in optimizer.param_groups]
