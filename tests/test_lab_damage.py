"""Damage is noticed, and costs at most a run that is trained again: flipped bits, cut and missing files, bad rows."""

from __future__ import annotations

import io
import random
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

from inexact_muon_lab.errors import LabError, LabWarning
from inexact_muon_lab.problems import Task
from inexact_muon_lab.report import load
from inexact_muon_lab.spec import spec, study
from inexact_muon_lab.spec.decode import decode
from inexact_muon_lab.store import store
from inexact_muon_lab.sweep import listing
from inexact_muon_lab.sweep.execute import execute
from lab_processes import small_disk
from lab_stores import BASE, IDS, PLAN, flip, half, listed, reproducible, run_all
from test_lab_store import end
from tiers import at_length


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed") / "out"
    assert run_all(folder) == []
    return folder


@pytest.fixture
def copy(tmp_path: Path, undisturbed: Path) -> Path:
    return shutil.copytree(undisturbed, tmp_path / "out")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "2m") as folder:
        yield folder


def changed(folder: Path, statement: str, *values: Any) -> None:
    index = sqlite3.connect(folder / store.INDEX)
    index.execute(statement, values)
    index.commit()
    index.close()


# a checkpoint ---------------------------------------------------------------------------------------------------------


def result(folder: Path, run: int = 0) -> Any:
    outcome = execute(PLAN.runs[run], store.run_folder(folder, IDS[run]))
    assert outcome is not None
    lines = reproducible(store.run_folder(folder, IDS[run]) / store.CURVES)
    return outcome.state, outcome.step, outcome.result, lines


def test_a_flipped_bit_in_a_checkpoint_starts_the_run_again(tmp_path: Path, undisturbed: Path) -> None:
    rng, wanted = random.Random(0), result(undisturbed)
    half(tmp_path / "half")
    for number in range(12):
        folder = shutil.copytree(tmp_path / "half", tmp_path / str(number))
        path = store.run_folder(folder, IDS[0]) / store.CHECKPOINT
        flip(path, rng.randrange(8 * path.stat().st_size))
        with pytest.warns(LabWarning, match=r"checkpoint\.pt is damaged or cut off; the run starts again"):
            assert result(folder) == wanted


