"""The studies of maps: figures and page follow from the packed evidence, comparisons from the losses."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from math import log
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from inexact_muon import polar
from inexact_muon.polar import auto
from inexact_muon_lab.report.load import load
from inexact_muon_lab.spec import study
from pages import ROOT, load_module

FIGURES, STUDIES, PAGE = ROOT / "docs/figures", ROOT / "studies/maps", ROOT / "docs/which-oracle.md"
REFERENCE = ROOT / "studies/reference"
EXACT, CRUDE = "zolotarev(poles=3)", "polar-express(steps=2)"
ONE_POLE, TILT = "zolotarev(poles=1, lower=0.003)", "zolotarev(poles=3, lower=0.002, power=-0.2)"
RATES = (0.01, 0.016, 0.0256)

table = load_module(STUDIES / "table.py")
NAMES = ("compare", "defaults", "grids", "shifts", "transfer")
compare, defaults, grids, shifts, transfer = (sys.modules[name] for name in NAMES)


def parabola(lr: float, best: float, lowest: float) -> float:
    return lowest + 0.2 * log(lr / best) ** 2


def grid(best: float = 0.016, worse: float = 0.0, noise: float = 0.001, seeds: int = 4) -> Any:
    """Losses on parabolas whose lowest points are known; noise is of a seed's whole parabola, and of its oracle."""
    losses: dict[str, dict[float, dict[int, float]]] = {
        oracle: {
            lr: {s: parabola(lr, place, level + 0.01 * s + sign * noise * (-1) ** s) for s in range(seeds)}
            for lr in RATES
        }
        for oracle, place, level, sign in ((EXACT, 0.016, 1.0, 0), (CRUDE, best, 1.0 + worse, 1))
    }
    return grids.Grid(losses, {EXACT: 2.0, CRUDE: 1.0}, 2 * len(RATES) * seeds, 0.0)


SETTING = grids.Setting(study="s", label="toy", reference=EXACT, margin=0.01, matched=0.016)


def judged(made: Any, **changes: Any) -> Any:
    setting = grids.Setting(**{**{f: getattr(SETTING, f) for f in SETTING.__struct_fields__}, **changes})
    return compare.rows(setting, {"s": made})[1]


@pytest.mark.parametrize("best", [0.012, 0.016, 0.02])
def test_the_best_step_size_of_a_parabola_is_found(best: float) -> None:
    row = judged(grid(best, 0.05))
    assert row.lr == pytest.approx(best, rel=1e-3)
    assert row.shift.mean == pytest.approx(best / 0.016, rel=1e-3)
    assert row.own.mean == pytest.approx(0.05, abs=1e-4)
    assert row.matched.mean == pytest.approx(0.05 + 0.2 * log(0.016 / best) ** 2, abs=1e-4)


@pytest.mark.parametrize("best", [0.003, 0.08])
def test_a_best_step_size_at_an_end_is_open(best: float) -> None:
    """It may lie outside, where the loss is lower: neither a shift nor "worse" is known."""
    worse = judged(grid(best, 0.05))
    assert (worse.edge, worse.verdict) == (True, "open")
    assert judged(grid(0.016, 0.05)).verdict == "worse"
    inside, outside = (
        shifts._shift(
            "s", 2, 0.9, replace(made, losses=dict(zip((shifts.MANY, shifts.FEW), made.losses.values(), strict=True)))
        )
        for made in (grid(0.012), grid(best))
    )
    assert (inside.edges, inside.ratio.low is None) == (0, False)
    assert (outside.edges, outside.ratio.low, outside.ratio.high) == (4, None, None)
    assert "open: 4 of 4 seeds at an end of the grid" in table.iterations([inside, outside])


def test_times_are_of_every_oracle_of_the_table() -> None:
    found = json.loads((STUDIES / "times.json").read_text())["times"]
    assert set(json.loads((FIGURES / "maps.json").read_text())["enough"]) <= set(found)
    assert found[EXACT] == [1.0, 1.0, 1.0]
    assert all(low <= middle <= high for low, middle, high in found.values())


