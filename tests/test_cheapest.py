"""`cheapest` is good enough, the cheapest of what is, and the same everywhere."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inexact_muon import lmo, measure, polar, predict
from inexact_muon.polar.choice import _ordered, choose
from inexact_muon.polar.costs import ACCELERATOR, CPU, Costs, at
from inexact_muon.polar.rounding import reached
from matrices import matrix

SIDES = (16, 64, 128, 256, 384, 768, 2048)


@pytest.mark.parametrize("n", SIDES)
@pytest.mark.parametrize("aspect", [1, 4])
@pytest.mark.parametrize(("delta", "lower"), [(0.065, 1e-3), (0.3, 1e-2), (0.01, 1e-2), (0.5, 1e-4)])
def test_good_enough_and_cheapest(n: int, aspect: int, delta: float, lower: float) -> None:
    choice = choose(n, n * aspect, delta, lower)
    assert choice.method.error_bound(lower) <= delta
    for cost, other in _ordered(n, n * aspect, (lower,), False, None, CPU):
        if cost < choice.cost:
            assert reached(other, n, n * aspect, lower, torch.float32) > delta
    assert polar.cheapest(n * aspect, n, delta, lower) == choice.method, "orientation does not matter"


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(SIDES), st.sampled_from([1e-2, 1e-3]), st.floats(0.02, 0.5), st.floats(1.0, 3.0))
def test_asking_for_more_costs_no_less(n: int, lower: float, delta: float, more: float) -> None:
    assert choose(n, n, delta / more, lower).cost >= choose(n, n, delta, lower).cost


@pytest.mark.parametrize("spectrum", ["gaussian", "log-uniform-1e-3", "power-law"])
@pytest.mark.parametrize("shape", [(96, 96), (128, 512), (400, 400)])
def test_what_it_promises_is_measured(spectrum: str, shape: tuple[int, int]) -> None:
    """gap <= 0.03 and overshoot <= 1.07 with the default targets, on matrices."""
    m = matrix(*shape, spectrum, seed=11, dtype=torch.float32)
    ball = lmo.Spectral(polar=polar.cheapest(*shape))
    found = measure(ball, m, ball(m), exact=True)
    assert found.gap <= 0.03
    assert found.overshoot <= 1.07


def test_a_spectrum_is_judged_by_gap_and_overshoot() -> None:
    values = np.arange(1, 257) ** -1.0
    choice = choose(256, 256, spectrum=values, gap=0.1, overshoot=1.2)
    found = predict(choice.method, values)
    assert (found.gap <= 0.1, found.overshoot <= 1.2) == (True, True)
    assert choice.cost < choose(256, 256, spectrum=values, gap=0.001, overshoot=1.01).cost
    assert "gap" in choice.why


def test_devices_and_dtypes() -> None:
    on_gpu = choose(768, 768, device="cuda")
    assert isinstance(on_gpu.method, polar.PolarExpress), (
        "no factorisations, no minimax without safety in half precision"
    )
    assert torch.bfloat16 in on_gpu.method.dtypes
    assert polar.cheapest(64, 64, dtype=torch.float64).dtype == torch.float64
    assert ACCELERATOR.of(polar.Zolotarev(2), 64, 64) == float("inf")
    assert CPU.of(polar.ExactSVD(), 64, 64) > CPU.of(polar.PolarExpress(8), 64, 64)


def test_cost_counts_what_the_methods_do() -> None:
    """With symmetric products at full price and inverses at half a product the cost is the flops."""
    plain = Costs("cpu", symmetric=((1, 1.0),), inverse=((1, 0.5),), double=1.0)
    for method in (polar.Cans(5), polar.PolarExpress(8), polar.Zolotarev(3), polar.Zolotarev(1, polish=9)):
        for n, m in ((64, 64), (64, 90), (64, 256)):
            assert plain.of(method, n, m) == pytest.approx(method.flops(n, m) / (2 * n**3))


def test_curves() -> None:
    curve = ((10, 4.0), (1000, 2.0))
    assert [at(curve, n) for n in (1, 10, 100, 1000, 5000)] == pytest.approx([4.0, 4.0, 3.0, 2.0, 2.0])


def test_calibration_is_explicit_and_usable() -> None:
    before = str(polar.cheapest(96, 96))
    costs = polar.calibrate(sides=(32, 96), repeats=2)
    assert [n for n, _ in costs.inverse] == [32, 96]
    assert all(cost > 0 for _, cost in (*costs.symmetric, *costs.inverse))
    assert polar.cheapest(96, 96, costs=costs).error_bound(1e-3) <= 0.065
    assert str(polar.cheapest(96, 96)) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"n": 0, "m": 4}, "n and m must be at least 1"),
        ({"n": 4, "m": 4, "delta": 1.5}, r"delta must lie in \(0, 1\)"),
        ({"n": 4, "m": 4, "lower": 0.0}, r"lower must lie in \(0, 1\)"),
        ({"n": 4, "m": 4, "delta": 1e-14, "lower": 1e-6}, "no candidate reaches delta=1e-14 at lower=1e-06"),
    ],
)
def test_bad_wishes(arguments: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        polar.cheapest(**arguments)  # type: ignore[arg-type]
