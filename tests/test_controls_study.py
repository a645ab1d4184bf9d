"""The studies of controls: the page follows from the packed evidence, the best rates from the losses."""

from __future__ import annotations

import sys
from collections import Counter
from math import log
from pathlib import Path

import pytest
import torch

from inexact_muon_lab.errors import LabError
from inexact_muon_lab.report.arms import comparisons
from inexact_muon_lab.report.load import RunRecord, load
from inexact_muon_lab.spec import study
from inexact_muon_lab.train.trainer import train
from pages import ROOT, load_module
from report_cases import GPT, Case, write

STUDIES, PAGE = ROOT / "studies/controls", ROOT / "docs/which-oracle.md"
VARIANTS = ROOT / "studies/variants"
RATES, DECAYS = (0.01, 0.016, 0.0256, 0.041), (0.0, 0.001, 0.002, 0.004)

table = load_module(STUDIES / "table.py")
marks = sys.modules["marks"]


@pytest.mark.parametrize(("folder", "page"), [(STUDIES, PAGE), (VARIANTS, ROOT / "docs/stages.md")])
def test_the_page_is_that_of_the_packed_evidence(folder: Path, page: Path) -> None:
    text = page.read_text()
    assert marks.between(text, table.made(folder), table.COMMAND) == text


@pytest.mark.parametrize("folder", [STUDIES, VARIANTS])
def test_every_packed_study_is_that_of_a_file(folder: Path) -> None:
    plans = {plan.name: plan for plan in map(study.load, folder.glob("*.toml"))}
    for packed in load(folder).studies:
        assert {run.id for run in packed.runs} <= {run.id for run in plans[packed.name].runs}
        assert packed.compare == plans[packed.name].compare


def test_half_of_the_gain_at_its_own_lr_was_decay() -> None:
    """What the page says in words, at 250 steps."""
    found = {(one.study, one.arm): one for one in comparisons(load(STUDIES))}
    short = found["controls-decay", "s^-0.2"]
    own, controlled = short.first.loss.mean, short.controls[0].loss.mean
    assert -0.025 < own < -0.014
    assert -0.013 <= controlled <= -0.008
    assert 0.4 < 1.0 - controlled / own < 0.6
    assert short.first.moved == ["optimizer.lr", "optimizer.decay"]


def test_the_declared_rule_withdraws_the_power() -> None:
    (one,) = [one for one in comparisons(load(STUDIES)) if one.study == "controls-long-fresh"]
    assert one.first.loss.n == 8
    assert one.margin == pytest.approx(0.0025 * one.level)
    assert one.first.loss.low > -one.margin
    assert one.sentence.startswith("not better: a gain of")


def runs(folder: Path, best: tuple[float, float], missing: int = 0) -> list[RunRecord]:
    """A bowl over lr and decay whose lowest point is known; some runs of the last seed are missing."""
    made = [
        Case(
            {"problem": GPT, "seed": seed, "optimizer": {"name": "muon", "lr": lr, "decay": decay}},
            result={"loss": 1.0 + 0.2 * log(lr / best[0]) ** 2 + 1e4 * (decay - best[1]) ** 2 + 0.1 * seed},
        )
        for seed in (0, 1)
        for lr in RATES
        for decay in DECAYS
    ]
    for case in made[len(made) - missing :]:
        case.state = "waiting"
    return list(load(write(folder, made)).studies[0].runs)


@pytest.mark.parametrize(
    ("best", "edge"), [((0.02, 0.001), ""), ((0.02, 0.0), ""), ((0.02, 0.004), "decay"), ((0.005, 0.001), "lr")]
)
def test_the_best_rates_of_a_grid_and_whether_they_lie_at_its_end(
    tmp_path: Path, best: tuple[float, float], edge: str
) -> None:
    lowest = table.best(runs(tmp_path, best))
    assert lowest.edges == edge
    assert lowest.rates[1] == best[1]
    assert edge == "lr" or lowest.lr == pytest.approx(best[0], rel=1e-6)


def test_seeds_without_the_whole_grid_take_no_part_in_tuning(tmp_path: Path) -> None:
    assert table.best(runs(tmp_path, (0.02, 0.001), missing=3)).loss < 1.01, "seed 0 alone"
    with pytest.raises(LabError, match="no seed has the whole grid"):
        table.best(runs(tmp_path / "none", (0.02, 0.001), missing=17))


