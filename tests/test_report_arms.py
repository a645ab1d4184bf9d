"""Arms of a study: what moved with the winner is given to the loser, or the two are not compared."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inexact_muon.optim.decay import per_lr
from inexact_muon_lab.errors import LabError
from inexact_muon_lab.report.advice import advice
from inexact_muon_lab.report.arms import Comparison, comparisons, unmatched
from inexact_muon_lab.report.build import build as build_page
from inexact_muon_lab.report.load import load
from inexact_muon_lab.spec import study
from inexact_muon_lab.spec.arms import Arm, Compare, differences
from inexact_muon_lab.spec.decode import decode
from inexact_muon_lab.spec.optimizers import MuonSpec
from inexact_muon_lab.spec.spec import RunSpec, canonical, from_json
from inexact_muon_lab.statistics import CONFIRMED, REFUTED, UNDECIDED
from inexact_muon_lab.train.optimizers import build
from models import GPT as Model
from report_cases import GPT, Case, grid, ladder, noise, write

PLAIN, OTHER = "zolotarev(poles=3)", "zolotarev(poles=3, power=-0.2)"
SEEDS = range(6)


def optimizer(polar: str, lr: float, decay: float, **more: Any) -> dict[str, Any]:
    return {"name": "muon", "polar": polar, "lr": lr, "decay": decay, **more}


def arm(name: str, options: dict[str, Any], **more: Any) -> Arm:
    return Arm(name=name, set={"optimizer": options}, **more)


REFERENCE, CONTROL, WINNER = (
    optimizer(PLAIN, 0.06, 0.006),
    optimizer(PLAIN, 0.06, 0.004),
    optimizer(OTHER, 0.04, 0.004),
)
ARMS = (
    arm("reference", REFERENCE),
    arm("reference, decay of the other", CONTROL),
    arm("other", WINNER, against="reference", controls=("reference, decay of the other",)),
)
COMPARE = Compare(arm=ARMS, own=("optimizer.lr", "optimizer.decay"), held=("optimizer.adamw_lr",), margin=0.0025)


def cases(losses: dict[str, float], arms: tuple[Arm, ...] = ARMS, spread: float = 1.0) -> list[Case]:
    """A run for every arm and seed: the arm's loss, what seeds share, and a little that they do not."""
    return [
        Case(
            {"problem": GPT, "seed": s, **one.set},
            result={"loss": losses[one.name] + 0.1 * s + spread * noise(s, k)},
        )
        for k, one in enumerate(arms)
        for s in SEEDS
    ]


def compared(folder: Path, data: list[Case], compare: Compare = COMPARE) -> Comparison:
    (found,) = comparisons(load(write(folder, data, compare=compare)))
    return found


@pytest.mark.parametrize(
    ("control", "other", "spread", "verdict", "words"),
    [
        (2.00, 1.90, 1.0, CONFIRMED, "better than the other arm and than every control"),
        (1.90, 1.90, 1.0, REFUTED, "a gain of 0.0056 or more is excluded"),  # all of the gain is decay
        (1.80, 1.90, 1.0, REFUTED, "not better"),
        (1.95, 1.948, 20.0, UNDECIDED, "do not tell"),
    ],
)
def test_what_moves_with_the_winner_is_given_to_the_loser(
    tmp_path: Path, control: float, other: float, spread: float, verdict: str, words: str
) -> None:
    losses = {"reference": 2.0, "reference, decay of the other": control, "other": other}
    found = compared(tmp_path, cases(losses, spread=spread))
    assert found.verdict == verdict
    assert words in found.sentence
    assert "adamw_lr 0.003" in found.held


def test_without_a_control_a_gain_at_other_rates_is_open(tmp_path: Path) -> None:
    alone = msgspec.structs.replace(COMPARE, arm=(ARMS[0], arm("other", WINNER, against="reference")))
    found = compared(tmp_path, cases({"reference": 2.0, "other": 1.9}, alone.arm), alone)
    assert found.verdict == UNDECIDED
    assert found.sentence == "open: no control arm has its optimizer.lr and optimizer.decay"
    equal = (arm("reference", REFERENCE), arm("other", {**REFERENCE, "polar": OTHER}, against="reference"))
    same = compared(tmp_path / "same", cases({"reference": 2.0, "other": 1.9}, equal), Compare(arm=equal))
    assert same.verdict == CONFIRMED, "nothing moved: no control is needed"