@pytest.mark.parametrize(
    ("worse", "noise", "seeds", "word"),
    [
        (-0.01, 0.001, 4, "better"),
        (0.0, 0.001, 4, "enough"),
        (0.005, 0.001, 4, "enough"),
        (0.02, 0.001, 4, "worse"),
        (0.0, 0.03, 4, "open"),
        (0.01, 0.001, 4, "open"),
    ],
)
def test_the_verdict_follows_the_difference_and_its_spread(worse: float, noise: float, seeds: int, word: str) -> None:
    assert judged(grid(worse=worse, noise=noise, seeds=seeds)).verdict == word


def test_no_loss_chooses_the_step_size_at_which_it_is_compared() -> None:
    made = grid()
    before = made.own(CRUDE)
    for lr in RATES:  # seed 3 alone would now choose another step size
        made.losses[CRUDE][lr][3] = parabola(lr, 0.011, 1.0)
    after = made.own(CRUDE)
    assert after[3] == pytest.approx(parabola(0.016, 0.011, 1.0))
    assert all(after[s] > before[s] for s in (0, 1, 2))


def test_a_study_of_one_step_size_is_judged_there() -> None:
    fresh = grid(0.012, 0.05)
    fresh.losses[CRUDE] = {0.012: {s: 1.05 + 0.01 * s for s in range(4)}}
    fresh.losses[EXACT] = {0.016: fresh.losses[EXACT][0.016]}
    setting = grids.Setting(study="s", label="toy", reference=EXACT, margin=0.01, tuned_by="t")
    row = compare.rows(setting, {"s": fresh})[1]
    assert (row.lr, row.own.mean) == (0.012, pytest.approx(0.05))


def test_seeds_that_lack_a_step_size_still_tell_the_others() -> None:
    made = grid(0.012, 0.05)
    whole = made.best(CRUDE, range(4)).lr
    del made.losses[CRUDE][0.0256][0], made.losses[CRUDE][0.01][1]
    assert made.best(CRUDE, range(4)).lr == pytest.approx(whole, rel=1e-9)
    assert made.seeds(CRUDE) == [2, 3]


def test_without_a_grid_of_its_own_an_oracle_is_compared_at_the_common_step_size_alone() -> None:
    made = grid(0.012, 0.05)
    del made.losses[CRUDE][0.0256]
    row = judged(made)
    assert (row.lr, row.own, row.verdict) == (None, None, "")
    # with one seed there is a best step size, but no comparison at it
    made.losses[CRUDE][0.0256] = {0: parabola(0.0256, 0.012, 1.05 + 0.001)}
    row = judged(replace(made))
    assert (row.lr, row.own, row.verdict) == (pytest.approx(0.012, rel=1e-2), None, "")
    assert row.matched.mean == pytest.approx(0.05 + 0.2 * log(0.016 / 0.012) ** 2, abs=1e-4)


def test_a_rule_is_judged_by_where_it_lands() -> None:
    made = grid(0.012, 0.05)
    named = replace(made, losses={transfer.SOURCES[0]: made.losses[EXACT], CRUDE: made.losses[CRUDE]})
    found = {one.rule: one for one in transfer.tried(named, table.spectra.load(table.SPECTRA))}
    assert found["keep"].asked == pytest.approx(0.016, rel=1e-6)
    assert found["keep"].error == pytest.approx(log(0.016 / 0.012), rel=1e-6)
    assert found["keep"].regret == pytest.approx(0.2 * log(0.016 / 0.012) ** 2, rel=1e-6)
    assert transfer.third_of_keeping(list(found.values()), "keep").mean == pytest.approx(-2 * found["keep"].regret / 3)


def test_the_committed_figures_are_those_of_the_packed_evidence(tmp_path: Path) -> None:
    found, parts = table.made(STUDIES, REFERENCE)
    assert json.loads((FIGURES / "maps.json").read_text()) == json.loads(json.dumps(found))
    for part in parts.values():
        assert part in (FIGURES / "maps.md").read_text()
    page = PAGE.read_text()
    assert table.written(page, parts) == page
    table.figure(found["kinds"]).save(tmp_path / "maps.svg")
    assert (tmp_path / "maps.svg").read_text() == (FIGURES / "maps.svg").read_text()


def rows_by_setting() -> dict[str, dict[str, Any]]:
    settings = json.loads((FIGURES / "maps.json").read_text())["settings"]
    return {name: {row["oracle"]: row for row in part["rows"]} for name, part in settings.items()}


