"""Sweeps: nothing is repeated, nothing is lost, what went wrong is said. Without processes, by a scripted engine."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from commands import said
from inexact_muon_lab.errors import LabError
from inexact_muon_lab.spec import study
from inexact_muon_lab.spec.decode import decode
from inexact_muon_lab.spec.spec import RunSpec
from inexact_muon_lab.store import curves, store
from inexact_muon_lab.store.store import Outcome
from inexact_muon_lab.sweep import listing
from inexact_muon_lab.sweep.board import Board, best, clock
from inexact_muon_lab.sweep.engines.local import LocalEngine
from inexact_muon_lab.sweep.engines.worker import OUTPUT, captured
from inexact_muon_lab.sweep.events import Broken, Done, Event, Lost, Progress
from inexact_muon_lab.sweep.execute import Stop, execute
from inexact_muon_lab.sweep.sweep import DEATHS, sweep
from lab_cases import CNN, CUSTOM, SHORT
from lab_processes import dies
from lab_stores import reproducible, run_all

BASE = {**SHORT, "problem": CNN, "optimizer": {"name": "sgd"}}
PLAN = study.plan(study.Study(name="some", base=BASE, seeds=(0, 1), grid=[{"steps": [6, 9]}]), "some.toml")
IDS = [spec.id for spec in PLAN.runs]


class Scripted:
    """Trains in this process; `script` may answer a run with another event than its end."""

    def __init__(
        self, slots: int = 2, script: Callable[[RunSpec, int], Event | None] = lambda spec, times: None
    ) -> None:
        self.slots, self.script = slots, script
        self.queue: list[tuple[RunSpec, Path]] = []
        self.given: list[str] = []
        self.stopped = self.closed = False

    def submit(self, spec: RunSpec, folder: Path) -> None:
        self.given.append(spec.id)
        self.queue.append((spec, folder))
        assert len(self.queue) <= self.slots

    def poll(self, timeout: float) -> list[Event]:
        spec, folder = self.queue.pop(0)
        scripted = self.script(spec, self.given.count(spec.id))
        return [
            Progress(spec.id, 1, 2.0),
            scripted or Done(spec.id, execute(spec, folder, stopping=lambda: self.stopped)),
        ]

    def stop(self) -> None:
        self.stopped = True

    def close(self) -> None:
        self.closed = True


def go(folder: Path, engine: Scripted, plan: study.StudyRuns = PLAN, retry: bool = False) -> dict[str, Outcome]:
    try:
        return sweep(plan, folder, lambda: engine, Console(file=io.StringIO(), width=200), retry)
    finally:
        assert engine.closed


def states(folder: Path) -> list[str]:
    return [run.state for run in store.runs(folder)]


def test_every_run_once_in_order_and_never_again(tmp_path: Path) -> None:
    engine = Scripted()
    outcomes = go(tmp_path, engine)
    assert engine.given == IDS
    assert {run: o.state for run, o in outcomes.items()} == dict.fromkeys(IDS, "finished")
    again = Scripted()
    assert go(tmp_path, again) == outcomes
    assert again.given == []


def test_any_number_of_slots_gives_the_same_bits(tmp_path: Path) -> None:
    found = []
    for slots in (1, 3):
        outcomes = go(tmp_path / str(slots), Scripted(slots))
        kept = [reproducible(tmp_path / str(slots) / "runs" / run / store.CURVES) for run in IDS]
        found.append(([outcomes[run].result for run in IDS], kept))
    assert found[0] == found[1]


def test_a_lost_run_is_given_out_again(tmp_path: Path) -> None:
    engine = Scripted(script=lambda spec, times: Lost(spec.id, "gone") if times < 3 and spec.id == IDS[1] else None)
    assert {o.state for o in go(tmp_path, engine).values()} == {"finished"}
    assert engine.given.count(IDS[1]) == 3
    assert store.find(tmp_path, IDS[1]).attempts == 3


def test_a_run_that_kills_its_workers_has_failed(tmp_path: Path) -> None:
    engine = Scripted(script=lambda spec, times: Lost(spec.id, "killed by 9") if spec.id == IDS[1] else None)
    outcomes = go(tmp_path, engine)
    assert engine.given.count(IDS[1]) == DEATHS
    assert outcomes[IDS[1]].state == "failed"
    assert outcomes[IDS[1]].error == "killed by 9, 5 times in one sweep"
    assert states(tmp_path).count("finished") == 3
    retried = Scripted()
    assert go(tmp_path, retried, retry=True)[IDS[1]].state == "finished"
    assert retried.given == [IDS[1]]


def test_something_broken_stops_the_sweep_and_loses_nothing(tmp_path: Path) -> None:
    engine = Scripted(script=lambda spec, times: Broken(spec.id, "the disk is full") if spec.id == IDS[2] else None)
    with pytest.raises(LabError, match="the disk is full"):
        go(tmp_path, engine)
    assert engine.stopped
    assert states(tmp_path) == ["finished", "finished", "waiting", "waiting"]
    again = Scripted()
    go(tmp_path, again)
    assert again.given == IDS[2:]


def test_failures_are_kept_and_retried(tmp_path: Path) -> None:
    custom = CUSTOM | {"arguments": {"fail_at": 6}}
    plan = study.plan(study.Study(name="bad", base={**BASE, "problem": custom}, grid=[{"steps": [5, 8]}]), "bad.toml")
    outcomes = go(tmp_path, Scripted(), plan)
    assert [outcomes[spec.id].state for spec in plan.runs] == ["finished", "failed"]
    assert "the data is gone" in store.find(tmp_path, plan.runs[1].id).outcome.error  # type: ignore[union-attr]
    assert go(tmp_path, Scripted(), plan) == outcomes
    retried = Scripted()
    go(tmp_path, retried, plan, retry=True)
    assert retried.given == [plan.runs[1].id]


def test_stopping_writes_checkpoints_and_resuming_gives_the_same_bits(tmp_path: Path) -> None:
    whole = go(tmp_path / "whole", Scripted())
    engine = Scripted()

    def interrupt(spec: RunSpec, times: int) -> None:
        if spec.id == IDS[1]:
            os.kill(os.getpid(), signal.SIGINT)
            engine.stop()

    engine.script = interrupt
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "parts", engine)
    assert states(tmp_path / "parts") == ["finished", "waiting", "waiting", "waiting"]
    assert (tmp_path / "parts" / "runs" / IDS[1] / store.CHECKPOINT).exists()
    resumed = go(tmp_path / "parts", Scripted())
    assert {run: o.result for run, o in resumed.items()} == {run: o.result for run, o in whole.items()}


def test_a_run_that_is_lost_while_stopping_has_not_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inexact_muon_lab.sweep.sweep.DEATHS", 1)

    def script(spec: RunSpec, times: int) -> Event | None:
        if spec.id == IDS[0]:
            os.kill(os.getpid(), signal.SIGINT)
            return None
        return Lost(spec.id, "cancelled")

    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, Scripted(script=script))
    assert states(tmp_path) == ["finished", "waiting", "waiting", "waiting"]


def test_the_second_ctrl_c_is_at_once_unless_a_job_is_patient() -> None:
    patient = Stop(patient=True)
    patient(2, None)
    patient(2, None)
    assert patient.asked
    stop = Stop()
    stop(2, None)
    assert stop.asked
    with pytest.raises(KeyboardInterrupt):
        stop(2, None)


@pytest.mark.parametrize(
    "fields",
    [
        {"optimizer": {"name": "muon", "polar": "jordon:5"}},
        {"problem": {"name": "custom", "target": "no.such:thing"}},
        {"problem": {"name": "nanogpt"}, "data": {"name": "text", "path": "/nowhere"}},
    ],
)
def test_nothing_is_written_if_a_run_could_not_start(tmp_path: Path, fields: dict[str, Any]) -> None:
    plan = study.plan(study.Study(name="bad", base={**BASE, **fields}), "bad.toml")
    with pytest.raises(LabError):
        go(tmp_path / "out", Scripted(), plan)
    assert not (tmp_path / "out").exists()


# what is shown --------------------------------------------------------------------------------------------------------


def test_lines_say_what_ended(tmp_path: Path) -> None:
    text = io.StringIO()
    sweep(PLAN, tmp_path, Scripted, Console(file=text, width=200))
    lines = text.getvalue().splitlines()
    assert len(lines) == 4
    assert lines[0].startswith(f"[1/4] {IDS[0]} finished: steps=6 seed=0 train_loss=")
    assert "accuracy=" in lines[0]


def test_the_table_shows_progress_time_left_and_the_best(tmp_path: Path) -> None:
    board = Board(PLAN, Console(file=io.StringIO()))
    board.ended[IDS[0]] = Outcome(state="finished", step=6, result={"loss": 0.5, "accuracy": 0.9})
    board.ended[IDS[1]] = Outcome(state="finished", step=6, result={"loss": 0.4, "accuracy": 0.8})
    board.running[IDS[2]] = (3, 1.25)
    board._began -= 25
    assert board.remaining() == pytest.approx(25 / (2 + 1 / 3) * (2 - 1 / 3), rel=0.01)
    shown = Console(file=io.StringIO(), width=120)
    shown.print(board.render())
    assert isinstance(shown.file, io.StringIO)
    text = shown.file.getvalue()
    assert "some: 2 of 4 runs, 0:18 left" in text
    assert "3/9" in text
    assert "1.2500" in text
    assert f"best so far: {IDS[0]} steps=6 seed=0" in text


def test_best() -> None:
    lost = Outcome(state="diverged", step=1, result={"loss": None})
    one, two = (Outcome(state="finished", step=1, result={"loss": value}) for value in (0.5, 0.4))
    assert best({"a": one, "b": two, "c": lost}) == "b"
    assert best({"c": lost}) is None


def test_clock() -> None:
    assert [clock(s) for s in (None, 5, 65, 3725)] == ["?", "0:05", "1:05", "1:02:05"]


def test_list_and_show(tmp_path: Path) -> None:
    go(tmp_path, Scripted(script=lambda spec, times: Lost(spec.id, "boom") if spec.id == IDS[3] else None))
    text = io.StringIO()
    listing.show_list(tmp_path, False, Console(file=text, width=160))
    for part in (*IDS, "finished", "failed", "3 finished, 1 failed", "6/6", "9/9", "accuracy"):
        assert part in text.getvalue()
    text = io.StringIO()
    listing.show_list(tmp_path, True, Console(file=text))
    found = json.loads(text.getvalue())
    assert [(r["id"], r["steps"], r["seed"]) for r in found] == [(s.id, s.steps, s.seed) for s in PLAN.runs]
    assert found[0]["result"]["accuracy"] <= 1
    text = io.StringIO()
    listing.show_run(tmp_path, IDS[0], Console(file=text, width=120))
    for part in ("train loss", "validation accuracy", "curves.jsonl", '"widths"', "oracle 0.", "optimizer 0."):
        assert part in text.getvalue()
    text = io.StringIO()
    listing.show_run(tmp_path, IDS[3], Console(file=text, width=120))
    assert "boom, 5 times in one sweep" in text.getvalue()


def test_the_step_of_a_running_run_comes_from_its_curves(tmp_path: Path) -> None:
    opened = store.Store(tmp_path, PLAN)
    opened.begin(IDS[0])
    opened.run_folder(IDS[0]).mkdir()
    curves.Curves(opened.run_folder(IDS[0]) / store.CURVES).append("train", 4, {"loss": 1.0})
    assert listing.records(tmp_path, *store.read(tmp_path))[0]["step"] == 4
    opened.close()


def test_sparkline() -> None:
    assert listing.sparkline([0.0, 1.0, 2.0, 7.0]) == "▁▂▃█"
    assert listing.sparkline([1.0]) == "▁"
    assert len(listing.sparkline([float(i) for i in range(1000)])) == 40


def test_the_live_table_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    monkeypatch.setattr("inexact_muon_lab.sweep.board.LIVE_EVERY", 0.0)
    sweep(PLAN, tmp_path, Scripted, Console(file=text, width=150, force_terminal=True))
    for part in ("0 of 4 runs", "3 of 4 runs", "best so far: ", "[4/4] "):
        assert part in text.getvalue()


def test_without_a_terminal_there_are_no_heartbeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    monkeypatch.setattr("inexact_muon_lab.sweep.board.LIVE_EVERY", 0.0)
    sweep(PLAN, tmp_path, Scripted, Console(file=text, width=150))
    assert len(text.getvalue().splitlines()) == 4
    assert "running" not in text.getvalue()


# workers --------------------------------------------------------------------------------------------------------------


def test_workers_that_never_get_ready_are_not_started_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inexact_muon_lab.sweep.engines.local.work", dies)
    engine = LocalEngine(1)
    with pytest.raises(LabError, match=r"workers exit at startup \(exit code 3\)"):
        [engine.poll(1.0) for _ in range(100)]
    engine.close()


def test_what_a_run_prints_is_in_its_folder(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with captured(tmp_path / "quiet"):
        pass
    assert not (tmp_path / "quiet" / OUTPUT).exists()
    with captured(tmp_path / "loud"):
        os.write(1, b"one ")
        os.write(2, b"two")
    os.write(1, b"three")
    assert (tmp_path / "loud" / OUTPUT).read_text() == "one two"
    assert capfd.readouterr().out == "three"


# the command line -----------------------------------------------------------------------------------------------------


def test_bad_files_are_one_sentence_and_exit_code_two(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text('name = "x"\n[base]\nproblem.name = "nanogtp"\n')
    code, _, err = said("sweep", str(tmp_path / "bad.toml"), "--out", str(tmp_path / "out"))
    assert (code, err.count("\n")) == (2, 1)
    for part in ("inexact-muon: ", "bad.toml: problem.name cannot be 'nanogtp'", "did you mean 'nanogpt'"):
        assert part in err
    assert not (tmp_path / "out").exists()


def test_a_file_where_a_folder_should_be_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text('name = "s"\n[base]\nsteps = 1\nproblem.name = "matrix"\n')
    path = str(tmp_path / "study.toml")
    code, _, err = said("sweep", path, "--out", path, "--workers", "1")
    assert (code, err.count("\n")) == (2, 1)
    assert f"inexact-muon: {path}" in err


def test_list_and_show_do_not_import_torch(tmp_path: Path) -> None:
    go(tmp_path, Scripted())
    for words in (["list", tmp_path], ["show", tmp_path, IDS[0][:5]]):
        code = (
            "import sys; from inexact_muon_lab import cli\ntry: cli.main()\nfinally: assert 'torch' not in sys.modules"
        )
        line = [sys.executable, "-c", code, *map(str, words)]
        assert subprocess.run(line, capture_output=True, text=True, check=True).stdout
    assert "is not a store" in said("list", str(tmp_path / "none"))[2]


def test_unknown_engine() -> None:
    from inexact_muon_lab.sweep.commands import sweep_file

    with pytest.raises(LabError, match="unknown engine 'rya': did you mean 'ray'"):
        sweep_file(Path("x.toml"), None, (), "rya", None, "", False)
    with pytest.raises(LabError, match="--workers must be at least 1, got 0"):
        sweep_file(Path("x.toml"), None, (), "local", 0, "", False)


def test_threads() -> None:
    from inexact_muon_lab.sweep.commands import run_file

    with pytest.raises(LabError, match="--threads must be at least 1, got 0"):
        run_file(Path("x.toml"), None, (), 0, "")


def test_run_in_this_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from inexact_muon_lab.sweep.commands import run_file

    path = tmp_path / "one.toml"
    path.write_text('steps = 9\nproblem.name = "cnn"\nproblem.widths = [4, 4, 4]\nbatch = 8\n')
    run_file(path, tmp_path / "out", ["optimizer.name=sgd", "steps=7"], 1, "")
    said = capsys.readouterr().out
    assert "finished at step 7: train_loss=" in said
    (run,) = store.runs(tmp_path / "out")
    assert (run.state, run.spec.steps, type(run.spec.optimizer).__name__) == ("finished", 7, "SGD")
    assert (tmp_path / "out" / "runs" / run.id / store.CHECKPOINT).exists()
    ended = store.read_outcome(tmp_path / "out" / "runs" / run.id)
    assert ended is not None
    assert ended.step == 7


def test_the_custom_example_of_the_page_is_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of the repository; as a command it is typed by test_pages_run."""
    page = (Path(__file__).parent.parent / "docs" / "lab.md").read_text()
    code = re.search(r"```python[^\n]*\n(.*?)```", page, flags=re.DOTALL)
    table = re.search(r'```toml[^\n]*\n(name = "two-moons".*?)```', page, flags=re.DOTALL)
    assert code is not None
    assert table is not None
    assert code[1].count("\n") <= 30
    (tmp_path / "my_problem.py").write_text(code[1])
    (tmp_path / "my_study.toml").write_text(table[1])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    plan = study.load(Path("my_study.toml"), study.read_changes(["steps=40"]))
    run_all(tmp_path / "out", plan)
    assert states(tmp_path / "out") == ["finished"] * 6


