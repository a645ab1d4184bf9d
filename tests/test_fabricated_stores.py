"""Stores whose truth is known drive every claim: what says nothing decides nothing, and the row says why.

Each case alters data that confirm a claim, and data that refute it (`FLIPS`), in a way after which nobody could know.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import replace
from math import log2
from pathlib import Path
from typing import Any

import pytest

from inexact_muon_lab.decide.needs import _next
from inexact_muon_lab.report.advice import advice
from inexact_muon_lab.report.claims import Judged, judge
from inexact_muon_lab.report.effects_by_size import figure
from inexact_muon_lab.report.ladders import grids, ladders
from inexact_muon_lab.report.load import load
from inexact_muon_lab.statistics import CONFIRMED, REFUTED, UNDECIDED
from report_cases import LOSSES, Case, bowl, grid, ladder, noise
from report_cases import write_packed as write
from report_tables import Tables, cotuning, write_tables
from test_report_verdicts import COUNTED, FLIPS, MIDDLE, SAME, accuracy

LADDERS = ("lower-loss", "first-steps", "saturates", "goes-on", "time", "error-ordered", "error-constant", "cnn-loss")
REGIONS = ("region", "level-region", "accuracy-region")
GRIDS = ("lr-moves", "alpha-moves", *REGIONS, "best-accuracy", "accuracy-gap")
SIDES = {"confirming": 0, "refuting": 1}


def row(folder: Path, claim: str, data: list[Case] | Tables) -> Judged:
    place = write_tables(folder, data) if isinstance(data, dict) else write(folder, data)
    found = [item for item in judge(load(place)) if item.claim.id == claim]
    assert len(found) == 1
    return found[0]


def count(case: Case) -> int:
    return int(case.fields["optimizer"]["polar"].partition("steps=")[2][0])


def lose(case: Case, state: str = "diverged") -> None:
    """The run ended without a result, early."""
    case.state, case.result, case.records = state, {"train_loss": None}, case.records[:3]


def made(claim: str, side: str, seeds: int = 10) -> list[Case]:
    found = FLIPS[claim][SIDES[side]](seeds)
    assert isinstance(found, list)
    return found


# zero spread and copies -----------------------------------------------------------------------------------------------


def without_spread(cases: list[Case], offset: float) -> list[Case]:
    """Every seed as the first one, up to an offset of its own that pairing removes, and to rounding."""
    first: dict[str, Case] = {}
    for case in cases:
        key = repr({**case.fields, "seed": 0})
        same = first.setdefault(key, case)
        more = offset * case.fields["seed"]
        case.result = {name: None if v is None else v + more for name, v in same.result.items()}
        case.seconds, case.records = same.seconds, same.records
    return cases


OFFSETS = {
    (claim, name): offset
    for claim in (*LADDERS, *GRIDS)
    for name, offset in (("copies", 0.0), ("paired", 0.1))
    if name != "paired" or claim not in REGIONS  # their limits are shares of the loss or accuracy
}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(("claim", "how"), OFFSETS)
def test_seeds_without_spread_decide_nothing(claim: str, how: str, side: str, tmp_path: Path) -> None:
    offset = OFFSETS[claim, how]
    cases = made(claim, side, 5)
    assert row(tmp_path / "a", claim, cases).finding.verdict == (CONFIRMED if side == "confirming" else REFUTED)
    item = row(tmp_path / "b", claim, without_spread(cases, offset))
    assert item.verdict == item.finding.verdict == UNDECIDED
    assert item.finding.p.least >= 0.5
    if offset:
        assert "without spread" in "; ".join(item.notes)
    else:
        assert item.finding.interval.n <= 1


@pytest.mark.parametrize("claim", ["paper-rule", "some-rule"])
@pytest.mark.parametrize("side", SIDES)
def test_tables_without_spread_decide_nothing(claim: str, side: str, tmp_path: Path) -> None:
    data: Any = FLIPS[claim][SIDES[side]](6)
    for problem in data["cotuning.json"]["problems"]:
        for k, target in enumerate(problem["targets"]):
            for rule, like in zip(target["rules"], problem["targets"][0]["rules"], strict=True):
                rule["regret"] = like["regret"] + (0.0 if claim == "some-rule" else 0.1 * k)
    item = row(tmp_path, claim, data)
    assert item.verdict == UNDECIDED
    assert "without spread" in "; ".join(item.notes)


@pytest.mark.parametrize("claim", ["lower-loss", "cnn-loss", "best-accuracy"])
def test_a_seed_that_repeats_another_is_one_sample(claim: str, tmp_path: Path) -> None:
    """Three seeds, each copied three times, are three seeds."""
    cases = made(claim, "confirming", 3)
    copies = [
        replace(case, fields={**case.fields, "seed": case.fields["seed"] + 10 * k}) for case in cases for k in range(4)
    ]
    results = load(write(tmp_path / "a", copies))
    found = next(item for item in judge(results) if item.claim.id == claim)
    assert found.finding.interval.n == 3
    assert sum("bit for bit as seed" in line for line in results.tables.problems) == 9
    assert found.finding.p == row(tmp_path / "b", claim, cases).finding.p


@pytest.mark.parametrize(("claim", "at"), [("lower-loss", 8), ("best-accuracy", 5)])
def test_a_copy_in_one_arm_alone_is_no_sample_of_it(claim: str, at: int, tmp_path: Path) -> None:
    """Of seed 1 the runs of one oracle are those of seed 0: the seed has no difference of its own."""
    cases = made(claim, "confirming", 4)
    first = {(lr(c), momentum(c)): c for c in cases if count(c) == at and c.fields["seed"] == 0}
    for case in cases:
        if count(case) == at and case.fields["seed"] == 1:
            case.result = first[lr(case), momentum(case)].result
    results = load(write(tmp_path, cases))
    assert any(f"{len(first)} run" in line and "bit for bit as seed 0" in line for line in results.tables.problems)
    found = next(item for item in judge(results) if item.claim.id == claim)
    assert found.finding.interval.n == 3


# ties and edges -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("claim", ["lr-moves", "alpha-moves", "best-accuracy", "region"])
@pytest.mark.parametrize("low", [True, False])
def test_ties_at_the_end_of_a_grid_are_open(claim: str, low: bool, tmp_path: Path) -> None:
    """The loss (or accuracy) is flat from the middle to one end of the grid, for both oracles and every seed."""

    def flat(count: int, lr: float, momentum: float) -> float:
        x = min(0.0, log2(lr / 0.05)) if not low else max(0.0, log2(lr / 0.05))
        return (0.9 - 0.01 * x * x) if claim == "best-accuracy" else (2.0 + 0.3 * x * x)

    cases = grid(flat, 6, images=claim == "best-accuracy")
    for case in cases:  # without the noise that breaks the ties
        lr, momentum = case.fields["optimizer"]["lr"], case.fields["optimizer"]["momentum"]
        value = flat(count(case), lr, momentum) + noise(case.fields["seed"])
        case.result |= {"accuracy" if claim == "best-accuracy" else "loss": value}
    item = row(tmp_path, claim, cases)
    assert item.verdict == item.finding.verdict == UNDECIDED
    assert item.finding.p.least == 1.0
    assert "grid" in item.finding.note


@pytest.mark.parametrize("seeds", [3, 6])
def test_equal_oracles_are_open(seeds: int, tmp_path: Path) -> None:
    """The same numbers for both: no shift, no gain, no spread, and no verdict that there is none."""
    for claim in ("lr-moves", "alpha-moves", "lower-loss", "best-accuracy", "accuracy-gap"):
        cases = made(claim, "confirming", seeds)
        first = min(map(count, cases))
        results = {repr((c.fields["seed"], lr(c), momentum(c))): c.result for c in cases if count(c) == first}
        for case in cases:
            case.result = results[repr((case.fields["seed"], lr(case), momentum(case)))]
        item = row(tmp_path / claim, claim, cases)
        assert item.verdict == item.finding.verdict == UNDECIDED, claim


def lr(case: Case) -> float | None:
    return case.fields["optimizer"].get("lr")


def momentum(case: Case) -> float | None:
    return case.fields["optimizer"].get("momentum")


EDGES = {
    "smallest lr": (0.001, 0.8),
    "largest lr": (1.0, 0.8),
    "smallest momentum": (0.05, 0.1),
    "largest": (0.05, 0.99),
}


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("crude", [True, False])
def test_the_best_accuracy_at_an_end_may_be_higher_outside(edge: str, crude: bool, tmp_path: Path) -> None:
    """A crude oracle at its end could catch up: open. A precise one could only be better still."""
    places = {2: EDGES[edge] if crude else MIDDLE, 5: MIDDLE if crude else EDGES[edge]}
    surface = bowl(places, {2: 100.0, 5: 100.0})
    cases = grid(lambda n, lr, m: (0.9 if n == 5 else 0.8) + 2.0 - surface(n, lr, m), 6, images=True)
    item = row(tmp_path, "best-accuracy", cases)
    assert item.finding.verdict == (UNDECIDED if crude else CONFIRMED)
    assert "edge of the grid" in item.finding.note


def test_one_seed_at_an_end_leaves_the_picture_of_sizes_empty(tmp_path: Path) -> None:
    """Leaving that seed out would keep the seeds whose optimum is where it was looked for."""
    surface = bowl({2: (0.025, 0.8), 5: MIDDLE}, SAME)
    cases = grid(surface, 4)
    for case in cases:
        if case.fields["seed"] == 0 and count(case) == 2:
            case.result["loss"] = bowl({2: (0.001, 0.8)}, SAME)(2, lr(case) or 0.0, momentum(case) or 0.0)
    inside = load(write(tmp_path / "a", grid(surface, 4)))
    outside = load(write(tmp_path / "b", cases))
    rows = [[r for panel in figure(results, None).panels for r in panel.rows] for results in (inside, outside)]
    assert "lr" in {r["effect"] for r in rows[0] if r["runs"] == "study"}
    assert "lr" not in {r["effect"] for r in rows[1] if r["runs"] == "study"}


def test_a_tie_with_an_end_is_looked_for_beyond_it(tmp_path: Path) -> None:
    flat = grid(lambda n, lr, m: 2.0 + max(0.0, log2(lr / 0.05)) ** 2 + (m - 0.8) ** 2, 3)
    for case in flat:
        case.result["loss"] = round(case.result["loss"] or 0.0, 1) + noise(case.fields["seed"])
    (found,) = grids(load(write(tmp_path, flat)))
    assert 0.00625 in _next(found)[0]


# divergence -----------------------------------------------------------------------------------------------------------


def losing(cases: list[Case], at: int, seeds: Iterable[int], state: str = "diverged") -> list[Case]:
    """The runs of one oracle, of so many seeds, have no result."""
    for case in cases:
        if count(case) == at and case.fields["seed"] in seeds:
            lose(case, state)
    return cases


@pytest.mark.parametrize("state", ["diverged", "failed"])
@pytest.mark.parametrize(
    "claim", ["lower-loss", "first-steps", "saturates", "error-ordered", "error-constant", "cnn-loss"]
)
def test_an_arm_that_diverges_is_not_judged_on_the_seeds_that_are_left(claim: str, state: str, tmp_path: Path) -> None:
    """The most precise oracle diverges for 7 of 10 seeds: nothing in its favour is confirmed by the other 3."""
    cases = losing(made(claim, "confirming"), 8, range(7), state)
    item = row(tmp_path, claim, cases)
    assert item.verdict == item.finding.verdict == UNDECIDED
    assert "7 of 10 runs at 8 iterations diverged or failed" in item.finding.note


def test_a_crude_arm_that_diverges_does_not_refute_its_own_inferiority(tmp_path: Path) -> None:
    """One iteration diverges for 7 of 10 seeds and is better for the other 3: not "surely worse with more"."""
    item = row(tmp_path / "a", "lower-loss", losing(made("lower-loss", "refuting"), 1, range(7)))
    assert item.finding.p.confirm > 0.5
    assert "7 of 10 runs at 1 iteration diverged or failed" in item.finding.note
    two = losing(ladder({1: 1.5, 8: 2.0}, 10), 1, range(7))
    assert row(tmp_path / "b", "lower-loss", two).finding.verdict == UNDECIDED
    helped = losing(ladder({1: 2.0, 8: 1.5}, 10), 1, range(7))
    assert row(tmp_path / "c", "lower-loss", helped).finding.verdict == CONFIRMED


def test_an_arm_that_always_diverges_has_a_row(tmp_path: Path) -> None:
    write(tmp_path / "a", ladder(seeds=4), "a")
    write(tmp_path / "b", losing(ladder(seeds=4), 8, range(4)), "b")
    found = [item for item in judge(load(tmp_path)) if item.claim.id == "lower-loss" and item.study == "b"]
    assert [item.finding.verdict for item in found] == [UNDECIDED]
    assert "4 of 4 runs at 8 iterations diverged" in found[0].finding.note


def test_divergence_of_both_arms_leaves_the_seed_out_and_is_said(tmp_path: Path) -> None:
    both = losing(losing(ladder({1: 2.0, 8: 1.5}, 10), 1, range(4)), 8, range(4))
    item = row(tmp_path, "lower-loss", both)
    assert (item.finding.verdict, item.finding.interval.n) == (CONFIRMED, 6)
    assert "4 of 10 runs at 1 iteration, 4 of 10 runs at 8 iterations diverged" in item.finding.note


@pytest.mark.parametrize("at", [2, 5])
@pytest.mark.parametrize("side", SIDES)
def test_an_oracle_that_diverges_at_its_worst_momentum_does_not_shrink_its_gap(
    at: int, side: str, tmp_path: Path
) -> None:
    """What its true gap would support is still decided, the opposite is open."""
    expected = {(2, "confirming"): CONFIRMED, (5, "refuting"): REFUTED}.get((at, side), UNDECIDED)
    cases = made("accuracy-gap", side)
    for case in cases:
        if count(case) == at and momentum(case) == 0.5:
            lose(case)
    item = row(tmp_path, "accuracy-gap", cases)
    assert item.finding.verdict == expected
    assert f"runs at {at} iterations diverged" in item.finding.note


@pytest.mark.parametrize("claim", ["lr-moves", "alpha-moves", "best-accuracy"])
def test_a_grid_that_diverges_everywhere_for_some_seeds_is_open(claim: str, tmp_path: Path) -> None:
    """The seeds that are left would be judged alone."""
    item = row(tmp_path, claim, losing(made(claim, "confirming"), 5, range(7)))
    assert item.finding.verdict == UNDECIDED
    assert "diverged" in item.finding.note


def test_a_grid_that_diverges_everywhere_has_no_stable_region(tmp_path: Path) -> None:
    item = row(tmp_path, "region", losing(made("region", "confirming"), 5, range(7)))
    assert item.finding.verdict != CONFIRMED
    assert item.finding.interval.n == 10
    assert "diverged" in item.finding.note


def test_a_rule_that_diverges_is_not_judged_on_the_targets_that_are_left(tmp_path: Path) -> None:
    for claim, rule in (("paper-rule", "paper"), ("some-rule", "measured")):
        data = cotuning(10)
        assert row(tmp_path / claim / "a", claim, data).verdict == CONFIRMED
        for target in data["cotuning.json"]["problems"][0]["targets"][:7]:
            next(r for r in target["rules"] if r["rule"] == rule)["regret"] = None
        item = row(tmp_path / claim / "b", claim, data)
        assert item.verdict == UNDECIDED
        assert "counts against the rule" in item.finding.note


def test_no_advice_for_a_step_size_at_which_a_seed_diverged(tmp_path: Path) -> None:
    cases = grid(bowl({2: MIDDLE, 5: MIDDLE}, SAME), 4)
    for case in cases:
        if lr(case) == 0.05 and case.fields["seed"] > 0:
            lose(case)
    (sentence,) = advice(load(write(tmp_path, cases)))
    assert "at lr 0.05" not in sentence
    assert "4 seeds" in sentence


def test_advice_says_which_optima_lie_at_an_end(tmp_path: Path) -> None:
    cases = grid(bowl({2: (0.05, 0.99), 5: MIDDLE}, {2: 1.0, 5: 0.5}), 4)
    (sentence,) = advice(load(write(tmp_path, cases)))
    assert (
        "its momentum is the first or last that was tried" in sentence or "open for polar-express(steps=2" in sentence
    )


def test_a_finished_run_whose_loss_is_not_finite_counts_against_its_arm(tmp_path: Path) -> None:
    """NaN at the last evaluation alone: stored as nothing, and not missing by chance."""
    cases = made("lower-loss", "confirming")
    for case in cases:
        if count(case) == 8 and case.fields["seed"] < 7:
            case.result = {"loss": float("nan"), "train_loss": 1.0}
    item = row(tmp_path, "lower-loss", cases)
    assert item.finding.verdict == UNDECIDED
    assert "7 of 10 runs at 8 iterations diverged or failed" in item.finding.note


def test_a_best_step_size_below_one_that_diverged_is_not_the_last_that_was_tried(tmp_path: Path) -> None:
    steep = grid(lambda n, lr, m: None if lr > 0.1 else 3.0 - 5 * lr + (m - 0.8) ** 2 + n / 100, 4)
    (sentence,) = advice(load(write(tmp_path, steep)))
    assert "at lr 0.1, momentum 0.8" in sentence
    assert "was tried" not in sentence


# missing cells --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("claim", GRIDS)
@pytest.mark.parametrize("how", ["waiting", "never planned", "failed"])
def test_a_seed_without_some_cells_is_left_out_and_said(claim: str, how: str, tmp_path: Path) -> None:
    """Its best of the cells that it has may be another one."""
    cases = made(claim, "confirming", 6)
    missing = [case for case in cases if case.fields["seed"] == 0 and count(case) == 5][::3]
    for case in missing:
        lose(case, how) if how != "never planned" else cases.remove(case)
    item = row(tmp_path, claim, cases)
    assert item.finding.interval.n == 5
    assert "1 of 6 seeds are left out" in item.finding.note


def test_a_seed_without_some_counts_has_no_smallest_fall(tmp_path: Path) -> None:
    """Of seed 0 the count is missing whose error is not below the one before."""
    cases = ladder(seeds=4, error=lambda count, step: {1: 1.0, 2: 0.5, 3: 0.6, 5: 0.2, 8: 0.1}[count])
    kept = [case for case in cases if (case.fields["seed"], count(case)) != (0, 3)]
    item = row(tmp_path, "error-ordered", kept)
    assert item.finding.interval.n == 3
    assert item.finding.verdict == REFUTED
    assert "1 seeds without every count" in item.finding.note


@pytest.mark.parametrize("claim", ["region", "level-region", "accuracy-region", "best-accuracy", "accuracy-gap"])
@pytest.mark.parametrize("side", SIDES)
def test_oracles_are_compared_over_cells_that_both_have(claim: str, side: str, tmp_path: Path) -> None:
    """One oracle has a step size more, at which it has the best result: its bests and shares are of another grid."""
    cases = made(claim, side, 6)
    known = row(tmp_path / "same", claim, cases)
    best = {"loss": 0.1, "accuracy": 0.999, "train_loss": 0.1}
    extra = [
        replace(case, fields=case.fields | {"optimizer": case.fields["optimizer"] | {"lr": 0.015}},
                result={name: best[name] + 1e-3 * case.fields["seed"] for name in case.result})
        for case in cases if count(case) == 2 and lr(case) == 0.05
    ]  # fmt: skip
    item = row(tmp_path / "more", claim, [*cases, *extra])
    assert item.finding.interval == known.finding.interval
    assert item.finding.verdict == known.finding.verdict
    assert f"{len(extra) // 6} cells that one of the oracles lacks" in item.finding.note


def test_oracles_without_a_common_cell_do_not_compare(tmp_path: Path) -> None:
    cases = made("best-accuracy", "confirming", 6)
    for case in cases:
        case.fields["optimizer"]["lr"] = (lr(case) or 0.0) * (1.3 if count(case) == 2 else 1.0)
    found = row(tmp_path, "best-accuracy", cases).finding
    assert (found.verdict, found.statistic) == (UNDECIDED, "")
    assert "no cell in common" in found.note


@pytest.mark.parametrize("shared", [0, 3])
def test_arms_of_other_seeds_are_paired_by_those_of_both(shared: int, tmp_path: Path) -> None:
    cases = ladder({1: 2.0, 8: 1.5}, 6)
    for case in cases:
        if count(case) == 8 and case.fields["seed"] >= shared:
            case.fields["seed"] += 100
    item = row(tmp_path, "lower-loss", cases)
    assert item.finding.interval.n == shared
    assert item.finding.verdict == (CONFIRMED if shared else UNDECIDED)
    assert f"{12 - 2 * shared} of {12 - shared} seeds are not those of both arms" in item.finding.note or not shared
    assert item.finding.note


def test_an_oracle_without_any_error_is_better_than_one_with_some(tmp_path: Path) -> None:
    """The exact oracle's error is zero at every step: its ratio to that of another is not that of equal errors."""
    cases = ladder({1: 2.0, 8: 1.5}, 6, error=lambda count, step: 1.0 if count == 1 else 0.0)
    assert row(tmp_path, "error-ordered", cases).finding.verdict == CONFIRMED


