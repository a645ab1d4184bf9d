"""Adversarial search: for every method, dtype and normaliser, for `cheapest`, `measure` and every bound the worst
spectrum is searched, and the ratio of error to promise there is at most 1.

In `make fuzz` each of the 550 searches has a quarter as many evaluations as a fuzzer has examples, and the worst ratios
are printed at the end.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from adversary import Case, search
from cases import POLARS
from fuzzing import EXAMPLES, TALLY, worst
from inexact_muon import lmo, measure, polar
from inexact_muon.polar import PolarMethod
from inexact_muon.polar.exact import Decomposed
from inexact_muon.schedules.judgement import NORMALISERS
from inexact_muon.testing import allowed_error
from test_estimate import ORACLES, turned

SIDES = (3, 8, 24) if not EXAMPLES else (3, 8, 24, 64, 130)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """That of `make fuzz`, which it prints; 0 in the fast tier."""
    return int(request.config.getoption("--hypothesis-seed") or 0) if EXAMPLES else 0


def variants(method: PolarMethod) -> list[PolarMethod]:
    """The method in each of its dtypes with each normaliser."""
    if isinstance(method, Decomposed):
        return [replace(method, dtype=dtype) for dtype in method.dtypes]
    return [replace(method, dtype=dtype, normalise=norm) for dtype in method.dtypes for norm in NORMALISERS]


def searched(what: str, ratio: object, short: int, *arguments: object, **more: object) -> None:
    """Search, count and remember; a promise that is broken is an AssertionError with the case."""
    evaluations = max(12, EXAMPLES // 4) if EXAMPLES else short
    found, case = search(ratio, evaluations, *arguments, **more)  # type: ignore[arg-type]
    TALLY["spectra"] += evaluations
    worst(what, evaluations, found)
    assert found <= 1.0, (what, found, case)


def error(method: PolarMethod, m: torch.Tensor) -> float:
    """delta, or infinity if the answer is not finite."""
    x = method(m)
    return float(lmo.Spectral().distance(m, -x)) if bool(x.isfinite().all()) else float("inf")


def of_the_check(s: torch.Tensor) -> float:
    """Error of `distance` itself: its SVD in float64 is exact for M + E with ||E|| of about n eps ||M||, and the polar
    factor moves by 2 ||E||/(s_n + s_(n-1)), at most ||E||/s_n. In float64 a sharp bound is reached to that many digits.
    """
    return len(s) * torch.finfo(torch.float64).eps * float(s[0] / s[-1])


@pytest.mark.parametrize("name", POLARS)
def test_the_bound_of_a_method(name: str, seed: int) -> None:
    for method in variants(POLARS[name]):
        eps = torch.finfo(method.dtype).eps
        least = eps if torch.finfo(method.dtype).bits < 32 else 0.0  # below it half precision promises nothing

        def ratio(case: Case, method: PolarMethod = method, least: float = least) -> float:
            m = case.matrix(np.maximum(case.values(), least)).to(method.dtype)
            s = torch.linalg.svdvals(m.double())
            if float(s[-1]) < least * float(s[0]):  # by rounding m itself
                return 0.0
            return error(method, m) / (allowed_error(method, m) + of_the_check(s))

        searched(f"bound of {method.name}, {str(method.dtype).removeprefix('torch.')}", ratio, 5, seed, SIDES)


WISHES = [(delta, lower) for lower in (1e-4, 1e-3, 1e-2, 0.1) for delta in (3e-3, 0.02, 0.065, 0.3)]


def within(case: Case, lower: float) -> torch.Tensor:
    """The matrix of a case, its small singular values raised to `lower` times their Schatten-4 norm."""
    s = case.values()
    for _ in range(60):
        s = np.maximum(s, lower * 1.0001 * float((s**4).sum()) ** 0.25)
    return case.matrix(s)


@pytest.mark.parametrize(("delta", "lower"), WISHES)
def test_cheapest(delta: float, lower: float, seed: int) -> None:
    def ratio(case: Case) -> float:
        if lower * case.n**0.25 > 0.9:
            return 0.0
        try:
            method = polar.cheapest(case.n, case.m, delta, lower)
        except ValueError:  # it says that it cannot
            return 0.0
        return error(method, within(case, lower).float()) / (delta + 1e-6)

    searched("cheapest", ratio, 20, seed, SIDES, depth=-np.log10(lower))


@pytest.mark.parametrize("name", ORACLES)
def test_measure(name: str, seed: int) -> None:
    ball = lmo.Spectral(polar=ORACLES[name])

    def ratio(case: Case) -> float:
        m = case.matrix().float()
        d_hat = ball(m)
        exact, found = measure(ball, m, d_hat, exact=True), measure(ball, m, d_hat)
        tolerance = 0.1 * exact.delta + max(1e-3, turned(case.values()))
        delta = abs(found.delta - exact.delta) / tolerance if exact.delta <= 0.9 else 0.0
        return max(delta, abs(found.gap - exact.gap) / (0.02 if case.n < 512 else 0.04))

    searched("measure", ratio, 3, seed, (140, 200) if not EXAMPLES else (140, 200, 260, 512), depth=3.2)


def designs(generator: np.random.Generator) -> PolarMethod:
    """A random design of a family with free parameters."""
    lower, power = 10.0 ** generator.uniform(-5.0, -0.1), float(generator.uniform(-0.5, 0.5))
    tilt = power if generator.random() < 0.6 else 0.0
    kind, degree = generator.integers(4), int(generator.choice([3, 5, 7, 9]))
    if kind == 0:
        return polar.Cans(int(generator.integers(1, 9)), lower, degree)
    if kind == 1:
        return polar.PolarExpress(int(generator.integers(1, 9)), lower, degree, power=tilt)
    if kind == 2:
        return polar.Zolotarev(1, lower, polish=degree)
    return polar.Zolotarev(int(generator.integers(1, 9)), lower, power=tilt)


def test_error_bounds_of_any_design(seed: int) -> None:
    """Against a dense grid, also far below `lower`."""
    generator = np.random.default_rng(seed)
    for _ in range(EXAMPLES or 12):
        method = designs(generator)
        for lower in (1.0, 0.1, 1e-3):
            end = min(1.0, method.map.lower * lower)
            grid = np.concatenate((np.geomspace(end, 1.0, 20_000), np.linspace(end, 1.0, 20_000)))
            found = float(np.abs(1.0 - method.scalar(grid)).max()) / (method.error_bound(end) + 1e-9)
            TALLY["bounds"] += 1
            worst("error_bound", 1, found)
            assert found <= 1.0 + 1e-9, (str(method), end)
