"""One clear sentence for each kind of bad input, naming the argument."""

import pytest
import torch

from cases import BALLS, POLARS
from inexact_muon import lmo, measure, polar, schedules
from inexact_muon.optim.lengths import Smooth

METHOD = polar.PolarExpress(5)


@pytest.mark.parametrize("name", POLARS)
def test_bad_matrices(name: str) -> None:
    method = POLARS[name]
    for bad in (torch.ones(3), torch.tensor(1.0)):
        with pytest.raises(ValueError, match="m must have at least 2 dimensions"):
            method(bad)
    for bad in (torch.ones(2, 2, dtype=torch.complex64), torch.ones(2, 2, dtype=torch.int64)):
        with pytest.raises(TypeError, match="m must have a real floating dtype"):
            method(bad)
    with pytest.raises(TypeError, match=r"m must be a torch\.Tensor, got list"):
        method([[1.0]])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", POLARS)
@pytest.mark.parametrize(("value", "kind"), [(float("nan"), "NaN"), (float("inf"), "Inf"), (-float("inf"), "Inf")])
def test_not_finite(name: str, value: float, kind: str) -> None:
    m = torch.ones(2, 3, 4)
    m[1, 2, 0] = value
    with pytest.raises(
        ValueError, match=rf"m has 1 entries that are not finite, the first a {kind} at index \(1, 2, 0\)"
    ):
        POLARS[name](m)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: polar.PolarExpress(0), ValueError, "steps must be at least 1"),
        (lambda: polar.NewtonSchulz(-2), ValueError, "steps must be at least 1"),
        (lambda: polar.Jordan(0), ValueError, "steps must be at least 1"),
        (lambda: polar.Jordan(2.5), TypeError, "steps must be an integer"),
        (lambda: polar.Cans(True), TypeError, "steps must be an integer"),
        (lambda: polar.You(7), ValueError, "You's coefficients have 5 or 6 steps, got steps=7"),
        (lambda: polar.Cesista(6), ValueError, "Cesista's coefficients have 5 steps, got steps=6"),
        (lambda: polar.NewtonSchulz(5, degree=4), ValueError, "degree must be 3, 5, 7 or 9"),
        (lambda: polar.PolarExpress(5, degree=6), ValueError, "degree must be odd"),
        (lambda: polar.PolarExpress(5, degree=(3, 5)), ValueError, "2 degrees for steps=5"),
        (lambda: polar.PolarExpress(5, lower=0.0), ValueError, "lower must lie in"),
        (lambda: polar.PolarExpress(5, safety=0.9), ValueError, "safety must lie in"),
        (lambda: polar.PolarExpress(5, cushion=-0.1), ValueError, "cushion must lie in"),
        (lambda: polar.Zolotarev(0), ValueError, "poles must lie between 1 and 8"),
        (lambda: polar.Zolotarev(9), ValueError, "poles must lie between 1 and 8"),
        (lambda: polar.Zolotarev(2.0), TypeError, "poles must be an integer"),
        (lambda: polar.Zolotarev(3, lower=2.0), ValueError, "lower must lie in"),
        (lambda: polar.Zolotarev(3, form="direct"), ValueError, "form must be one of auto, gram"),
        (lambda: polar.Zolotarev(3, dtype=torch.bfloat16), ValueError, "no half precision factorisation"),
        (lambda: polar.Cans(5, dtype=torch.bfloat16), ValueError, "needs a safety factor"),
        (lambda: polar.PolarExpress(4, degree=9, dtype=torch.bfloat16), ValueError, "larger safety factor"),
        (lambda: polar.ExactSVD(normalise="frobenius"), ValueError, "has no effect"),
        (lambda: polar.Jordan(65), ValueError, "steps must be at most 64, got 65"),
        (lambda: polar.PolarExpress(10**9), ValueError, "steps must be at most 64, got 1000000000"),
        (lambda: polar.Polynomial(((1.5, -0.5),) * 65), ValueError, "at most 64 steps, got 65"),
        (lambda: polar.Polynomial((tuple(range(33)),)), ValueError, "at most 32 coefficients, got 33"),
        (lambda: polar.Polynomial(((float("nan"), 1.0),)), ValueError, "coefficients must be finite"),
        (lambda: polar.Polynomial(((1.5, -0.5), (0.0, 0.0))), ValueError, "a coefficient that is not zero"),
        (lambda: lmo.Nuclear(steps=10**6), ValueError, "at most 10000, got 1000000"),
        (lambda: lmo.Spectral(polar="jordan"), TypeError, "polar must be a polar method, got 'jordan'"),
        (lambda: Smooth(float("nan")), ValueError, "l0 and l1 must be finite and not negative"),
        (lambda: Smooth(1.0, l1=float("inf")), ValueError, "l0 and l1 must be finite and not negative"),
        (lambda: Smooth(0.0), ValueError, "nor both zero"),
        (lambda: polar.Polynomial(()), ValueError, "at least one step"),
        (lambda: polar.Polynomial((1.5, -0.5)), TypeError, "one sequence of numbers per step"),
        (lambda: polar.PolarExpress(5).error_bound(0.0), ValueError, "lower must lie in"),
        (lambda: lmo.Sign(scale="rsm"), ValueError, "did you mean 'rms'"),
        (lambda: lmo.Nuclear(steps=0), ValueError, "steps must be at least 1"),
        (lambda: lmo.Perturbed(lmo.Sign(), delta=-1.0), ValueError, "delta must be finite and not negative"),
        (lambda: lmo.Perturbed(lmo.Sign(), direction="up"), ValueError, "direction must be random or worst"),
        (lambda: lmo.Perturbed(METHOD), TypeError, "inner must be a plain ball"),
        (lambda: schedules.judge(METHOD.map, [0.0, 0.0]), ValueError, "no positive entry"),
    ],
)
def test_bad_arguments(make, error, words) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", BALLS)
def test_bad_tensors_for_balls(name: str) -> None:
    with pytest.raises(TypeError, match="real floating dtype"):
        BALLS[name](torch.ones(2, 2, dtype=torch.int32))


def test_bad_measurements() -> None:
    ball, m = lmo.Spectral(), torch.randn(4, 6)
    for exact in (True, False):
        with pytest.raises(ValueError, match=r"ascent direction.*minus the polar factor"):
            measure(ball, m, METHOD(m), exact=exact)
    with pytest.raises(ValueError, match="d_hat has shape"):
        measure(ball, m, ball(m).mT)
    bad = ball(m)
    bad[0, 0] = torch.nan
    with pytest.raises(ValueError, match="d_hat has 1 entries that are not finite"):
        measure(ball, m, bad)
    with pytest.raises(ValueError, match="m is empty"):
        measure(ball, torch.zeros(0, 3), torch.zeros(0, 3))