# labels ---------------------------------------------------------------------------------------------------------------


def normalised(cases: list[Case], by_count: dict[int, str]) -> list[Case]:
    for case in cases:
        n = count(case)
        case.fields["optimizer"]["polar"] = f"polar-express(steps={n}, normalise={by_count[n]})"
    return cases


def test_arms_that_differ_in_their_normaliser_are_not_one_oracle(tmp_path: Path) -> None:
    """The gain is that of the normaliser: no claim about iterations follows."""
    cases = normalised(ladder({1: 2.0, 8: 1.5}, 6), {1: "frobenius", 8: "schatten4"})
    assert row(tmp_path / "a", "lower-loss", cases).finding.statistic == ""
    cases = normalised(grid(bowl({2: (0.025, 0.8), 5: MIDDLE}, SAME), 6), {2: "frobenius", 5: "schatten4"})
    assert {item.finding.verdict for item in judge(load(write(tmp_path / "b", cases))) if item.claim.on == "grid"} == {
        UNDECIDED
    }


def test_two_normalisers_are_two_ladders_whose_labels_say_so(tmp_path: Path) -> None:
    one = normalised(ladder({1: 2.0, 8: 1.5}, 3), {1: "frobenius", 8: "frobenius"})
    two = normalised(ladder({1: 1.6, 8: 1.5}, 3), {1: "schatten8", 8: "schatten8"})
    results = load(write(tmp_path, [*one, *two]))
    assert {ladder.family for ladder in ladders(results)} == {
        "polar-express(normalise=frobenius)",
        "polar-express(normalise=schatten8)",
    }
    assert {len(ladder.runs) for ladder in ladders(results)} == {6}


