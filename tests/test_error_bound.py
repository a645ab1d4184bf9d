"""error_bound is the maximum of |1 - scalar| and behaves as an error should."""

import itertools

import numpy as np
import pytest

from cases import POLARS
from inexact_muon import polar
from inexact_muon.schedules import Schedule

LOWERS = (1.0, 0.3, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)


@pytest.mark.parametrize("name", POLARS)
@pytest.mark.parametrize("lower", LOWERS)
def test_equals_the_maximum_over_a_dense_grid(name: str, lower: float) -> None:
    method = POLARS[name]
    grid = np.concatenate((np.geomspace(lower, 1.0, 200_001), np.linspace(lower, 1.0, 200_001)))
    measured = np.abs(1.0 - method.scalar(grid)).max()
    assert method.error_bound(lower) == pytest.approx(measured, abs=1e-6)
    assert method.error_bound(lower) >= measured - 1e-12


@pytest.mark.parametrize("name", POLARS)
def test_grows_as_lower_falls(name: str) -> None:
    bounds = [POLARS[name].error_bound(lower) for lower in LOWERS]
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(bounds))


FAMILIES = {
    "newton-schulz-3": lambda k: polar.NewtonSchulz(k, degree=3),
    "newton-schulz-5": lambda k: polar.NewtonSchulz(k),
    "newton-schulz-9": lambda k: polar.NewtonSchulz(k, degree=9),
    "polar-express": polar.PolarExpress,
    "polar-express-cubic": lambda k: polar.PolarExpress(k, degree=3),
    "polar-express-7": lambda k: polar.PolarExpress(k, degree=7),
    "polar-express-9": lambda k: polar.PolarExpress(k, degree=9),
    "polar-express-safe": lambda k: polar.PolarExpress(k, safety=1.05, cushion=0.1),
    "polar-express-1e-5": lambda k: polar.PolarExpress(k, lower=1e-5),
    "cans": polar.Cans,
    "cans-9": lambda k: polar.Cans(k, degree=9),
    "zolotarev": polar.Zolotarev,
    "zolotarev-1e-5": lambda k: polar.Zolotarev(k, lower=1e-5),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_never_rises_with_more_steps(family: str) -> None:
    make = FAMILIES[family]
    lower = make(1).map.lower or 1e-3
    counts = range(1, 9) if "zolotarev" in family else range(1, 13)
    bounds = [make(k).error_bound(lower) for k in counts]
    assert all(b <= a + 1e-14 for a, b in itertools.pairwise(bounds)), bounds
    assert bounds[-1] < bounds[0]


def test_published_lists_improve() -> None:
    assert polar.You(6).error_bound(1e-3) < polar.You(5).error_bound(1e-3)


def test_jordan_has_a_plateau() -> None:
    """2.2 of the digest: never closer than 0.3182, however many steps."""
    for steps in (5, 8, 20):
        assert polar.Jordan(steps).error_bound(0.1) == pytest.approx(0.3182, abs=1e-4)


@pytest.mark.parametrize("steps", range(1, 9))
def test_no_composition_of_its_degrees_beats_cans(steps: int) -> None:
    best = polar.Cans(steps).error_bound(1e-3)
    for other in (polar.PolarExpress(steps), polar.NewtonSchulz(steps), polar.Jordan(steps)):
        assert best <= other.error_bound(1e-3) + 1e-14


@pytest.mark.parametrize("steps", range(1, 9))
def test_below_lower_the_map_is_concave_enough(steps: int) -> None:
    """(sigma/l)(1-delta) <= p(sigma) <= 1-delta for sigma <= l: a too large lower degrades gracefully."""
    method = polar.Cans(steps)
    delta = method.error_bound(1e-3)
    s = np.geomspace(1e-8, 1e-3, 400)
    p = method.scalar(s)
    assert (p <= 1 - delta + 1e-12).all()
    assert (p >= s / 1e-3 * (1 - delta) - 1e-12).all()


@pytest.mark.parametrize("name", [n for n, m in POLARS.items() if isinstance(m.map, Schedule)])
def test_slope_and_ends(name: str) -> None:
    schedule = POLARS[name].map
    assert isinstance(schedule, Schedule)
    assert schedule.slope == pytest.approx(schedule.scalar([1e-12])[0] / 1e-12, rel=1e-6)
    grid, x = np.linspace(0, 1, 20_001), None
    x = grid
    for t, step in enumerate(schedule.coefficients):
        assert np.abs(x).max() <= schedule.ends[t] + 1e-9
        x = Schedule(0.0, "one step", (step,)).scalar(x)


TILTED = [
    *((3, 1e-3, -0.5), (1, 0.1, -0.5), (2, 1e-2, -0.3), (4, 1e-5, 0.4), (1, 0.6, -0.5)),
    *((2, 0.9, -0.5), (3, 0.9, 0.2), (4, 0.6, -0.1), (5, 0.3, 0.5), (8, 0.1, -0.5), (8, 0.9, 0.3), (7, 0.3, -0.01)),
]
"""Poles, lower, power: far too few poles, and so many that the error is below rounding."""


@pytest.mark.parametrize(("poles", "lower", "power"), TILTED)
def test_tilted_bounds_hold_below_lower(poles: int, lower: float, power: float) -> None:
    method = polar.Zolotarev(poles, lower, power=power)
    for end in (lower, 0.1 * lower, 1e-2 * lower, 1e-4 * lower):
        measured = np.abs(1.0 - method.scalar(np.geomspace(end, 1.0, 100_001))).max()
        assert method.error_bound(end) == pytest.approx(measured, rel=1e-6, abs=1e-9)
    grid = np.geomspace(lower, 1.0, 10_001)
    error = np.abs(method.scalar(grid) / grid**power - 1.0).max()
    assert error <= 1.1 * polar.Zolotarev(poles, lower).error_bound(lower) + 1e-6, "as good as without a tilt"


def test_safety_is_for_values_above_one() -> None:
    """2.6 of the digest: six steps stay near 1 up to 1.000005 without a safety factor, 1.0109 with 1.01."""
    assert abs(polar.PolarExpress(6, safety=1.0).scalar([1.0001])[0]) > 2.0
    assert polar.PolarExpress(6).scalar([1.009])[0] == pytest.approx(1.0, abs=0.01)
