"""The estimate: delta within 10% (while delta <= 0.9), gap within 0.02, at a twentieth of the oracle's work."""

import numpy as np
import pytest
import torch

from adversary import Case
from inexact_muon import lmo, measure, polar
from inexact_muon.inexactness.estimate import PLANS, SHARE, choose_plan, lanczos
from matrices import SPECTRA, matrix, orthonormal

ORACLES = {
    str(method): method
    for method in (
        polar.PolarExpress(5),
        polar.PolarExpress(6),
        polar.PolarExpress(8),
        polar.PolarExpress(5, normalise="frobenius"),
        polar.Jordan(5),
        polar.You(5),
        polar.You(6),
        polar.Cesista(5),
        polar.Cans(5),
        polar.Zolotarev(2),
        polar.Zolotarev(3),
        polar.Zolotarev(4, lower=1e-4),
        polar.NewtonSchulz(12),
    )
}
"""Oracles of design error up to about one third. Cruder ones: see test_crude_oracles."""


def check(method: polar.PolarMethod, n: int, m: int, spectrum: str, seed: int = 7) -> None:
    a = matrix(n, m, spectrum, seed=seed, dtype=torch.float32)
    ball = lmo.Spectral(polar=method)
    d_hat = ball(a)
    exact, estimate = measure(ball, a, d_hat, exact=True), measure(ball, a, d_hat)
    what = (str(method), (n, m), spectrum, exact, estimate)
    if exact.delta <= 0.9:
        assert estimate.delta == pytest.approx(exact.delta, rel=0.1, abs=1e-3), what  # abs: rounding in float32
    else:
        assert estimate.delta > 0.75, what
    assert estimate.gap == pytest.approx(exact.gap, abs=0.02), what
    assert estimate.overshoot == pytest.approx(exact.overshoot, rel=0.03), what


@pytest.mark.parametrize("name", ORACLES)
@pytest.mark.parametrize(("n", "m"), [(64, 64), (64, 200), (160, 160)])
def test_accuracy(name: str, n: int, m: int) -> None:
    for spectrum in SPECTRA:
        check(ORACLES[name], n, m, spectrum)


THREE = ("polar-express(steps=5)", "jordan(steps=5)", "zolotarev(poles=3)")
"""A composition, one that does not converge, and one with factorisations."""


@pytest.mark.slow
@pytest.mark.parametrize("name", THREE)
@pytest.mark.parametrize("shape", [(200, 600), (512, 512)], ids=str)
def test_accuracy_at_real_sizes(name: str, shape: tuple[int, int]) -> None:
    """The others, which test_accuracy has at side 160, are left to `make test-long`."""
    for spectrum in SPECTRA:
        check(ORACLES[name], *shape, spectrum)


@pytest.mark.long
@pytest.mark.parametrize("name", ORACLES)
@pytest.mark.parametrize("shape", [(200, 600), (256, 256), (512, 512), (768, 512), (512, 2048), (1024, 1024)], ids=str)
def test_accuracy_of_all_oracles_at_large_sizes(name: str, shape: tuple[int, int]) -> None:
    for spectrum in SPECTRA:
        check(ORACLES[name], *shape, spectrum)


def hard(kind: str, n: int, seed: int) -> np.ndarray:
    """Singular values that repeat, or of which many are zero."""
    generator = np.random.default_rng(seed)
    values = 10 ** generator.uniform(-3, 0, generator.integers(2, 12) if kind == "repeated" else n)
    s = np.sort(generator.choice(values, n) if kind == "repeated" else values)[::-1].copy()
    s[0] = 1.0
    if kind == "deficient":
        s[generator.integers(2, n) :] = 0.0
    return s


def check_hard(kind: str, seed: int, sides: tuple[int, ...] = (140, 160, 256)) -> None:
    n = sides[seed % len(sides)]
    m = n + n // 2 * (seed % 2)
    u, v = orthonormal(n, n, seed), orthonormal(m, n, seed + 1)
    a = ((u * torch.from_numpy(hard(kind, n, seed))) @ v.mT).float()
    method = list(ORACLES.values())[seed % len(ORACLES)]
    ball = lmo.Spectral(polar=method)
    d_hat = ball(a)
    exact, found = measure(ball, a, d_hat, exact=True), measure(ball, a, d_hat)
    assert found.gap == pytest.approx(exact.gap, abs=0.02), (str(method), n, m, exact, found)
    if exact.delta <= 0.9:
        assert found.delta == pytest.approx(exact.delta, rel=0.1, abs=1e-3), (str(method), n, m, exact, found)


@pytest.mark.parametrize("kind", ["repeated", "deficient"])
def test_repeated_and_missing_singular_values(kind: str) -> None:
    for seed in range(13):
        check_hard(kind, seed)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["repeated", "deficient"])