def test_two_ways_to_write_an_oracle_are_one(tmp_path: Path) -> None:
    cases = ladder({1: 2.0, 8: 1.5}, 3)
    for case in cases:
        n = count(case)
        case.fields["optimizer"]["polar"] = "polar-express:1" if n == 1 else "polar-express(lower=1e-3, steps=8)"
    (found,) = ladders(load(write(tmp_path, cases)))
    assert (found.family, list(found.by_count)) == ("polar-express", [1, 8])


def test_one_arm_and_seed_with_two_results_is_left_out(tmp_path: Path) -> None:
    cases = ladder({1: 2.0, 8: 1.5}, 4)
    again = replace(cases[0], fields=cases[0].fields | {"record_every": 7}, result={"loss": 9.0, "train_loss": 9.0})
    results = load(write(tmp_path / "a", [*cases, again]))
    assert any("with two results" in line for line in results.tables.problems)
    found = next(item for item in judge(results) if item.claim.id == "lower-loss")
    assert found.finding.interval.n == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same = replace(again, result=cases[0].result)
        assert load(write(tmp_path / "b", [*cases, same])).tables.problems == ()


def test_counted_claims_and_the_others_are_all_here() -> None:
    """A new claim needs a case of each kind."""
    assert {*LADDERS, *GRIDS, *COUNTED, "paper-rule", "some-rule"} == set(FLIPS)
    assert LOSSES.keys() == {1, 2, 3, 5, 8}
    assert accuracy({2: 0.8}, {2: 0.1})(2, 0.05, 0.8) == 0.8
