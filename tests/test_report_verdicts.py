"""Every verdict is computed: it flips when its data are altered, and a single seed decides nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from math import inf, log2
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from inexact_muon_lab.report import grid_claims
from inexact_muon_lab.report.claims import CLAIMS, findings, judge, overall
from inexact_muon_lab.report.declarations import planned
from inexact_muon_lab.report.finding import Finding
from inexact_muon_lab.report.load import load
from inexact_muon_lab.spec.study import Decide
from inexact_muon_lab.statistics import (
    CONFIRMED,
    FALSE,
    OPEN,
    REFUTED,
    TRUE,
    UNDECIDED,
    Verdict,
    all_of,
    any_of,
    interval,
    quantile,
)
from report_cases import LOSSES, Case, bowl, grid, ladder, write
from report_tables import Tables, cotuning, theory, write_tables

Make = Callable[[int], list[Case] | Tables]
UP = {count: 4.0 - loss for count, loss in LOSSES.items()}
MIDDLE, LOW = (0.05, 0.8), (0.025, 0.9)
SAME = {2: 1.0, 5: 1.0}
WIDE = tuple(0.05 * 2.0**k for k in range(-4, 5))


def accuracy(top: dict[int, float], spread: dict[int, float]) -> Callable[[int, float, float], float]:
    return lambda count, lr, momentum: top[count] - spread[count] * abs(0.8 - momentum) - 0.2 * abs(lr - 0.05)


FLIPS: dict[str, tuple[Make, Make]] = {
    "lower-loss": (lambda n: ladder(seeds=n), lambda n: ladder(UP, n)),
    "first-steps": (lambda n: ladder(seeds=n), lambda n: ladder(LOSSES | {2: 1.99, 3: 1.98}, n)),
    "saturates": (lambda n: ladder(seeds=n), lambda n: ladder(LOSSES | {3: 1.9, 5: 1.8}, n)),
    "time": (lambda n: ladder(seeds=n), lambda n: ladder(seeds=n, time=lambda count: 1.0 * count)),
    "lr-moves": (
        lambda n: grid(bowl({2: (0.025, 0.8), 5: MIDDLE}, SAME), n),
        lambda n: grid(bowl({2: MIDDLE, 5: (0.025, 0.8)}, SAME), n),
    ),
    "alpha-moves": (
        lambda n: grid(bowl({2: (0.05, 0.8), 5: (0.05, 0.9)}, SAME), n),
        lambda n: grid(bowl({2: (0.05, 0.9), 5: (0.05, 0.8)}, SAME), n),
    ),
    "region": (
        lambda n: grid(bowl({2: MIDDLE, 5: MIDDLE}, {2: 1.0, 5: 4.0}), n, rates=WIDE),
        lambda n: grid(bowl({2: MIDDLE, 5: MIDDLE}, {2: 4.0, 5: 1.0}), n, rates=WIDE),
    ),
    "goes-on": (lambda n: ladder(LOSSES | {5: 1.56}, n), lambda n: ladder(LOSSES | {8: 1.56}, n)),
    "level-region": (
        lambda n: grid(bowl({2: MIDDLE, 5: MIDDLE}, {2: 1.0, 5: 4.0}), n, rates=WIDE),
        lambda n: grid(bowl({2: MIDDLE, 5: MIDDLE}, {2: 4.0, 5: 1.0}), n, rates=WIDE),
    ),
    "accuracy-region": (
        lambda n: grid(accuracy({2: 0.9, 5: 0.9}, {2: 1.0, 5: 0.1}), n, images=True),
        lambda n: grid(accuracy({2: 0.9, 5: 0.9}, {2: 0.1, 5: 1.0}), n, images=True),
    ),
    "error-ordered": (
        lambda n: ladder(seeds=n),
        lambda n: ladder(seeds=n, error=lambda count, step: 0.1 if count == 2 else 1.0 / count),
    ),
    "error-constant": (
        lambda n: ladder(seeds=n),
        lambda n: ladder(seeds=n, error=lambda count, step: step / count),
    ),
    "cnn-loss": (lambda n: ladder(seeds=n, images=True), lambda n: ladder(UP, n, images=True)),
    "best-accuracy": (
        lambda n: grid(accuracy({2: 0.8, 5: 0.9}, {2: 0.1, 5: 0.1}), n, images=True),
        lambda n: grid(accuracy({2: 0.9, 5: 0.8}, {2: 0.1, 5: 0.1}), n, images=True),
    ),
    "accuracy-gap": (
        lambda n: grid(accuracy({2: 0.9, 5: 0.9}, {2: 0.5, 5: 0.1}), n, images=True),
        lambda n: grid(accuracy({2: 0.9, 5: 0.9}, {2: 0.1, 5: 0.5}), n, images=True),
    ),
    "bounds": (lambda n: ladder(seeds=n), lambda n: ladder(seeds=n, gap=1.5)),
    "theory": (lambda n: theory(n), lambda n: theory(n, ratio=0.9)),
    "paper-rule": (lambda n: cotuning(n), lambda n: cotuning(n, {"paper": 0.4})),
    "some-rule": (lambda n: cotuning(n), lambda n: cotuning(n, {"measured": 0.2, "paper": 0.2})),
}  # fmt: skip
"""For each claim: data that confirm it, and the same data altered so that they refute it."""


COUNTED = {"bounds", "theory"}
"""Claims about every single number: no sample to draw conclusions from."""


def verdict(folder: Path, claim: str, data: list[Case] | Tables) -> Finding:
    place = write_tables(folder, data) if isinstance(data, dict) else write(folder, data)
    found = [j.finding for j in judge(load(place)) if j.claim.id == claim]
    assert len(found) == 1
    return found[0]


def test_every_claim_is_tested() -> None:
    assert set(FLIPS) == {claim.id for claim in CLAIMS}


@pytest.mark.parametrize("claim", FLIPS)
def test_verdict_flips_with_its_data(claim: str, tmp_path: Path) -> None:
    confirming, refuting = FLIPS[claim]
    good = verdict(tmp_path / "good", claim, confirming(3))
    bad = verdict(tmp_path / "bad", claim, refuting(3))
    assert good.verdict == CONFIRMED, good
    assert bad.verdict == REFUTED, bad
    assert good.interval.n == 3
    assert good.statistic != bad.statistic


@pytest.mark.parametrize("claim", sorted(set(FLIPS) - COUNTED))
def test_one_seed_decides_nothing(claim: str, tmp_path: Path) -> None:
    for index, make in enumerate(FLIPS[claim]):
        found = verdict(tmp_path / str(index), claim, make(1))
        assert found.verdict == UNDECIDED
        assert found.range == "-"


def test_noise_larger_than_the_effect_is_undecided(tmp_path: Path) -> None:
    cases = ladder({1: 2.0, 5: 1.9999})
    assert verdict(tmp_path, "lower-loss", cases).verdict == UNDECIDED


@pytest.mark.parametrize("crude", [(0.001, 0.8), (1.0, 0.8), (0.05, 0.2), (0.05, 0.99)])
@pytest.mark.parametrize("precise", [(0.05, 0.8), (0.001, 0.8), (0.05, 0.99)])
def test_an_optimum_on_the_edge_is_undecided(
    crude: tuple[float, float], precise: tuple[float, float], tmp_path: Path
) -> None:
    claim = "alpha-moves" if crude[0] == 0.05 else "lr-moves"
    write(tmp_path, grid(bowl({2: crude, 5: precise}, SAME)))
    for judged in judge(load(tmp_path)):
        if judged.claim.id == claim:
            assert judged.finding.verdict == UNDECIDED
            assert "edge" in judged.finding.note


def test_a_sure_step_up_refutes_the_order(tmp_path: Path) -> None:
    found = verdict(tmp_path, "lower-loss", ladder(LOSSES | {8: 1.9}))
    assert found.interval.low > 0
    assert found.verdict == REFUTED
    assert "5 to 8" in found.note


def test_missing_seeds_are_left_out_and_said(tmp_path: Path) -> None:
    cases = ladder(seeds=4)
    cases[0].state, cases[0].result = "diverged", {"train_loss": None}
    cases[-1].state = "waiting"
    found = verdict(tmp_path, "lower-loss", cases)
    assert found.interval.n == 2
    assert "2 of 20 runs" in found.note


def test_a_sweep_is_judged_by_the_counts_that_have_ended(tmp_path: Path) -> None:
    cases = ladder(seeds=3)
    for case in cases[-3:]:
        case.state = "waiting"
    found = verdict(tmp_path, "lower-loss", cases)
    assert found.verdict == CONFIRMED
    assert "1 iteration minus at 5" in found.statistic
    waiting = grid(bowl({2: (0.025, 0.8), 3: MIDDLE, 5: MIDDLE}, {2: 1, 3: 1, 5: 1}), counts=(2, 3, 5))
    for case in waiting:
        case.state = "waiting" if "steps=5" in case.fields["optimizer"]["polar"] else case.state
    assert verdict(tmp_path / "grid", "lr-moves", waiting).verdict == CONFIRMED


def test_findings_prefer_what_is_decided_and_name_a_claim_once(tmp_path: Path) -> None:
    write(tmp_path / "a", ladder(UP), "a")
    write(tmp_path / "b", ladder(seeds=1), "b")
    top = findings(judge(load(tmp_path)))
    assert len({j.claim.id for j in top}) == 3
    assert top[0].verdict == REFUTED
    assert UNDECIDED not in {j.verdict for j in top}


def test_findings_are_refuted_and_confirmed_in_turn(tmp_path: Path) -> None:
    write(tmp_path, ladder(seeds=3))
    item = judge(load(tmp_path))[0]
    known = [FALSE, FALSE, FALSE, TRUE, OPEN, TRUE]
    judged = [replace(item, claim=replace(item.claim, id=str(k)), p=p) for k, p in enumerate(known)]
    assert [j.claim.id for j in findings(judged, 6)] == ["0", "3", "1", "5", "2", "4"]


def test_one_refutation_is_enough(tmp_path: Path) -> None:
    write(tmp_path / "a", ladder(), "a")
    assert overall(judge(load(tmp_path)))["lower-loss"] == CONFIRMED
    write(tmp_path / "b", ladder(seeds=1), "b")
    assert overall(judge(load(tmp_path)))["lower-loss"] == CONFIRMED
    write(tmp_path / "c", ladder(UP), "c")
    assert overall(judge(load(tmp_path)))["lower-loss"] == REFUTED


def test_a_bound_within_the_noise_is_undecided(tmp_path: Path) -> None:
    assert verdict(tmp_path, "theory", theory(ratio=1.01, margin=0.1)).verdict == UNDECIDED


def test_a_target_on_the_edge_does_not_flatter(tmp_path: Path) -> None:
    found = verdict(tmp_path, "some-rule", cotuning(4, on_edge=(0, 2)))
    assert found.interval.n == 2
    assert "2 of 4 targets" in found.note
    assert verdict(tmp_path / "all", "some-rule", cotuning(2, on_edge=(0, 1))).verdict == UNDECIDED


def test_there_is_nothing_to_win_where_keeping_has_no_regret(tmp_path: Path) -> None:
    none, negative = {"keep": 0.0, "measured": -0.2}, {"keep": -0.1, "measured": -0.5}
    found = verdict(tmp_path / "none", "some-rule", cotuning(4, none))
    assert (found.interval.above().verdict(), found.verdict) == (CONFIRMED, UNDECIDED)
    assert "not clearly above zero" in found.note
    assert verdict(tmp_path / "negative", "some-rule", cotuning(4, negative)).verdict == REFUTED


VERDICTS = st.sampled_from([CONFIRMED, REFUTED, UNDECIDED])
KNOWN = {CONFIRMED: TRUE, REFUTED: FALSE, UNDECIDED: OPEN}


@given(st.lists(VERDICTS, min_size=1, max_size=5))
def test_three_valued_logic(verdicts: list[Verdict]) -> None:
    """Replacing every undecided by either answer gives the answer, or both answers and then it is undecided."""
    for combine, plain in ((all_of, all), (any_of, any)):
        worlds = product(*([v == CONFIRMED] if v != UNDECIDED else [True, False] for v in verdicts))
        answers = {plain(world) for world in worlds}
        wanted = UNDECIDED if len(answers) == 2 else CONFIRMED if answers == {True} else REFUTED
        assert combine(*(KNOWN[v] for v in verdicts)).verdict() == wanted


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=9).filter(lambda v: max(v) - min(v) > 1e-3))
def test_interval_is_the_t_interval(values: list[float]) -> None:
    found = interval(values)
    low, high = stats.t.interval(0.95, len(values) - 1, loc=sum(values) / len(values), scale=stats.sem(values))
    assert found.low == pytest.approx(low, rel=1e-6, abs=1e-6)
    assert found.high == pytest.approx(high, rel=1e-6, abs=1e-6)


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=9), st.floats(-100, 100))
def test_above_and_below_exclude_each_other(values: list[float], threshold: float) -> None:
    opposite: dict[Verdict, tuple[Verdict, ...]] = {CONFIRMED: (REFUTED,), REFUTED: (CONFIRMED, REFUTED)}
    found = interval(values)
    above, below = found.above(threshold).verdict(), found.below(threshold).verdict()
    assert below in opposite.get(above, (UNDECIDED, REFUTED))


def test_quantile() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([0.0, 1.0], 0.9) == pytest.approx(0.9)
    assert quantile([4.0], 0.1) == 4.0


def test_an_effect_below_the_declared_margin_is_refuted() -> None:
    """Sure to be above zero and sure to be below the margin: it does not count. A wide interval stays open."""
    declared = Decide(family=("region",), width={"region": 1.0}, margin={"region": 0.1}, pilot=(0, 1, 2, 3))
    for values, expected in (
        ([0.02, 0.021, 0.019, 0.02], REFUTED),
        ([0.2, 0.21, 0.19, 0.2], CONFIRMED),
        ([0.3, -0.1, 0.2, -0.2], UNDECIDED),
    ):
        found = interval(dict(enumerate(values)), pilot=range(4))
        finding = Finding("study", "effect", found, found.above())
        assert planned(finding, declared, "region", 4).verdict == expected
    down = interval({seed: -value for seed, value in enumerate([0.02, 0.021, 0.019, 0.02])}, pilot=range(4))
    below = Finding("study", "effect", down, down.below(), zone=(-inf, 0.0))
    assert below.verdict == CONFIRMED
    assert planned(below, declared, "region", 4).verdict == REFUTED
    on_edge = Finding("study", "effect", down, OPEN, zone=(-inf, 0.0))
    assert planned(on_edge, declared, "region", 4).verdict == UNDECIDED


def test_the_stable_region_is_measured_between_step_sizes(tmp_path: Path) -> None:
    """A parabola in log2 lr is within 5 % of its lowest point on a part that the cells alone do not tell."""

    def loss(count: int, lr: float, momentum: float) -> float:
        return 2.0 * (1.0 + 0.05 * (log2(lr / 0.05) / (1.2 if count == 2 else 1.4)) ** 2)

    found = verdict(tmp_path / "wide", "region", grid(loss, 3, rates=WIDE))
    assert found.verdict == CONFIRMED
    assert found.interval.mean == pytest.approx((1.4 - 1.2) / 4, rel=0.3)
    narrow = verdict(tmp_path / "narrow", "region", grid(loss, 3, rates=WIDE[3:6]))
    assert (narrow.verdict, narrow.statistic) == (UNDECIDED, "")
    assert "beyond the grid" in narrow.note


def test_one_momentum_tells_the_best_step_size_and_nothing_of_momentum(tmp_path: Path) -> None:
    surface = bowl({2: (0.025, 0.8), 5: MIDDLE}, SAME)
    place = write(tmp_path, grid(surface, momenta=(0.8,)))
    found = {j.claim.id: j.finding for j in judge(load(place))}
    assert found["lr-moves"].verdict == CONFIRMED
    assert found["lr-moves"].interval.mean == pytest.approx(-1.0, abs=0.05)
    assert (found["alpha-moves"].verdict, found["alpha-moves"].statistic) == (UNDECIDED, "")


def test_counts_with_one_step_size_do_not_hide_the_grid_of_the_others(tmp_path: Path) -> None:
    surface = bowl({1: MIDDLE, 2: (0.025, 0.8), 5: MIDDLE, 8: MIDDLE}, dict.fromkeys((1, 2, 5, 8), 1.0))
    more = grid(surface, momenta=(0.8,), rates=(0.05,), counts=(1, 8))
    found = verdict(tmp_path, "lr-moves", [*grid(surface, momenta=(0.8,)), *more])
    assert found.verdict == CONFIRMED
    assert "at 2 iterations over that at 5" in found.statistic


def test_the_best_momentum_of_the_last_step_size_is_not_that_of_the_grid(tmp_path: Path) -> None:
    surface = bowl({2: (0.05, 0.8), 5: (0.05, 0.9)}, SAME)
    assert verdict(tmp_path / "inside", "alpha-moves", grid(surface)).verdict == CONFIRMED
    found = verdict(tmp_path / "edge", "alpha-moves", grid(surface, rates=(0.0125, 0.025, 0.05)))
    assert (found.verdict, found.note) == (UNDECIDED, grid_claims.EDGE)


def test_a_busy_minute_does_not_change_the_time_of_a_step(tmp_path: Path) -> None:
    made = ladder({1: 2.0, 8: 1.5})
    for case in made:
        busy = {30: 9.0}
        total, records = 0.0, []
        for step in range(10, 101, 10):
            total += busy.get(step, 0.1)
            records.append(("time", step, {"forward": total}))
        case.records += records
        case.seconds = {"forward": total}
    write(tmp_path, made)
    assert {round(run.milliseconds or 0.0, 6) for run in load(tmp_path).studies[0].runs} == {10.0}


@pytest.mark.parametrize(
    ("others", "device", "word"),
    [(0.01, "cuda", ""), (0.5, "cuda", "up to 50%"), (None, "cuda", "do not say"), (0.01, "cpu", "on a CPU")],
)
def test_times_of_a_busy_machine_decide_nothing(others: float | None, device: str, word: str, tmp_path: Path) -> None:
    made = ladder()
    for case in made:
        case.environment = {"device": device}
    made[-1].others = others  # one run is enough
    found = verdict(tmp_path, "time", made)
    assert found.testable == (not word)
    assert found.verdict == (UNDECIDED if word else CONFIRMED)
    assert word in found.note


def test_a_seed_counts_when_its_whole_grid_has_ended(tmp_path: Path) -> None:
    """The best of the cells so far is not the best of all."""
    cases = grid(accuracy({2: 0.8, 5: 0.9}, {2: 0.1, 5: 0.1}), 3, images=True)
    whole = verdict(tmp_path / "whole", "best-accuracy", cases)
    late = next(case for case in reversed(cases) if case.fields["seed"] == 2)
    late.state = "waiting"
    part = verdict(tmp_path / "part", "best-accuracy", cases)
    assert (whole.interval.n, part.interval.n) == (3, 2)