def test_the_run_of_the_page_is_a_run() -> None:
    page = (Path(__file__).parent.parent / "docs" / "lab.md").read_text()
    table = re.search(r"```toml[^\n]*\n(steps = 250.*?)```", page, flags=re.DOTALL)
    assert table is not None
    found = decode(tomllib.loads(table[1]), RunSpec, "docs/lab.md")
    assert (found.evaluate_every, found.telemetry.every) == (25, 25)


def test_run_one_of_a_study_into_its_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from inexact_muon_lab.sweep.commands import run_file

    path = tmp_path / "study.toml"
    path.write_text('name = "s"\nseeds = [0, 1]\n[base]\nsteps = 3\nbatch = 8\nproblem.name = "cnn"\n')
    plan = study.load(path)
    run_file(path, tmp_path / "out", [], 1, plan.runs[1].id[:8])
    assert states(tmp_path / "out") == ["waiting", "finished"]
    assert "finished at step 3" in capsys.readouterr().out
    with pytest.raises(
        LabError, match=rf"--pick zz must be the beginning of one id .*: {plan.runs[0].id} \(seed=0\), "
    ):
        run_file(path, tmp_path / "out", [], 1, "zz")
    engine = Scripted()
    go(tmp_path / "out", engine, plan)
    assert engine.given == [plan.runs[0].id]