def test_runs_that_two_studies_share_count_once() -> None:
    rows = {(one["study"], one["momentum"]) for one in json.loads((FIGURES / "maps.json").read_text())["shifts"]}
    assert ("gpt-small-region", 0.85) in rows
    assert ("gpt-small-alpha", 0.85) not in rows, "a part of the former"


def test_descent_alone_surely_predicts_better_than_keeping() -> None:
    lines = table.made(STUDIES, REFERENCE)[1]["rules"].splitlines()[2:]
    cells = {line.split(" | ")[0].strip("| "): line.strip("| ").split(" | ") for line in lines if line.startswith("|")}
    surely = [name for name, row in cells.items() if all(" to -" in row[k] for k in (2, 6))]
    assert "descent" in surely, "in error with two layers, where there are targets enough, and in regret"
    assert not {"measured", "paper", "deterministic"} & set(surely), "the other rules of the command"


def found_in(words: dict[str, str], more: tuple[str, ...] = ()) -> Any:
    rows = {kind: replace(judged(grid()), verdict=word) for kind, word in words.items()}
    return defaults.Verdicts(CRUDE, rows, (*words.values(), *more))


def test_an_oracle_is_enough_in_three_kinds_of_runs_if_it_is_worse_in_no_study() -> None:
    three = dict(zip(defaults.KINDS, ("enough", "better", "enough"), strict=False))
    assert found_in(three).passes
    assert found_in(three | {defaults.KINDS[3]: "open"}).passes
    assert not found_in(three, ("worse",)).passes
    assert not found_in(three | {defaults.KINDS[0]: "open"}).passes


def test_auto_takes_what_the_study_finds_enough() -> None:
    """Plain `auto` is fast if the study finds everything enough that it takes, on CPUs and on accelerators."""
    found = json.loads((FIGURES / "maps.json").read_text())["enough"]
    enough = {polar.parse(oracle): passes for oracle, passes in found.items()}
    shapes = [(n, m, kind) for n in (8, 96, 192, 768, 4096) for m in (n, 4 * n) for kind in ("cpu", "cuda")]
    fast = {replace(polar.Auto("fast").at(*shape), dtype=None) for shape in shapes}
    assert polar.parse(ONE_POLE) in fast
    assert auto.AUTO_TARGET == ("fast" if all(enough[method] for method in fast) else "accurate")
    for accurate in (EXACT, "polar-express(steps=5)"):
        assert found[accurate]
    for shape in shapes:
        chosen = polar.Auto("accurate").at(*shape)
        assert chosen.error_bound(1e-3) <= polar.parse("polar-express(steps=5)").error_bound(1e-3)


def test_every_packed_study_is_declared_and_has_a_file() -> None:
    settings = {s.study: s for s in grids.declared(STUDIES / "declared.toml")}
    files = (path for path in STUDIES.glob("*.toml") if path.stem != "declared")
    plans = {plan.name: plan for plan in map(study.load, files)}
    for packed in load(STUDIES).studies:
        assert packed.name in settings
        assert {run.id for run in packed.runs} <= {run.id for run in plans[packed.name].runs}


def test_step_sizes_of_the_fresh_seeds_are_those_of_the_first_study() -> None:
    """Within a tenth: they were fitted before its last runs."""
    first = next(s for s in load(STUDIES).studies if s.name == "maps-tiny-tuning")
    tuning = grids.grid(first.runs)
    for run in study.load(STUDIES / "tiny.toml").runs:
        options: Any = run.optimizer
        assert grids.lowest(tuning.means(options.polar)).lr == pytest.approx(options.lr, rel=0.1)


def test_losses_are_means_over_the_runs() -> None:
    """One number of the table, by hand."""
    setting = grids.declared(STUDIES / "declared.toml")[0]
    runs = next(s for s in load(STUDIES).studies if s.name == setting.study).runs
    at = [r for r in runs if r.lr == setting.matched]
    oracle = "polar-express(steps=5)"
    mine, theirs = (
        {r.seed: r.value("loss") for r in at if r.spec.optimizer.polar == o} for o in (oracle, setting.reference)
    )
    row = next(
        r
        for r in json.loads((FIGURES / "maps.json").read_text())["settings"][setting.study]["rows"]
        if r["oracle"] == oracle
    )
    assert row["matched"]["mean"] == pytest.approx(
        fmean(mine[s] - theirs[s] for s in mine.keys() & theirs.keys()), abs=1e-5
    )
