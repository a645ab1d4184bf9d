"""Small stores of real runs, swept in this process, and ways to damage them."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from inexact_muon_lab.errors import LabError
from inexact_muon_lab.spec import study
from inexact_muon_lab.spec.spec import RunSpec
from inexact_muon_lab.store import curves, store
from inexact_muon_lab.sweep.events import Broken, Done, Event
from inexact_muon_lab.sweep.execute import execute
from inexact_muon_lab.sweep.sweep import sweep

BASE = {
    "steps": 6,
    "batch": 2,
    "record_every": 2,
    "evaluate_every": 3,
    "checkpoint_every": 2,
    "validation": 1,
    "problem": {"name": "matrix", "rows": 3, "columns": 2},
    "optimizer": {"name": "muon", "lr": 0.1, "polar": "polar-express:2"},
}
PLAN = study.plan(study.Study(name="small", title="Small runs", base=BASE, seeds=(0, 1, 2)), "small.toml")
IDS = [spec.id for spec in PLAN.runs]


class Here:
    """An engine that trains in this process, when asked what has happened."""

    slots = 1

    def __init__(self, stopping: Callable[[], bool] = lambda: False) -> None:
        self.stopping = stopping
        self.job: tuple[RunSpec, Path] | None = None

    def submit(self, spec: RunSpec, folder: Path) -> None:
        self.job = spec, folder

    def poll(self, timeout: float) -> list[Event]:
        if self.job is None:
            return []
        (spec, folder), self.job = self.job, None
        try:
            return [Done(spec.id, execute(spec, folder, stopping=self.stopping))]
        except LabError as error:
            return [Broken(spec.id, str(error))]

    def stop(self) -> None:
        pass

    def close(self) -> None:
        pass


def run_all(folder: Path, plan: study.StudyRuns = PLAN, retry: bool = False) -> list[str]:
    """Sweeps; the warnings that it gave."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        sweep(plan, folder, Here, Console(file=io.StringIO(), width=120), retry)
    return [str(one.message) for one in seen]


def half(folder: Path, run: RunSpec = PLAN.runs[0], steps: int = 4) -> None:
    """A run that was stopped after so many steps, with a checkpoint."""
    left = steps

    def stopping() -> bool:
        nonlocal left
        left -= 1
        return left == 0

    assert execute(run, store.run_folder(folder, run.id), stopping=stopping) is None


def listed(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """State, step, result, skipped steps and curves (without times) of every run, and the warnings about them."""
    found: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for run in store.runs(folder):
            try:
                curves = [r for r in store.read_curves(folder, run.id, run.outcome) if r["kind"] != "time"]
            except LabError as error:
                warnings.warn(str(error), stacklevel=1)
                continue
            outcome = run.outcome and (run.outcome.step, run.outcome.result, run.outcome.skipped)
            found[run.id] = (run.state, outcome, curves if run.outcome else None)
    return found, [str(one.message) for one in seen]


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def reproducible(path: Path) -> list[curves.Record]:
    """The records of a file of curves without wall times, which are bitwise reproducible."""
    return [record for record in curves.read(path) if record["kind"] != "time"]