def test_repeated_and_missing_singular_values_at_length(kind: str) -> None:
    for seed in range(13, 130):
        check_hard(kind, seed, (140, 200, 256, 384))


FEW = {
    "one small": ((0.0, -1), (-2.2, 1)),
    "three small": ((0.0, -1), (-2.5, 3)),
    "one large": ((0.0, 1), (-2.2, -1)),
    "two large, one small": ((0.0, 2), (-1.0, -1), (-2.6, 1)),
}
"""Levels (log10 of a singular value, how many; -1: all others): few values away from a flat bulk."""


@pytest.mark.parametrize("name", ORACLES)
@pytest.mark.parametrize("levels", FEW)
def test_few_values_away_from_a_flat_bulk(name: str, levels: str) -> None:
    n, m = 200, 240
    rest = n - sum(count for _, count in FEW[levels] if count > 0)
    s = np.concatenate([np.full(count if count > 0 else rest, 10.0**level) for level, count in FEW[levels]])
    ball = lmo.Spectral(polar=ORACLES[name])
    a = ((orthonormal(n, n, 3) * torch.from_numpy(s)) @ orthonormal(m, n, 4).mT).float()
    exact, found = measure(ball, a, ball(a), exact=True), measure(ball, a, ball(a))
    if exact.delta <= 0.9:
        assert found.delta == pytest.approx(exact.delta, rel=0.1, abs=1e-3)
    assert found.gap == pytest.approx(exact.gap, abs=0.02)


SEARCHED = (
    Case(512, 512, ((0.0, 2), (-0.595, 3), (-1.047, 32), (-1.698, 475)), False, "first rows", 123027473),
    Case(512, 512, ((0.0, 2), (-0.646, 3), (-1.047, 32), (-1.741, 475)), False, "equal entries", 442215119),
    Case(512, 512, ((0.0, 32), (-1.9551, 256), (-2.4542, 224)), True, "haar", 975724011),
)
"""Matrices that the adversarial search came upon."""


@pytest.mark.parametrize("poles", [2, 3])
@pytest.mark.parametrize("case", SEARCHED, ids=lambda case: case.basis)
def test_few_probes_on_several_levels(case: Case, poles: int) -> None:
    """A rational oracle of this size leaves time for one probe in a twentieth of its work, whose error is unknown."""
    ball, a = lmo.Spectral(polar=polar.Zolotarev(poles)), case.matrix().float()
    exact, found = measure(ball, a, ball(a), exact=True), measure(ball, a, ball(a))
    assert found.gap == pytest.approx(exact.gap, abs=0.04)
    assert found.delta == pytest.approx(exact.delta, rel=0.1, abs=1e-3)


def turned(s: np.ndarray) -> float:
    """How far rounding in float32 may turn singular vectors, which estimates assume to be those of m: ||E||/sigma_min
    for errors E of sqrt(n) eps ||M||, in the Schatten-4 norm by which M is divided."""
    return float(torch.finfo(torch.float32).eps * len(s) ** 0.5 * (s**4).sum() ** 0.25 / s.min())


def test_what_rounding_turns_is_not_seen() -> None:
    """Nearly all singular values at a small level, also from the adversarial search: the error there is rounding."""
    case = Case(512, 1024, ((0.0, 32), (-2.71, 32), (-2.8866, 448)), False, "first rows", 385130438)
    ball, a = lmo.Spectral(polar=polar.PolarExpress(8)), case.matrix().float()
    d_hat = ball(a)
    exact, found = measure(ball, a, d_hat, exact=True), measure(ball, a, d_hat)
    assert float((1.0 - torch.linalg.svdvals(d_hat.double())).abs().max()) == pytest.approx(found.delta, abs=1e-5)
    assert 1e-3 < exact.delta <= found.delta + turned(case.values())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_other_dtypes(dtype: torch.dtype) -> None:
    """In half precision delta may count directions beyond the rank threshold, never others."""
    ball = lmo.Spectral()
    for spectrum in SPECTRA:
        a = matrix(160, 200, spectrum, seed=7, dtype=dtype)
        d_hat = ball(a)
        exact, estimate = measure(ball, a, d_hat, exact=True), measure(ball, a, d_hat)
        wide = torch.promote_types(dtype, torch.float32)
        no_threshold = measure(ball, a.to(wide), d_hat.to(wide), exact=True)
        if exact.delta <= 0.9:
            assert 0.9 * exact.delta - 5e-3 <= estimate.delta <= 1.1 * no_threshold.delta + 5e-3, spectrum
        assert estimate.gap == pytest.approx(exact.gap, abs=0.02), spectrum


