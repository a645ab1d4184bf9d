"""The commands `run` and `sweep`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from inexact_muon._text import nearest
from inexact_muon_lab.errors import LabError
from inexact_muon_lab.spec import spec as specs
from inexact_muon_lab.spec import study
from inexact_muon_lab.spec.decode import read_toml, takes_list
from inexact_muon_lab.spec.spec import RunSpec
from inexact_muon_lab.spec.study import MOST_RUNS, StudyRuns, read_changes
from inexact_muon_lab.store.outcome import ENDED
from inexact_muon_lab.store.packing import import_packed
from inexact_muon_lab.store.store import Outcome, Store
from inexact_muon_lab.sweep.board import Board, best, figures, label, summary
from inexact_muon_lab.sweep.engines import ENGINES, Engine
from inexact_muon_lab.sweep.execute import check, execute, interrupts
from inexact_muon_lab.sweep.sweep import notice_changes, sweep
from inexact_muon_lab.terminal import console as open_console


def run_file(path: Path, out: Path | None, changes: Sequence[str], threads: int, pick: str) -> None:
    """One training run in this process, or in those of torchrun."""
    if threads < 1:
        raise LabError(f"--threads must be at least 1, got {threads}")
    torch.set_num_threads(threads)
    plan, spec = _choose(path, read_changes(changes), pick)
    folder = out or Path("runs") / (plan.name if pick else f"{plan.name}-{spec.id}")
    check(spec)
    if int(os.environ.get("RANK", "0")) > 0:
        with interrupts() as stop:
            execute(spec, folder / "runs" / spec.id, stopping=lambda: stop.asked)
        return
    console = open_console(120)
    with closing(Store(folder, plan)) as opened:
        notice_changes(_single_run(spec, plan.name), folder)
        outcome = _train(spec, opened, console)
    sentence = f"{outcome.state} at step {outcome.step}: {summary(outcome)}"
    console.print(sentence, highlight=False, soft_wrap=True)
    console.print(f"inexact-muon show {folder} {spec.id}", soft_wrap=True, highlight=False)
    if outcome.state == "failed":
        raise SystemExit(1)


def _choose(path: Path, changes: dict[str, Any], pick: str) -> tuple[StudyRuns, RunSpec]:
    """The run of a spec file, or the run of a study whose id begins with `pick`."""
    if not pick:
        try:
            spec = specs.load(path, changes)
        except LabError as error:
            raw = read_toml(path)
            if any(isinstance(value, list) and not takes_list(RunSpec, raw, field) for field, value in changes.items()):
                raise LabError(f"{error}; a run has one value; lists are for `inexact-muon sweep`") from None
            raise
        return _single_run(spec, path.stem), spec
    plan = study.load(path, changes)
    matching = [spec for spec in plan.runs if spec.id.startswith(pick)]
    if len(matching) != 1:
        known = (matching or plan.runs)[:12]
        labels = ", ".join(f"{spec.id} ({label(spec, plan.varied)})" for spec in known)
        raise LabError(f"--pick {pick} must be the beginning of one id of {path}: {labels}")
    return plan, matching[0]


def _single_run(spec: RunSpec, name: str) -> StudyRuns:
    return StudyRuns(name=name, title=name, figure="", varied=(), runs=(spec,))


def _train(spec: RunSpec, opened: Store, console: Console) -> Outcome:
    board = Board(_single_run(spec, spec.id), console)

    def report(step: int, loss: float) -> None:
        board.running[spec.id] = (step, loss)
        board.tick()

    with interrupts() as stop, board:
        opened.begin(spec.id)
        outcome = execute(spec, opened.run_folder(spec.id), report, lambda: stop.asked, keep=True)
    if outcome is None:
        opened.mark_interrupted(spec.id)
        raise KeyboardInterrupt("a checkpoint is written; the same command resumes")
    opened.end(spec.id, outcome)
    return outcome


def engine_of(name: str, workers: int | None, address: str, logs: Path, runs: int = MOST_RUNS) -> Callable[[], Engine]:
    """Factory of the engine named on the command line; the local one defaults to one worker per core."""
    if name not in ENGINES:
        raise LabError(f"unknown engine {name!r}: {nearest(name, ENGINES)}")
    if workers is not None and workers < 1:
        raise LabError(f"--workers must be at least 1, got {workers}")
    if name == "local":
        workers = min(workers or os.cpu_count() or 1, runs)
    return lambda: ENGINES[name](workers, address, logs)


def sweep_file(
    path: Path,
    out: Path | None,
    changes: Sequence[str],
    engine: str,
    workers: int | None,
    address: str,
    retry: bool,
    packed: Sequence[Path] = (),
) -> None:
    """All runs of a study."""
    engine_of(engine, workers, address, Path())  # validate the options before reading the file
    plan = study.load(path, read_changes(changes))
    folder = out or Path("runs") / plan.name
    start = engine_of(engine, workers, address, folder / "submitit", len(plan.runs))
    console = open_console(120)
    if packed:
        count = import_packed(packed, folder, plan)
        console.print(f"{count} runs that have ended are taken from {', '.join(map(str, packed))}", soft_wrap=True)
    try:
        outcomes = sweep(plan, folder, start, console, retry)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"finished runs are stored in {folder}; the same command resumes") from None
    states = [outcome.state for outcome in outcomes.values()]
    ends = ", ".join(f"{states.count(end)} {end}" for end in ENDED if end in states)
    console.print(f"{plan.name}: {len(plan.runs)} runs: {ends}", highlight=False)
    if winner := best(outcomes):
        text = label(next(s for s in plan.runs if s.id == winner), plan.varied)
        console.print(f"best: {winner} {text} {figures(outcomes[winner])}", highlight=False, soft_wrap=True)
    console.print(f"inexact-muon list {folder}", soft_wrap=True, highlight=False)
    if failed := [run for run, outcome in outcomes.items() if outcome.state == "failed"]:
        sentence = f"inexact-muon show {folder} {failed[0]} says why; --retry tries failed runs again"
        console.print(sentence, soft_wrap=True)
        raise SystemExit(1)
