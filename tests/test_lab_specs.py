"""A spec is a value: equal files name equal runs, defaults are filled, and a mistake is named with what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inexact_muon_lab.errors import LabError
from inexact_muon_lab.spec import spec, study
from inexact_muon_lab.spec.decode import decode
from inexact_muon_lab.spec.spec import RunSpec

STUDIES = sorted(path for path in (Path(__file__).parent.parent / "studies").rglob("*.toml") if path.stem != "declared")
GPT: dict[str, Any] = {"problem": {"name": "nanogpt"}}


def make(**fields: Any) -> RunSpec:
    return decode({**GPT, **fields}, RunSpec, "test.toml")


def write(folder: Path, text: str) -> Path:
    path = folder / "file.toml"
    path.write_text(text)
    return path


EQUAL = [
    ({}, {"seed": 0}),
    ({}, {"steps": 250, "optimizer": {"name": "muon"}, "schedule": {}}),
    ({}, {"data": {"name": "stdlib"}}),
    ({}, {"problem": {"name": "nanogpt", "layers": 2, "width": 96}}),
    ({"optimizer": {"name": "sgd", "lr": 1}}, {"optimizer": {"lr": 1.0, "name": "sgd"}}),
]
OTHER = [
    {"seed": 1},
    {"steps": 251},
    {"optimizer": {"name": "muon", "lr": 0.051}},
    {"optimizer": {"name": "adamw"}},
    {"data": {"name": "text", "path": "a.txt"}},
    {"problem": {"name": "nanogpt", "size": "small"}},
    {"telemetry": {"every": 5}},
]


@pytest.mark.parametrize(("one", "two"), EQUAL)
def test_spelling_a_default_out_names_the_same_run(one: dict[str, Any], two: dict[str, Any]) -> None:
    assert make(**one) == make(**two)
    assert make(**one).id == make(**two).id


def test_every_field_is_in_the_id() -> None:
    assert len({make(**fields).id for fields in [{}, *OTHER]}) == len(OTHER) + 1


@pytest.mark.parametrize("fields", [{}, *OTHER])
def test_canonical_text_is_read_back(fields: dict[str, Any]) -> None:
    made = make(**fields)
    assert spec.from_json(spec.canonical(made)) == made
    assert spec.canonical(spec.from_json(spec.canonical(made))) == spec.canonical(made)


def test_the_id_is_the_same_tomorrow() -> None:
    options = {"lr": 0.05, "weight_decay": 0.0, "polar": "polar-express(steps=5, normalise=frobenius)"}
    optimizer = {"name": "muon", "adamw_lr": 0.003, **options}
    assert make(optimizer=optimizer).id == "8d96df70196c"


def test_frozen() -> None:
    with pytest.raises(AttributeError):
        make().seed = 1  # type: ignore[misc]


MISTAKES = [
    ("stps = 3", ["stps is not a field", "did you mean 'steps'?", "checkpoint_every"]),
    ("steps = 0", ["steps: expected `int` >= 1"]),
    ("steps = 'many'", ["steps: expected `int`, got `str`"]),
    ("precision = 'float3'", ["precision cannot be 'float3'", "did you mean 'float32'?", "bfloat16"]),
    ("problem.name = 'nanogtp'", ["problem.name cannot be 'nanogtp'", "did you mean 'nanogpt'?", "cnn", "custom"]),
    ("problem.size = 'tiny'", ["problem.name is missing: one of nanogpt, cnn, matrix, custom"]),
    ("[problem]\nname = 'nanogpt'\nlayer = 3", ["problem.layer is not a field", "did you mean 'layers'?", "width"]),
    ("[problem]\nname = 'nanogpt'\nsize = 'huge'", ["problem.size cannot be 'huge'", "124M, small, tiny"]),
    ("[problem]\nname = 'nanogpt'\nwidth = 97", ["problem: width 97 must be a multiple of twice the 3 heads"]),
    ("[problem]\nname = 'custom'", ["problem.target is missing"]),
    ("[problem]\nname = 'matrix'\nrows = 1", ["problem.rows: expected `int` >= 2"]),
    ("[problem]\nname = 'matrix'\nfunction = 'cubic'", ["problem.function cannot be 'cubic'", "quadratic"]),
    (
        "[problem]\nname = 'matrix'\nfunction = 'logistic'\ncondition = 3",
        ["problem: condition is a field of the quadratic"],
    ),
    ("[data]\nname = 'digits'", ["data.name: nanogpt cannot read 'digits'; one of stdlib, text, shards"]),
    ("[data]\nname = 'tex'", ["data.name cannot be 'tex'", "did you mean 'text'?"]),
    ("[optimizer]\nname = 'sgd'\npolar = 'jordan:5'", ["optimizer.polar is not a field", "momentum"]),
    ("[optimizer]\nname = 'muon'\nlr = -1.0", ["optimizer.lr: expected `float` > 0"]),
    ("[optimizer]\nname = 'adamw'\nbetas = [0.9, 1.0]", ["optimizer.betas[1]: expected `float` < 1"]),
    ("batch = 10\naccumulate = 3", ["accumulate = 3 does not divide batch = 10"]),
    ("steps = ", ["not valid TOML"]),
]


@pytest.mark.parametrize(("text", "parts"), MISTAKES)
def test_a_mistake_names_file_field_and_what_is_allowed(tmp_path: Path, text: str, parts: list[str]) -> None:
    if "problem" not in text:
        text = "problem.name = 'nanogpt'\n" + text
    path = write(tmp_path, text)
    with pytest.raises(LabError) as caught:
        spec.load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message.split("TOML")[0]
    for part in parts:
        assert part in message


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="no such file"):
        spec.load(tmp_path / "none.toml")
    with pytest.raises(LabError, match="is a folder"):
        spec.load(tmp_path)


STUDY = """
name = "two"
seeds = [0, 1]
[base]
steps = 5
problem.name = "nanogpt"
optimizer.name = "muon"
[[grid]]
optimizer.lr = [0.1, 0.2]
optimizer.momentum = [0.5, 0.9, 0.95]
"""


def test_a_grid_is_every_combination_in_order(tmp_path: Path) -> None:
    plan = study.load(write(tmp_path, STUDY))
    assert plan.varied == ("optimizer.lr", "optimizer.momentum", "seed")
    found = [tuple(study.field_of(run, field) for field in plan.varied) for run in plan.runs]
    assert found == [(lr, m, s) for lr in (0.1, 0.2) for m in (0.5, 0.9, 0.95) for s in (0, 1)]
    assert {run.steps for run in plan.runs} == {5}


def test_grids_are_joined_and_a_run_appears_once(tmp_path: Path) -> None:
    more = '[[grid]]\noptimizer.lr = [0.1]\noptimizer.momentum = [0.5]\n[[grid]]\noptimizer = [{name = "adamw"}]\n'
    plan = study.load(write(tmp_path, STUDY + more))
    assert len(plan.runs) == 12 + 2
    assert study.field_of(plan.runs[-1], "optimizer.name") == "adamw"
    assert study.field_of(plan.runs[-1], "optimizer.polar") is None


def test_no_grid_is_one_run_for_each_seed(tmp_path: Path) -> None:
    plan = study.load(write(tmp_path, STUDY.split("[[grid]]")[0]))
    assert [run.seed for run in plan.runs] == [0, 1]


def test_changes_win(tmp_path: Path) -> None:
    changes = study.read_changes(["steps=7", "data.name=text", "data.path=/some where/x", "optimizer.lr=0.5"])
    plan = study.load(write(tmp_path, STUDY), changes)
    assert {(r.steps, study.field_of(r, "optimizer.lr")) for r in plan.runs} == {(7, 0.5)}
    assert study.field_of(plan.runs[0], "data.path") == "/some where/x"
    assert len(plan.runs) == 6


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("momentum = [", "momentm = [", ["optimizer.momentm is not a field", "did you mean 'momentum'?"]),
        ("[0.1, 0.2]", "0.1", ["grid.optimizer.lr must be a list of values to try, got 0.1"]),
        ("[0.1, 0.2]", "[]", ["grid.optimizer.lr must be a list"]),
        ("seeds", "seed", ["seed is not a field", "did you mean 'seeds'?"]),
        ('"two"', '"Two words"', ["name: expected `str` matching regex"]),
        ("steps = 5", "steps = 5\nproblm = 3", ["problm is not a field", "did you mean 'problem'?"]),
    ],
)
def test_mistakes_in_a_study(tmp_path: Path, old: str, new: str, parts: list[str]) -> None:
    path = write(tmp_path, STUDY.replace(old, new))
    with pytest.raises(LabError) as caught:
        study.load(path)
    assert str(caught.value).startswith(f"{path}: ")
    for part in parts:
        assert part in str(caught.value)


def test_a_study_is_not_a_run_and_the_other_way_round(tmp_path: Path) -> None:
    path = write(tmp_path, STUDY)
    with pytest.raises(ValueError, match="inexact-muon sweep"):
        spec.load(path)
    with pytest.raises(LabError, match="inexact-muon run"):
        study.load(write(tmp_path, 'problem.name = "nanogpt"'))


@pytest.mark.parametrize("text", ["steps", "=3", ""])
def test_bad_changes(text: str) -> None:
    with pytest.raises(LabError, match="field=value"):
        study.read_changes([text])


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_runs_are_the_distinct_combinations(seeds: list[int], steps: list[int]) -> None:
    made = study.Study(name="x", base=GPT, seeds=tuple(seeds), grid=[{"steps": steps}])
    plan = study.plan(made, "x.toml")
    assert len(plan.runs) == len(set(seeds)) * len(set(steps))
    assert len({run.id for run in plan.runs}) == len(plan.runs)


@pytest.mark.parametrize("path", STUDIES, ids=lambda p: p.stem)
def test_shipped_studies_expand(path: Path) -> None:
    plan = study.load(path)
    assert plan.runs
    assert plan.title
    assert plan.figure
