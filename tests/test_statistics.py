"""Simulated studies of known truth: wrong verdicts are as rare as declared, widths and powers are as announced."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import log, log2

import numpy as np
import pytest
from scipy import stats

from inexact_muon_lab.statistics import (
    ALPHA,
    CONFIRMED,
    FALSE,
    LEVEL,
    OPEN,
    REFUTED,
    TRUE,
    UNDECIDED,
    Interval,
    PValues,
    all_of,
    any_of,
    extended,
    holm,
    interval,
    known_value,
    negate,
    optimum,
    paired,
    seeds_needed,
)
from pages import ROOT, load_module

REPEATS = 1000
NOISE = 0.008
"""Spread of a paired loss difference at tiny size; a seed's own loss varies by more, which pairing removes."""
Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
NOISES: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "heavy tails": lambda rng, shape: rng.standard_t(5, shape) / (5 / 3) ** 0.5,
}


def lower_limit(wrong: int, repeats: int = REPEATS) -> float:
    """The 99 % lower limit of a rate (Clopper and Pearson)."""
    return float(stats.beta.ppf(0.01, wrong, repeats - wrong + 1)) if wrong else 0.0


def studies(truth: float, seeds: int, noise: Draw, repeats: int = REPEATS) -> Iterable[dict[int, float]]:
    """Differences by seed between two arms that share each seed's own luck."""
    rng = np.random.default_rng([abs(round(1e6 * truth)), seeds])
    common = 0.05 * rng.standard_normal((repeats, seeds))
    arms = common[:, None] + NOISE / 2**0.5 * noise(rng, (repeats, 2, seeds))
    arms[:, 0] += truth
    for first, second in arms:
        yield paired(dict(enumerate(first.tolist())), dict(enumerate(second.tolist())))


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("seeds", [3, 6, 10])
@pytest.mark.parametrize(("truth", "wrong"), [(0.0, (CONFIRMED, REFUTED)), (NOISE, (REFUTED,)), (-NOISE, (CONFIRMED,))])
def test_superiority(truth: float, wrong: tuple[str, ...], seeds: int, noise: str) -> None:
    found = [interval(study).above().verdict() for study in studies(truth, seeds, NOISES[noise])]
    assert lower_limit(sum(verdict in wrong for verdict in found)) <= ALPHA
    if truth > 0 and seeds == 10:
        assert found.count(CONFIRMED) > 0.7 * REPEATS


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("seeds", [3, 6, 10])
@pytest.mark.parametrize(("share", "wrong"), [(1.0, CONFIRMED), (1.5, CONFIRMED), (0.0, REFUTED)])
def test_no_worse(share: float, wrong: str, seeds: int, noise: str) -> None:
    """At the margin and above it "no worse" is wrong; below it "worse" is."""
    margin = 2 * NOISE
    found = [interval(study).no_worse(margin).verdict() for study in studies(share * margin, seeds, NOISES[noise])]
    assert lower_limit(found.count(wrong)) <= ALPHA
    if share == 0.0 and seeds == 10:
        assert found.count(CONFIRMED) > 0.9 * REPEATS


def test_no_worse_is_the_90_percent_interval_below_the_margin() -> None:
    for values in np.random.default_rng(0).normal(0.0, 1.0, (200, 6)):
        _, high = stats.t.interval(0.9, 5, loc=values.mean(), scale=stats.sem(values))
        found = interval(values.tolist())
        assert (found.no_worse(1.2).verdict() == CONFIRMED) == (high < 1.2)


def test_not_significant_is_not_no_worse() -> None:
    few = interval([-0.5, 0.9, 0.1])
    assert few.above().verdict() == UNDECIDED
    assert few.no_worse(0.1).verdict() == UNDECIDED


RATES, MOMENTA = [0.0125, 0.025, 0.05, 0.1, 0.2, 0.4], [0.5, 0.7, 0.85, 0.93]


def surface(lr: float, alpha: float) -> dict[tuple[float, float], float]:
    """A loss over the grid, steeper towards large step sizes, with its lowest point at (lr, alpha)."""
    made = {}
    for rate in RATES:
        for momentum in MOMENTA:
            x, y = log(rate / lr), log((1 - momentum) / alpha)
            made[rate, momentum] = 1.8 + 0.05 * (x * x + 0.2 * x**3 + 0.4 * x * y + 0.8 * y * y)
    return made