CONFOUNDS: dict[str, dict[str, Any]] = {
    "optimizer.adamw_lr": {"optimizer": {**WINNER, "adamw_lr": 0.01}},
    "optimizer.momentum": {"optimizer": {**WINNER, "momentum": 0.9}},
    "data.name": {"data": {"name": "text", "path": "other.txt"}},
    "batch": {"batch": 64},
    "schedule.cooldown": {"schedule": {"cooldown": 0.2}},
}


@pytest.mark.parametrize("field", CONFOUNDS)
def test_arms_that_differ_in_an_undeclared_field_do_not_compare(tmp_path: Path, field: str) -> None:
    """A store with a confound: the winner's runs differ in more than the study declares."""
    losses = {"reference": 2.0, "reference, decay of the other": 2.0, "other": 1.9}
    data = cases(losses)
    for case in data:
        if case.fields["optimizer"]["polar"] == OTHER:
            case.fields |= CONFOUNDS[field]
    found = compared(tmp_path, data)
    assert found.verdict == UNDECIDED
    assert found.sentence.startswith("not comparable")
    assert field in found.sentence
    built = build_page(tmp_path, pictures=False)
    assert any(field in one.sentence for one in built.arms)
    assert found.sentence in built.page.read_text()


def test_weight_decay_tied_to_lr_counts_as_a_difference_of_decay(tmp_path: Path) -> None:
    tied = [{"name": "muon", "polar": p, "lr": lr} for p, lr in ((PLAIN, 0.06), (OTHER, 0.04))]
    arms = (arm("reference", tied[0]), arm("other", tied[1], against="reference"))
    compare = Compare(arm=arms, own=("optimizer.lr",))
    found = compared(tmp_path, cases({"reference": 2.0, "other": 1.9}, arms), compare)
    assert found.sentence.startswith("not comparable: the arms differ in optimizer.decay")
    with pytest.raises(LabError, match=r"differ in optimizer.decay.*declare it"):
        study.plan(study.Study(name="s", base={"problem": GPT}, compare=compare), "study.toml")


def test_a_field_that_runs_do_not_have_is_named() -> None:
    wrong = msgspec.structs.replace(COMPARE, held=("optimizer.momentm",))
    with pytest.raises(LabError, match=r"'optimizer.momentm' is no field of these runs.*optimizer.momentum"):
        study.plan(study.Study(name="s", base={"problem": GPT}, compare=wrong), "study.toml")


def test_other_data_or_versions_do_not_compare(tmp_path: Path) -> None:
    data = cases({"reference": 2.0, "reference, decay of the other": 2.0, "other": 1.9})
    for case in data:
        case.environment = {"data": "b" if case.fields["optimizer"]["polar"] == OTHER else "a"}
    assert compared(tmp_path, data).sentence.startswith("open: no seed has ended in other and in reference")
    problems = build_page(tmp_path, pictures=False).problems
    assert any("do not compare and are left out: data b" in line for line in problems)
    alone = (ARMS[0], arm("other", WINNER, against="reference"))
    plain = [case for case in data if case.fields["optimizer"] != CONTROL]
    found = compared(tmp_path / "alone", plain, msgspec.structs.replace(COMPARE, arm=alone))
    assert found.sentence.startswith("not comparable: the arms differ in data")


@pytest.mark.parametrize("state", ["diverged", "failed"])
@pytest.mark.parametrize("lost", [(5,), range(4)], ids=["one", "most"])
def test_divergence_of_one_arm_is_said_and_leaves_it_open(tmp_path: Path, state: str, lost: Iterable[int]) -> None:
    data = cases({"reference": 2.0, "reference, decay of the other": 2.0, "other": 1.9})
    for case in data:
        if case.fields["optimizer"] == WINNER and case.fields["seed"] in lost:
            case.state, case.result = state, {"train_loss": None}
    found = compared(tmp_path, data)
    seeds = ", ".join(map(str, lost))
    assert (found.verdict, found.sentence) == (UNDECIDED, f"open: an arm diverged or failed for seeds {seeds}")