@pytest.mark.parametrize(("alpha", "edge"), [(0.22, False), (0.05, True), (0.6, True)])
def test_the_best_alpha_is_that_of_step_sizes_at_their_best(alpha: float, edge: bool) -> None:
    """The best lr moves with alpha, and each alpha has step sizes of its own."""
    cells = {
        (0.1 * a * factor, 1.0 - a): 1.0 + 0.2 * log(factor / 0.8) ** 2 + 0.1 * log(a / alpha) ** 2
        for a in (0.1, 0.2, 0.3, 0.5)
        for factor in (0.4, 0.64, 1.0, 1.6)
    }
    lowest = table.best_alpha(cells)
    assert lowest.edge is edge
    assert edge or lowest == (pytest.approx(alpha), pytest.approx(0.016), pytest.approx(1.0), False)


def test_the_best_alpha_is_open_where_its_step_size_is_at_an_end() -> None:
    cells = {(lr, 1.0 - a): lr + log(a / 0.2) ** 2 for a in (0.1, 0.2, 0.4) for lr in (0.01, 0.02, 0.04)}
    assert table.best_alpha(cells).edge


def test_no_seed_takes_part_in_choosing_its_own_rates(tmp_path: Path) -> None:
    """One seed of four has another best lr: it is judged at that of the others, and they at their own."""
    lowest = {0: 0.016, 1: 0.0256, 2: 0.0256, 3: 0.0256}
    cases = [
        Case(
            {"problem": GPT, "seed": seed, "optimizer": {"name": "muon", "lr": lr}},
            result={"loss": 1.0 + seed + log(lr / lowest[seed]) ** 2},
        )
        for seed in lowest
        for lr in RATES
    ]
    losses = table.by_other_seeds(list(load(write(tmp_path, cases)).studies[0].runs))
    assert losses == pytest.approx({0: 1.0 + log(1.6) ** 2, 1: 2.0, 2: 3.0, 3: 4.0})


def test_a_run_is_of_the_arm_that_says_most_about_it() -> None:
    """The variant of an arm sets what it sets, and a stage."""
    plan = study.load(ROOT / "studies/variants/tiny-fresh.toml")
    assert plan.compare is not None
    counts = Counter(arm.name for run in plan.runs if (arm := plan.compare.arm_of(run)) is not None)
    assert set(counts) == {arm.name for arm in plan.compare.arm}
    assert set(counts.values()) == {8}


def test_tuning_both_rates_takes_another_part_of_the_gain() -> None:
    """What the page says of study A."""
    found = {(one.study, one.arm): one for one in comparisons(load(STUDIES))}
    tied, tuned = found["controls-decay", "s^-0.2"], found["controls-tilts-fresh", "s^-0.2"]
    assert tuned.first.loss.n == 8
    assert tuned.first.loss.high < 0.0
    assert tied.first.loss.mean < tied.controls[0].loss.mean < tuned.first.loss.mean
    assert tuned.first.moved == ["optimizer.lr"]


def test_the_update_written_out_is_that_of_the_lab(tmp_path: Path) -> None:
    """Few steps: later ones grow what is rounded in another order."""
    written = sys.modules["written_out"]
    plan = study.load(STUDIES / "tilts-fresh.toml")
    spec = next(run for run in plan.runs if run.optimizer.lr == 0.06)
    outcome = train(written.replaced(spec, 3, 6), tmp_path)
    assert outcome is not None
    assert written.loss("polar factor", 0.06, 3, 6) == pytest.approx(outcome.result["loss"], abs=2e-5)


def test_whitening_by_the_identity_is_the_polar_factor() -> None:
    written, m = sys.modules["written_out"], torch.randn(6, 9, generator=torch.Generator().manual_seed(0))
    polar = written.EXACT(m)
    assert torch.allclose(written.whitened(m, 4.0 * torch.eye(9)), polar, atol=1e-5)
    c = torch.diag(torch.arange(1.0, 10.0))
    tilted = written.whitened(m, c)
    assert float(tilted.norm()) == pytest.approx(float(polar.norm()), rel=1e-5)
    assert not torch.allclose(tilted, polar, atol=1e-2)