@pytest.mark.parametrize(
    ("ratio", "wrong"), [(1.0, (CONFIRMED, REFUTED)), (0.72, (REFUTED,)), (1 / 0.72, (CONFIRMED,))]
)
def test_optimum_shift(ratio: float, wrong: tuple[str, ...]) -> None:
    """Fitted by seed on grids with the noise of runs; the claim is that the crude oracle's optimum is lower."""
    rng, seeds = np.random.default_rng(1), 4
    arms = [surface(0.055 * ratio, 0.23 * ratio), surface(0.055, 0.23)]
    cells, losses = list(arms[0]), np.array([list(arm.values()) for arm in arms])
    found: dict[str, list[str]] = {"lr": [], "alpha": []}
    for study in losses + 0.006 * rng.standard_normal((REPEATS, seeds, *losses.shape)):
        pairs = [[optimum(dict(zip(cells, row, strict=True))) for row in seed.tolist()] for seed in study]
        for what, verdicts in found.items():
            shifts = [log2(getattr(crude, what) / getattr(fine, what)) for crude, fine in pairs]
            verdicts.append(interval(shifts).below().verdict())
    for verdicts in found.values():
        assert lower_limit(sum(verdict in wrong for verdict in verdicts)) <= ALPHA
        assert ratio >= 1.0 or verdicts.count(CONFIRMED) > 0.6 * REPEATS


@pytest.mark.parametrize("bodies", [1, 2])
@pytest.mark.parametrize("true", [0, 6, 14])
def test_a_family(true: int, bodies: int) -> None:
    """Any wrong verdict among 16 claims, of which some are true by much and all others lie on their threshold."""
    rng, seeds, claims = np.random.default_rng(true), 6, 16
    values = rng.standard_normal((REPEATS, claims, bodies, seeds))
    values[:, :true] += 4.0
    wrong = right = 0
    for study in values:
        members = {str(k): [interval(body.tolist()).above() for body in claim] for k, claim in enumerate(study)}
        verdicts = {name: {p.verdict() for p in parts} for name, parts in holm(members).items()}
        right += sum(CONFIRMED in verdicts[str(k)] for k in range(true))
        wrong += any(verdicts[str(k)] != {UNDECIDED} for k in range(true, claims)) or any(
            REFUTED in verdicts[str(k)] for k in range(true)
        )
    assert lower_limit(wrong) <= ALPHA
    assert right > 0.8 * true * REPEATS or not true


def test_a_family_of_claims_that_hold_in_one_study_and_not_in_others() -> None:
    """Any wrong verdict among 8 claims, each true by much in one of five studies and on its threshold in the others."""
    rng, seeds, claims, bodies = np.random.default_rng(3), 10, 8, 5
    values = rng.standard_normal((REPEATS, claims, bodies, seeds))
    values[:, :, 0] += 8.0
    wrong = right = 0
    for study in values:
        members = {str(k): [interval(body.tolist()).above() for body in claim] for k, claim in enumerate(study)}
        found = holm(members).values()
        right += sum(parts[0].verdict() == CONFIRMED for parts in found)
        wrong += any(p.verdict() != UNDECIDED for parts in found for p in parts[1:])
    assert lower_limit(wrong) <= ALPHA
    assert right == claims * REPEATS


def test_holm_by_hand() -> None:
    """p of .001, .01, .02 and .2 times 4, 3, 2 and 1; none below the one before."""
    ps = {"a": 0.01, "b": 0.001, "c": 0.014, "d": 0.2}
    found = holm({name: [PValues(p, 1.0 - p)] for name, p in ps.items()})
    assert {name: round(parts[0].confirm, 9) for name, parts in found.items()} == {
        "b": 0.004,
        "a": 0.03,
        "c": 0.03,
        "d": 0.2,
    }
    assert found["b"][0].verdict() == CONFIRMED
    assert holm({"one": [PValues(0.01, 0.99)]}, size=4)["one"][0].confirm == 0.04
    assert holm({"two": [PValues(0.01, 0.99), PValues(0.5, 0.5)]})["two"][0].confirm == 0.02
    found = holm({"two": [PValues(0.001, 0.999), PValues(0.02, 0.98)], "one": [PValues(0.008, 0.992)]})
    assert found["two"][0].confirm == pytest.approx(2 * 2 * 0.001), "half of the share of one of two claims"
    assert found["one"][0].confirm == pytest.approx(1.5 * 0.008), "half a share has been freed"
    assert found["two"][1].confirm == pytest.approx(2 * 0.5 * 0.02), "all but half a share"