def test_equal_losses_up_to_rounding_are_no_gain(tmp_path: Path) -> None:
    arms = (ARMS[0], arm("other", {**REFERENCE, "polar": OTHER}, against="reference"))
    data = cases({"reference": 2.0, "other": 2.0}, arms, spread=0.0)
    for case in data:
        if case.fields["optimizer"]["polar"] == OTHER:
            case.result = {"loss": (case.result["loss"] or 0.0) * (1.0 - 2e-16 * (1 + case.fields["seed"] % 2))}
    found = compared(tmp_path, data, Compare(arm=arms))
    assert (found.verdict, found.first.loss.mean) == (UNDECIDED, 0.0)


def test_two_runs_of_an_arm_and_seed_do_not_say_which_counts(tmp_path: Path) -> None:
    """Every arm was trained twice, at two rates of AdamW: whichever comes last must not be the arm."""
    losses = {"reference": 2.0, "reference, decay of the other": 2.0, "other": 1.9}
    data = cases(losses)
    again = [replace(c, fields=c.fields | {"optimizer": c.fields["optimizer"] | {"adamw_lr": 0.01}}) for c in data]
    found = compared(tmp_path, [*data, *again])
    assert found.verdict == UNDECIDED
    assert found.sentence.startswith("not comparable: the arms differ in optimizer.adamw_lr")


def test_oracles_that_differ_in_more_are_not_a_ladder_and_the_page_says_so(tmp_path: Path) -> None:
    data = ladder({1: 2.0, 8: 1.5})
    for case in data:
        case.fields["optimizer"]["weight_decay"] = 0.0 if "steps=8" in case.fields["optimizer"]["polar"] else 0.1
    results = load(write(tmp_path, data))
    (line,) = unmatched(results.studies[0])
    assert "are not compared: they differ in optimizer.weight_decay, optimizer.decay" in line
    assert line in build_page(tmp_path, pictures=False).problems
    assert unmatched(load(write(tmp_path / "plain", ladder())).studies[0]) == []


def test_advice_says_that_decay_moved_with_lr(tmp_path: Path) -> None:
    def loss(count: int, lr: float, momentum: float) -> float:
        return 2.0 + (lr != {2: 0.05, 5: 0.1}[count]) - (count == 5) * 0.0001

    assert any("weight decay is tied to lr" in line for line in advice(load(write(tmp_path, grid(loss)))))


def test_a_study_of_arms_trains_them_seed_by_seed_and_its_store_keeps_the_declaration(tmp_path: Path) -> None:
    written = study.Study(name="s", base={"problem": GPT, "steps": 100}, seeds=(3, 1), compare=COMPARE)
    plan = study.plan(written, "study.toml")
    assert [run.seed for run in plan.runs] == [3, 3, 3, 1, 1, 1]
    losses = {"reference": 2.0, "reference, decay of the other": 2.0, "other": 1.9}
    results = load(write(tmp_path, cases(losses), compare=COMPARE))
    assert results.studies[0].compare == COMPARE
    assert not results.studies[0].redeclared
    changed = msgspec.structs.replace(COMPARE, margin=0.0)
    assert load(write(tmp_path, cases(losses), compare=changed)).studies[0].redeclared, "after runs had ended"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"arm": (ARMS[0], ARMS[0])}, "two arms have one name"),
        ({"arm": (ARMS[0], arm("x", WINNER, against="nobody"))}, "which is no other arm"),
        ({"arm": (ARMS[0], arm("x", WINNER, controls=("reference",)))}, "no arm it is compared with"),
        ({"held": ("optimizer.lr",)}, "both held equal"),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        msgspec.structs.replace(COMPARE, **changes)


def test_decay_that_does_not_depend_on_lr() -> None:
    """The same strength at any lr, for matrices alone; unset, it is no part of a run's id."""
    model = Model()
    for lr in (0.02, 0.1):
        made = build(model, MuonSpec(lr=lr, decay=0.004))
        for group in made.param_groups:
            assert group["algorithm"] == "adamw" or group["lr"] * per_lr(group) == pytest.approx(0.004)
            assert group["algorithm"] != "adamw" or group["weight_decay"] in (0.0, 0.1)
    spec = decode({"problem": GPT}, RunSpec, "test")
    assert b'"decay"' not in canonical(spec)
    other = decode({"problem": GPT, "optimizer": {"name": "muon", "decay": 0.002}}, RunSpec, "test")
    assert from_json(canonical(other)) == other
    assert spec.id != other.id
    assert differences(spec, other) == {}, "0.1 x 0.02: another text, the same training"
