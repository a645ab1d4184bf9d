"""`cheapest` is good enough, the cheapest of what is, and the same everywhere."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adversary import Case
from inexact_muon import lmo, measure, polar, predict
from inexact_muon.polar.choice import _candidates, _ordered, choose
from inexact_muon.polar.rounding import reached
from inexact_muon.schedules.prices import ACCELERATOR, CPU, Costs, at
from inexact_muon_lab.plan import pricing
from matrices import matrix, orthonormal
from tiers import at_length

SIDES = (16, 64, 128, 256, 384, 768, 2048)


@pytest.mark.parametrize("n", SIDES)
@pytest.mark.parametrize("aspect", [1, 4])
@pytest.mark.parametrize(("delta", "lower"), [(0.065, 1e-3), (0.3, 1e-2), (0.01, 1e-2), (0.5, 1e-4)])
def test_good_enough_and_cheapest(n: int, aspect: int, delta: float, lower: float) -> None:
    choice = choose(n, n * aspect, delta, lower)
    assert choice.method.error_bound(lower) <= delta
    for cost, other in _ordered(n, n * aspect, _candidates(lower, False, None), False, None, CPU):
        if cost < choice.cost:
            assert reached(other, n, n * aspect, lower, torch.float32) > delta
    assert polar.cheapest(n * aspect, n, delta, lower) == choice.method, "orientation does not matter"


@settings(max_examples=25)
@given(st.sampled_from(SIDES), st.sampled_from([1e-2, 1e-3]), st.floats(0.02, 0.5), st.floats(1.0, 3.0))
def test_asking_for_more_costs_no_less(n: int, lower: float, delta: float, more: float) -> None:
    assert choose(n, n, delta / more, lower).cost >= choose(n, n, delta, lower).cost


def spread(n: int, lower: float, kind: str, generator: np.random.Generator) -> np.ndarray:
    """n singular values, the largest 1 and the smallest `lower` times their Schatten-4 norm, the normaliser."""
    place = {"log-uniform": np.linspace(0.0, 1.0, n), "one small": np.arange(n) == n - 1}.get(kind)
    place = np.sort(generator.random(n)) if place is None else place.astype(float)
    place[0], place[-1] = 0.0, 1.0
    smallest = lower
    for _ in range(50):
        s = min(smallest, 1.0) ** place
        smallest = lower * 1.00001 * float((s**4).sum()) ** 0.25
    return s


def keeps_its_promise(seed: int, count: int) -> tuple[int, int]:
    """(kept, refused) of random wishes in float32; a promise that is broken is an AssertionError."""
    generator, kept, refused = np.random.default_rng(seed), 0, 0
    for _ in range(count):
        n, aspect = int(generator.integers(2, 100)), float(generator.choice([1.0, 1.2, 1.55, 2.0, 4.0]))
        shape = (n, int(n * aspect)) if generator.random() < 0.5 else (int(n * aspect), n)
        delta, lower = 10 ** generator.uniform(-5, -0.2), float(generator.choice([1e-5, 1e-4, 3e-4, 1e-3, 1e-2, 0.1]))
        try:
            method = polar.cheapest(*shape, delta, lower)
        except ValueError:
            refused += 1
            continue
        s = spread(n, lower, str(generator.choice(["log-uniform", "random", "one small"])), generator)
        u, v = orthonormal(shape[0], n, seed), orthonormal(shape[1], n, seed + 1)
        m = ((u * torch.from_numpy(s)) @ v.mT).float()
        error = float(lmo.Spectral().distance(m, -method(m)))
        assert error <= delta * (1 + 1e-6) + 1e-6, (str(method), shape, delta, lower, error)
        kept += 1
    return kept, refused


def test_the_promise_includes_rounding() -> None:
    kept, refused = keeps_its_promise(0, 60)
    assert min(kept, refused) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", at_length([1, 2], *range(3, 11)))
def test_the_promise_includes_rounding_at_length(seed: int) -> None:
    assert keeps_its_promise(seed, 60)[0] >= 30


@pytest.mark.parametrize(("shape", "delta", "lower"), [((59, 91), 1e-5, 1e-3), ((40, 160), 1e-3, 1e-4)])
def test_what_cannot_be_reached_is_refused_with_what_can(shape: tuple[int, int], delta: float, lower: float) -> None:
    with pytest.raises(ValueError, match=r"in float32 with its rounding: .* reaches .*; increase delta") as caught:
        polar.cheapest(*shape, delta, lower)
    words = str(caught.value).partition(" reaches ")[2]
    can = float(words.partition(" reaches ")[2].partition(";")[0])
    assert polar.cheapest(*shape, can * 1.05, lower).error_bound(lower) <= can * 1.05
    assert polar.cheapest(*shape, delta, lower, dtype=torch.float64).dtype == torch.float64


SHAPES = ((16, 16), (64, 64), (64, 256), (256, 256), (768, 768), (768, 3072))


def test_the_default_choices_are_what_they_were() -> None:
    """For spread spectra, which `auto` expects."""
    polished, three = "zolotarev(poles=1, polish=9)", "zolotarev(poles=3)"
    expected = ["cans(steps=4, degree=(5, 9, 9, 9))"] * 2 + [polished] * 2 + [three] * 2
    assert [str(polar.cheapest(n, m, spread=True)) for n, m in SHAPES] == expected
    assert [str(polar.Auto().at(n, m)) for n, m in SHAPES] == expected


@pytest.mark.parametrize("shape", [(100, 100), (128, 128), (90, 300)])
@pytest.mark.parametrize(("delta", "lower"), [(0.065, 1e-3), (0.05, 1e-3), (0.15, 3e-3), (2e-3, 1e-2), (0.02, 1e-4)])
def test_one_large_value_and_the_others_at_lower(shape: tuple[int, int], delta: float, lower: float) -> None:
    """It determines the rounding error of a Gram matrix, which a rational function then divides by its shifts."""
    method = polar.cheapest(*shape, delta, lower)
    for seed, basis in enumerate(("haar", "last rows", "first rows", "last rows")):
        case = Case(*shape, ((0.0, 1), (float(np.log10(lower * 1.0001)), 1)), False, basis, 4 + 3 * seed)
        m = case.matrix().float()
        assert float(lmo.Spectral().distance(m, -method(m))) <= delta, (str(method), basis)


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
    assert on_gpu.method.dtype == torch.float16
    assert polar.cheapest(64, 64, dtype=torch.float64).dtype == torch.float64
    assert ACCELERATOR.of(polar.Zolotarev(2), 64, 64) == float("inf")
    assert CPU.of(polar.ExactSVD(), 64, 64) > CPU.of(polar.PolarExpress(8), 64, 64)


@pytest.mark.parametrize("capability", pricing.PUBLISHED)
def test_the_choice_on_an_accelerator_need_not_know_of_the_kernel(capability: tuple[int, int]) -> None:
    """With symmetric products at their published speeds it is within 6 % of the cheapest."""
    curve = tuple((n, 1.0 / max(1.0, pricing.speed(n, capability))) for n in (64, 512, 1024, 2048, 4096, 8192))
    priced = replace(ACCELERATOR, curves={**ACCELERATOR.curves, "symmetric": curve})
    for n in (768, 1024, 2048, 4096, 8192):
        for aspect in (1, 1.4, 1.6, 2, 3.5, 4):
            m = int(n * aspect)
            cheapest = choose(n, m, device="cuda", costs=priced).cost
            assert priced.of(choose(n, m, device="cuda").method, n, m) <= 1.06 * cheapest, (n, m)


def test_cost_counts_what_the_methods_do() -> None:
    """With symmetric products at full price and inverses at half a product the cost is the flops."""
    kinds = {"product": 1.0, "symmetric": 1.0, "inverse": 0.5, "decomposition": 1.0}
    plain = Costs("cpu", {"float32": 1.0, "float64": 1.0}, {kind: ((1, cost),) for kind, cost in kinds.items()})
    polished = polar.Zolotarev(1, polish=9)
    many = (polar.Cans(5), polar.PolarExpress(8), polar.Zolotarev(3), polar.Zolotarev(8), polished, polar.ExactSVD())
    for method in (*many, polar.Auto()):
        for n, m in ((64, 64), (64, 90), (64, 256)):
            assert plain.of(method, n, m) == pytest.approx(method.flops(n, m) / (2 * n**3))


def test_curves() -> None:
    curve = ((10, 4.0), (1000, 2.0))
    assert [at(curve, n) for n in (1, 10, 100, 1000, 5000)] == pytest.approx([4.0, 4.0, 3.0, 2.0, 2.0])


def test_calibration_is_explicit_and_usable() -> None:
    before = str(polar.cheapest(96, 96))
    costs = polar.calibrate(sides=(32, 96), repeats=2)
    assert [n for n, _ in costs.curves["inverse"]] == [32, 96]
    assert all(cost > 0 for curve in costs.curves.values() for _, cost in curve)
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