@pytest.mark.parametrize("pilot", [6, 10])
@pytest.mark.parametrize("level", [LEVEL, LEVEL / 16])
def test_stein_reaches_its_width_at_its_level(pilot: int, level: float) -> None:
    """Half-width at most h in every repeat; the truth is outside as rarely as declared; the mean does not matter."""
    rng, h, outside, most = np.random.default_rng(pilot), 0.7 * NOISE, 0, 400
    for values in 1.0 + NOISE * rng.standard_normal((REPEATS, most)):
        first = interval(values[:pilot].tolist())
        n = seeds_needed(first.spread, pilot, h, level)
        moved = interval((values[:pilot] - 5.0).tolist())
        assert abs(n - seeds_needed(moved.spread, pilot, h, level)) <= 1  # rounding of the spread
        if n > most:
            continue
        found = interval(dict(enumerate(values[:n].tolist())), range(pilot))
        half = stats.t.ppf(1 - level, pilot - 1) * found.error
        assert half <= h * (1 + 1e-9)
        assert (found.freedom, found.n) == (pilot - 1, n)
        outside += abs(found.mean - 1.0) > half
    assert lower_limit(outside) <= 2 * level


@pytest.mark.parametrize(
    ("pilot", "level", "squared"), [(3, 0.025, 18.5), (5, 0.025, 7.7), (10, 0.025, 5.1), (10, 0.025 / 18, 16.6)]
)
def test_small_pilots_are_ruinous(pilot: int, level: float, squared: float) -> None:
    assert seeds_needed(1000.0, pilot, 1.0, level) == pytest.approx(1e6 * squared, rel=0.01)
    assert seeds_needed(0.0, pilot, 1.0, level) == pilot


@pytest.mark.parametrize(("pilot", "width"), [(1, 0.1), (6, 0.0)])
def test_no_width_no_seeds(pilot: int, width: float) -> None:
    with pytest.raises(ValueError, match=r"pilot needs|must be positive"):
        seeds_needed(1.0, pilot, width)


@pytest.mark.parametrize("seeds", [4, 6, 10])
def test_the_detectable_difference_is_detected(seeds: int) -> None:
    truth = Interval(0.0, 0.0, 0.0, seeds, NOISE, seeds - 1).detectable
    found = [interval(study).above().verdict() for study in studies(truth, seeds, NOISES["normal"])]
    assert found.count(CONFIRMED) / REPEATS == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize("level", [LEVEL, LEVEL / 12])
@pytest.mark.parametrize("share", [0.5, 1.0, 2.0])
def test_seeds_that_would_tell_tell_in_80_percent(share: float, level: float) -> None:
    """Of studies with that many seeds; half of them would if only the width of the interval were looked at."""
    seeds_to_tell = load_module(ROOT / "studies/reference/table.py").seeds_to_tell
    n = seeds_to_tell(NOISE, share * NOISE, level=level)
    found = [interval(study).above().confirm <= level for study in studies(share * NOISE, n, NOISES["normal"])]
    assert 0.75 <= sum(found) / REPEATS <= 0.97  # n is whole: with few seeds the next one adds much
    fewer = [interval(study).above().confirm <= level for study in studies(share * NOISE, n - 1, NOISES["normal"])]
    assert sum(fewer) / REPEATS <= 0.83
    assert seeds_to_tell(NOISE, 1e-9) == 0


def test_a_count_is_not_known_better_than_its_rounding() -> None:
    assert interval([0.25, 0.25, 0.25, 0.2501]).above(0.24).verdict() == CONFIRMED
    assert interval([0.25, 0.25, 0.25, 0.2501], grain=0.25).above(0.24).verdict() == UNDECIDED


@pytest.mark.parametrize("value", [0.25, -0.1, 0.0, 3e-7, 1e6])
@pytest.mark.parametrize("seeds", [2, 3, 10])
@pytest.mark.parametrize("rounding", [0.0, 3e-16])
def test_a_sample_without_spread_decides_nothing(value: float, seeds: int, rounding: float) -> None:
    found = interval([value * (1.0 + rounding * k) for k in range(seeds)])
    for p in (found.above(), found.below(), found.above(value / 2), found.no_worse(1.0)):
        assert p.verdict() == UNDECIDED
        assert p.least >= 0.5
    assert found.identical
    assert known_value(value, seeds).above(value - 1.0) == TRUE, "a count is no sample"


def test_ties_up_to_rounding_are_no_effect() -> None:
    """0.1 + 0.2 is not 0.3: ten differences of 5e-17 and one of 1e-16 would be sure of their sign."""
    first = dict.fromkeys(range(10), 0.1 + 0.2) | {10: 0.7 + 0.1}
    second = dict.fromkeys(range(10), 0.3) | {10: 0.8}
    assert set(paired(first, second).values()) == {0.0}