@pytest.mark.parametrize(("steps", "tolerance"), [(1, 0.1), (2, 0.05), (3, 0.05), (4, 0.03)])
def test_crude_oracles(steps: int, tolerance: float) -> None:
    """Their own singular values span decades, so noise and bias grow with their error."""
    ball = lmo.Spectral(polar=polar.PolarExpress(steps))
    for spectrum in SPECTRA:
        a = matrix(160, 160, spectrum, seed=7, dtype=torch.float32)
        d_hat = ball(a)
        exact, estimate = measure(ball, a, d_hat, exact=True), measure(ball, a, d_hat)
        assert estimate.gap == pytest.approx(exact.gap, abs=tolerance), spectrum
        assert estimate.delta == pytest.approx(exact.delta, rel=0.15), spectrum


@pytest.mark.parametrize("name", ORACLES)
@pytest.mark.parametrize("aspect", [1, 4])
@pytest.mark.parametrize("n", [512, 1024, 4096])
def test_cost(name: str, aspect: int, n: int) -> None:
    method = ORACLES[name]
    oracle = method.flops(n, aspect * n)
    plan = choose_plan(n, aspect * n, oracle)
    share = plan.flops(n, aspect * n) / oracle
    assert share <= SHARE or (plan == PLANS[-1] and share <= (0.12 if aspect == 1 else 0.16) * 512 / n), f"{share:.1%}"


def test_the_products_are_counted() -> None:
    """Plan.flops against torch's own count, up to the small matrices."""
    from torch.utils.flop_counter import FlopCounterMode

    a = matrix(512, 768, "power-law", seed=1, dtype=torch.float32)
    ball = lmo.Spectral(polar=polar.PolarExpress(5))
    d_hat = ball(a)
    with FlopCounterMode(display=False) as counter:
        measure(ball, a, d_hat)
    plan = choose_plan(512, 768, ball.polar.flops(512, 768))
    assert counter.get_total_flops() <= 1.25 * plan.flops(512, 768)


def test_repeats_to_the_bit() -> None:
    a = matrix(160, 160, "gaussian", seed=1, dtype=torch.float32)
    ball = lmo.Spectral()
    assert measure(ball, a, ball(a)) == measure(ball, a, ball(a))


def test_scale_and_batch_do_not_matter() -> None:
    a = matrix(160, 200, "power-law", seed=1, dtype=torch.float32)
    ball = lmo.Spectral()
    one = measure(ball, a, ball(a))
    assert measure(ball, a * 2.0**60, ball(a)) == one
    batch = torch.stack((a, matrix(160, 200, "gaussian", seed=2, dtype=torch.float32)))
    both = measure(ball, batch, ball(batch))
    assert float(both.gap[0]) == pytest.approx(one.gap, abs=1e-4)
    assert float(both.delta[0]) == pytest.approx(one.delta, rel=1e-3)


def test_never_high_on_foreign_singular_vectors() -> None:
    """A perturbed answer has other singular vectors than m: the estimate is low, as documented."""
    a = matrix(160, 160, "gaussian", seed=1)
    ball = lmo.Perturbed(lmo.Spectral(), delta=0.3)
    d_hat = ball(a)
    assert measure(lmo.Spectral(), a, d_hat).delta <= 0.3 + 1e-6
    assert measure(ball, a, d_hat).delta == pytest.approx(0.3, abs=1e-9)


def test_lanczos_is_exact_when_the_space_is_full() -> None:
    a = matrix(8, 8, "power-law", seed=1)
    a = a @ a.mT
    space = lanczos(lambda q: q @ a, torch.ones(1, 1, 8, dtype=a.dtype), 8)
    torch.testing.assert_close(space.ritz[0, 0], torch.linalg.eigvalsh(a))
    gram = space.basis[0, 0] @ space.basis[0, 0].mT
    torch.testing.assert_close(gram, torch.eye(8, dtype=a.dtype))
    start = torch.ones(1, 1, 8, dtype=a.dtype)
    u, s, _ = torch.linalg.svd(matrix(8, 8, "gaussian", seed=1))
    b = (u * s**2) @ u.mT
    root = lanczos(lambda q: q @ b, start, 8).inverse_root(start)
    torch.testing.assert_close(root, start @ (u / s) @ u.mT)


def test_lanczos_stops_when_the_space_is_exhausted() -> None:
    identity = torch.eye(6, dtype=torch.float64)
    space = lanczos(lambda q: 2.0 * q @ identity, torch.ones(1, 2, 6, dtype=torch.float64), 5)
    assert space.live.sum(-1).tolist() == [[1, 1]]
    torch.testing.assert_close(space.ritz[space.live], torch.full((2,), 2.0, dtype=torch.float64))