def test_a_cut_checkpoint_starts_the_run_again(tmp_path: Path, undisturbed: Path) -> None:
    wanted = result(undisturbed)
    half(tmp_path / "half")
    size = (store.run_folder(tmp_path / "half", IDS[0]) / store.CHECKPOINT).stat().st_size
    for length in (0, 1, 21, 100, size // 2, size - 72, size - 1):
        folder = shutil.copytree(tmp_path / "half", tmp_path / str(length))
        path = store.run_folder(folder, IDS[0]) / store.CHECKPOINT
        path.write_bytes(path.read_bytes()[:length])
        with pytest.warns(LabWarning, match=r"checkpoint\.pt is damaged or cut off; the run starts again"):
            assert result(folder) == wanted


def test_a_sound_checkpoint_resumes_and_torch_reads_it(tmp_path: Path, undisturbed: Path) -> None:
    half(tmp_path)
    path = store.run_folder(tmp_path, IDS[0]) / store.CHECKPOINT
    assert torch.load(path, weights_only=True)["step"] == 4
    assert result(tmp_path) == result(undisturbed)


def test_curves_that_lost_their_end_are_not_resumed(tmp_path: Path, undisturbed: Path) -> None:
    half(tmp_path)
    path = store.run_folder(tmp_path, IDS[0]) / store.CURVES
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.warns(LabWarning, match=r"curves\.jsonl is damaged or cut off; the run starts again"):
        assert result(tmp_path) == result(undisturbed)


# a store --------------------------------------------------------------------------------------------------------------


def lose_folder(folder: Path) -> None:
    shutil.rmtree(store.run_folder(folder, IDS[1]))


def damage_line(folder: Path) -> None:
    flip(store.run_folder(folder, IDS[1]) / store.CURVES, 8 * 60)


def lose_lines(folder: Path) -> None:
    path = store.run_folder(folder, IDS[1]) / store.CURVES
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def damage_outcome(folder: Path) -> None:
    path = store.run_folder(folder, IDS[1]) / store.OUTCOME
    path.write_bytes(path.read_bytes().replace(b'"step":6', b'"step":7'))


def lose_outcome(folder: Path) -> None:
    (store.run_folder(folder, IDS[1]) / store.OUTCOME).unlink()


LOSSES = [lose_folder, damage_line, lose_lines, damage_outcome, lose_outcome]


@pytest.mark.parametrize("damage", LOSSES)
def test_a_run_whose_files_are_lost_or_damaged_is_repeated(
    copy: Path, undisturbed: Path, damage: Callable[[Path], None]
) -> None:
    damage(copy)
    opened = None
    with pytest.warns(LabWarning):
        opened = store.Store(copy, PLAN)
    assert [run.id for run in opened.waiting(PLAN)] == [IDS[1]]
    opened.close()
    run_all(copy)
    assert listed(copy) == listed(undisturbed)


def test_curves_that_lost_lines_are_noticed_by_show_and_report(copy: Path) -> None:
    lose_lines(copy)
    text = io.StringIO()
    with pytest.warns(LabWarning, match=r"curves\.jsonl is damaged or cut off; the same sweep repeats the run"):
        listing.show_run(copy, IDS[1], Console(file=text, width=120))
    assert "finished" in text.getvalue()
    assert any("curves.jsonl is damaged" in line for line in load.load(copy).tables.problems)


BAD_ROWS = {
    "no number": "update runs set spec = replace(spec, '\"lr\":0.1', '\"lr\":null') where id = ?",
    "another spec": "update runs set spec = replace(spec, '\"lr\":0.1', '\"lr\":0.2') where id = ?",
    "another state": "update runs set state = 'diverged' where id = ?",
    "no state": "update runs set state = 'finisked' where id = ?",
    "another result": "update runs set outcome = replace(outcome, '\"step\":6', '\"step\":5') where id = ?",
    "no JSON": "update runs set outcome = '{' where id = ?",
    "a blob": "update runs set spec = x'ff00' where id = ?",
}


@pytest.mark.parametrize("statement", BAD_ROWS.values(), ids=BAD_ROWS)
def test_a_bad_row_is_left_out_with_a_warning_and_mended_by_a_sweep(
    copy: Path, undisturbed: Path, statement: str
) -> None:
    changed(copy, statement, IDS[1])
    with pytest.warns(LabWarning, match=rf"1 of 3 runs cannot be read and are left out \({IDS[1]}: "):
        assert [run.id for run in store.runs(copy)] == [IDS[0], IDS[2]]
    text = io.StringIO()
    with pytest.warns(LabWarning):
        listing.show_list(copy, False, Console(file=text, width=120))
    assert "2 finished" in text.getvalue()
    with pytest.warns(LabWarning):
        listing.show_run(copy, IDS[0], Console(file=text, width=120))
    found = load.load(copy)
    assert len(found.runs) == 2
    assert any("1 of 3 runs cannot be read" in line for line in found.tables.problems)
    run_all(copy)
    assert listed(copy) == listed(undisturbed)


def test_a_row_that_is_gone_is_noticed_and_found_again(copy: Path, undisturbed: Path) -> None:
    changed(copy, "delete from runs where id = ?", IDS[1])
    with pytest.warns(LabWarning, match="has lost runs or its description"):
        store.runs(copy)
    run_all(copy)
    assert listed(copy) == listed(undisturbed)


def test_a_bad_store_among_others_is_left_out_of_the_report(tmp_path: Path, undisturbed: Path) -> None:
    shutil.copytree(undisturbed, tmp_path / "good")
    shutil.copytree(undisturbed, tmp_path / "bad")
    (tmp_path / "bad" / store.INDEX).write_bytes(b"nonsense" * 1000)
    found = load.load(tmp_path)
    assert [one.folder.name for one in found.studies] == ["good"]
    assert any(line.startswith("left out: ") and "not a database" in line for line in found.tables.problems)
    with pytest.raises(LabError, match="not a database"):
        load.load(tmp_path / "bad")


def test_an_index_that_was_deleted_is_made_again_from_the_outcomes(copy: Path, undisturbed: Path) -> None:
    (copy / store.INDEX).unlink()
    before = {run: (store.run_folder(copy, run) / store.OUTCOME).stat().st_mtime_ns for run in IDS}
    assert run_all(copy) == []
    assert listed(copy) == listed(undisturbed)
    assert before == {run: (store.run_folder(copy, run) / store.OUTCOME).stat().st_mtime_ns for run in IDS}


@pytest.mark.parametrize("kind", ["empty", "without tables", "half of the tables"])
def test_an_index_without_tables_is_new(tmp_path: Path, undisturbed: Path, kind: str) -> None:
    (tmp_path / store.INDEX).touch()
    if kind != "empty":
        index = sqlite3.connect(tmp_path / store.INDEX)
        index.execute("pragma journal_mode = wal")
        if kind == "half of the tables":
            index.execute("create table about (key text primary key, value text not null)")
        index.close()
    text = io.StringIO()
    listing.show_list(tmp_path, False, Console(file=text, width=120))
    assert "no runs yet" in text.getvalue()
    assert run_all(tmp_path) == []
    assert listed(tmp_path) == listed(undisturbed)


def test_a_read_only_copy_with_a_log_is_listed_in_full(tmp_path: Path, disk: Path) -> None:
    """The log holds two of three outcomes, and there is no -shm to say so."""
    opened = store.Store(tmp_path / "live", PLAN)
    end(opened, IDS[0], store.Outcome(state="finished", step=6))
    opened.close()
    opened = store.Store(tmp_path / "live", PLAN)
    for run in IDS[1:]:
        opened.end(run, store.Outcome(state="finished", step=6))
    for name in (store.INDEX, f"{store.INDEX}-wal"):
        shutil.copyfile(tmp_path / "live" / name, disk / name)
    assert (disk / f"{store.INDEX}-wal").stat().st_size
    opened.close()
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    assert [run.state for run in store.runs(disk)] == ["finished"] * 3


# numbers that are not finite ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_a_number_that_is_not_finite_is_refused(value: float) -> None:
    raw = {"problem": {"name": "cnn"}, "optimizer": {"name": "sgd", "lr": value}}
    with pytest.raises(LabError, match=r"run\.toml: optimizer\.lr must be a finite number, got"):
        decode(raw, spec.RunSpec, "run.toml")
    custom = {"name": "custom", "target": "a:b", "arguments": {"x": [1.0, value]}}
    with pytest.raises(LabError, match=r"problem\.arguments\.x\[1\] must be a finite number"):
        decode({"problem": custom}, spec.RunSpec, "run.toml")


def test_a_grid_of_numbers_that_are_not_finite_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text('name = "s"\nbase.problem.name = "matrix"\n[[grid]]\noptimizer.lr = [inf, nan, -inf, 1.0]\n')
    with pytest.raises(LabError, match=r"grid\[0\]\.optimizer\.lr\[0\] must be a finite number, got inf"):
        study.load(path)
    path.write_text('name = "s"\nbase.problem.name = "matrix"\n')
    with pytest.raises(LabError, match=r"optimizer\.lr must be a finite number, got inf"):
        study.load(path, study.read_changes(["optimizer.lr=inf"]))


def test_values_that_a_store_would_change_are_refused() -> None:
    with pytest.raises(LabError, match=r"seed must be a whole number below 2\^63"):
        decode({"problem": {"name": "cnn"}, "seed": 2**63}, spec.RunSpec, "run.toml")
    with pytest.raises(LabError, match=r"--set .* is not valid UTF-8"):
        study.read_changes(["data.path=\udcff"])


def test_a_grid_of_a_hundred_million_runs_is_refused_at_once(tmp_path: Path) -> None:
    axis = f"[{','.join(map(str, range(1, 101)))}]"
    path = tmp_path / "study.toml"
    fields = ("steps", "batch", "record_every", "validation")
    path.write_text('name = "s"\nbase.problem.name = "matrix"\n[[grid]]\n' + "".join(f"{f} = {axis}\n" for f in fields))
    with pytest.raises(LabError, match=r"the study has 100,000,000 runs or more, at most 100,000 are allowed"):
        study.load(path)


# what is shown --------------------------------------------------------------------------------------------------------


def test_varied_arguments_of_a_custom_problem_are_shown(tmp_path: Path) -> None:
    base = {"steps": 1, "problem": {"name": "custom", "target": "lab_cases:linear"}, "optimizer": {"name": "sgd"}}
    grid = [{"problem": {"arguments": {"width": [3, 5]}}}]
    plan = study.plan(study.Study(name="widths", base=base, grid=grid), "widths.toml")
    store.Store(tmp_path, plan).close()
    assert [record["problem.arguments.width"] for record in listing.records(tmp_path, *store.read(tmp_path))] == [3, 5]


class Poisoned(nn.Module):
    """Two layers; the gradient of the first is NaN at every step, the loss is finite."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.first.weight.register_hook(lambda g: g * float("nan"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


def poisoned(seed: int, batch: int) -> Task:
    def metrics(model: nn.Module, pair: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
        return dict.fromkeys(("loss", "kind", "step"), model(pair[0]).square().mean())

    return Task(
        model=Poisoned(),
        batch=lambda step: (torch.ones(batch, 4),),
        loss=lambda model, pair: model(pair[0]).square().mean(),
        validation=lambda index: (torch.ones(batch, 4),),
        metrics=metrics,
    )


def surrogate(seed: int, batch: int) -> Task:
    raise RuntimeError("not UTF-8: \udcff")


def custom(target: str) -> study.StudyRuns:
    rules = {"name": "sign-sgd"}
    base = {**BASE, "problem": {"name": "custom", "target": f"test_lab_damage:{target}"}, "optimizer": rules}
    return study.plan(study.Study(name="custom", base=base), "custom.toml")


def test_steps_that_a_layer_skipped_are_listed(tmp_path: Path) -> None:
    plan = custom("poisoned")
    run_all(tmp_path, plan)
    (run,) = store.runs(tmp_path)
    assert run.outcome is not None
    assert (run.state, run.outcome.skipped, run.outcome.stuck) == ("finished", {"first.weight": 6}, ["first.weight"])
    text = io.StringIO()
    listing.show_list(tmp_path, False, Console(file=text, width=160))
    listing.show_run(tmp_path, run.id, Console(file=text, width=160))
    said = text.getvalue()
    assert "1 runs skipped steps of parameters whose gradient was not finite" in said
    assert "first.weight 6 of 6: it never moved" in said
    assert listing.records(tmp_path, *store.read(tmp_path))[0]["skipped"] == {"first.weight": 6}
    assert any("1 runs skipped steps" in line for line in load.load(tmp_path).tables.problems)


def test_metrics_may_have_the_names_of_a_record_s_fields(tmp_path: Path) -> None:
    run_all(tmp_path, custom("poisoned"))
    (run,) = store.runs(tmp_path)
    assert run.outcome is not None
    assert {"loss", "kind", "step"} <= run.outcome.result.keys()
    last = [r for r in store.read_curves(tmp_path, run.id, run.outcome) if r["kind"] == "validation"][-1]
    assert (last["step"], last["kind_"], last["step_"]) == (6, last["loss"], last["loss"])


def test_an_exception_with_a_lone_surrogate_is_an_outcome(tmp_path: Path) -> None:
    run_all(tmp_path, custom("surrogate"))
    (run,) = store.runs(tmp_path)
    assert run.state == "failed"
    assert run.outcome is not None
    assert r"not UTF-8: \udcff" in run.outcome.error


# many flips -----------------------------------------------------------------------------------------------------------


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)


def started(folder: Path) -> Path:
    """A store of one run that ended, one that was stopped half-way, and one that waits."""
    opened = store.Store(folder, PLAN)
    opened.begin(IDS[0])
    outcome = execute(PLAN.runs[0], store.run_folder(folder, IDS[0]))
    assert outcome is not None
    opened.end(IDS[0], outcome)
    opened.begin(IDS[1])
    half(folder, PLAN.runs[1])
    opened.close()
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("flips", at_length([80], 500))
def test_no_flipped_bit_is_silent(tmp_path: Path, undisturbed: Path, flips: int) -> None:
    """Listed before and swept after: what is shown is as it was, or there is a sentence about it."""
    rng, silent, noticed = random.Random(18), [], 0
    original = started(tmp_path / "original")
    wanted, final = listed(original)[0], listed(undisturbed)[0]
    for number in range(flips):
        folder = shutil.copytree(original, tmp_path / "flipped")
        path = rng.choice(files(folder))
        bit = rng.randrange(8 * path.stat().st_size)
        flip(path, bit)
        said: list[str] = []
        try:
            shown, said = listed(folder)
            if shown != wanted and not said:
                silent.append((number, path.name, bit, "list"))
        except LabError as error:
            said = [str(error)]
        try:
            said += run_all(folder)
        except LabError as error:
            said.append(str(error))
            (folder / store.INDEX).unlink()  # what the sentence says
            run_all(folder)
        if listed(folder) != (final, []):
            silent.append((number, path.name, bit, "sweep"))
        noticed += bool(said)
        shutil.rmtree(folder)
    assert silent == []
    assert noticed > flips // 2