def test_values_missing_on_one_side_leave_that_side_open() -> None:
    found = interval([1.0, 1.1, 0.9])
    assert found.above().verdict() == CONFIRMED
    assert found.censored(below=True, above=False).above().verdict() == UNDECIDED
    assert found.censored(below=False, above=True).above().verdict() == CONFIRMED
    assert found.below().verdict() == REFUTED
    assert found.censored(below=True, above=False).below().verdict() == UNDECIDED
    assert found.censored(below=False, above=True).below().verdict() == REFUTED
    assert found.censored(below=False, above=True).no_worse(2.0).verdict() == UNDECIDED
    assert found.censored(below=True, above=True).above(5.0) == OPEN


def test_composite_claims_take_the_largest_p() -> None:
    a, b = PValues(0.01, 0.9), PValues(0.2, 0.03)
    assert all_of(a, b) == PValues(0.2, 0.06)
    assert any_of(a, b) == PValues(0.02, 0.9)
    assert all_of(a, TRUE) == a
    assert any_of(a, FALSE) == a
    assert all_of(a, FALSE) == FALSE
    assert any_of(b, TRUE) == TRUE
    assert (all_of(), any_of()) == (TRUE, FALSE)
    assert all_of(a, OPEN) == PValues(1.0, 1.0)
    assert negate(a) == PValues(0.9, 0.01)


@pytest.mark.parametrize(("wrong", "combined"), [(REFUTED, all_of), (CONFIRMED, any_of)])
def test_one_of_several_parts_is_corrected(wrong: str, combined: Callable[..., PValues]) -> None:
    """Five parts on their threshold: without Bonferroni one of them would be sure in 12 % of repeats."""
    values = np.random.default_rng(3).standard_normal((REPEATS, 5, 6))
    found = [combined(*(interval(part.tolist()).above() for part in study)).verdict() for study in values]
    assert lower_limit(found.count(wrong)) <= LEVEL


def test_grids_go_on_at_their_edge() -> None:
    assert extended([0.024, 0.05, 0.1], 0.1) == 0.2
    assert extended([0.025, 0.05, 0.1], 0.025) == 0.0125
    assert extended([0.025, 0.05, 0.1], 0.05) is None
    assert extended([0.2, 0.5], 0.5, most=1.0) == 1.0
    assert extended([0.5, 1.0], 1.0, most=1.0) is None
    assert extended([0.1], 0.1) is None


def test_an_optimum_without_neighbours_is_on_the_edge() -> None:
    table = surface(0.055, 0.23)
    inside = optimum(table)
    assert inside is not None
    assert (inside.edge, inside.alpha_edge) == (False, False)
    assert inside.lr == pytest.approx(0.055, rel=0.1)
    cliff = optimum({cell: value for cell, value in table.items() if cell[0] <= 0.05})
    assert cliff is not None
    assert (cliff.edge, cliff.lr) == (True, 0.05)
    assert optimum({}) is None
    last = optimum({(lr, m): 1.0 + lr + m for lr in (1.0, 2.0, 3.0) for m in (0.0, 0.5)})
    assert last is not None
    assert (last.cell, last.alpha, last.alpha_edge) == ((1.0, 0.0), 1.0, False)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_tie_with_the_end_of_the_grid_is_on_the_edge(sign: float) -> None:
    """In whichever order the cells come, and whatever lies between."""
    row = {0.1: 1.0, 0.2: 2.0, 0.4: 1.0, 0.8: 3.0}
    for order in (list(row), list(reversed(row))):
        found = optimum({(lr, 0.5): sign * row[lr] for lr in order}, sign)
        assert found is not None
        assert (found.edge, found.cell) == (True, (0.1, 0.5))
    flat = optimum({(lr, m): 2.0 for lr in RATES for m in MOMENTA})
    assert flat is not None
    assert (flat.edge, flat.alpha_edge) == (True, True)


def test_a_tie_inside_is_halfway() -> None:
    row = {0.1: 3.0, 0.2: 1.0, 0.4: 1.0 + 1e-16, 0.8: 1.0, 1.6: 3.0}
    for order in (list(row), list(reversed(row))):
        found = optimum({(lr, 0.5): row[lr] for lr in order})
        assert found is not None
        assert (found.edge, found.lr) == (False, pytest.approx(0.4))
