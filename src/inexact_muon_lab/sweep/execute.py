"""One run in its folder, stopped by Ctrl-C: used by workers, cluster tasks and `inexact-muon run`."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import msgspec

from inexact_muon_lab import data, problems
from inexact_muon_lab.errors import LabError, writing
from inexact_muon_lab.spec.spec import Custom, RunSpec
from inexact_muon_lab.store import curves
from inexact_muon_lab.store.files import Lock, tidy
from inexact_muon_lab.store.outcome import CHECKPOINT, CURVES, Outcome, checked_outcome, write_outcome
from inexact_muon_lab.train import optimizers
from inexact_muon_lab.train.trainer import Report, train

PATIENCE = 60.0
"""Seconds to wait for a process of a killed sweep to exit, which it does at its next step."""


def execute(
    spec: RunSpec,
    folder: Path,
    report: Report = lambda step, loss: None,
    stopping: Callable[[], bool] = lambda: False,
    keep: bool = False,
    patience: float = PATIENCE,
) -> Outcome | None:
    """Train unless the folder has an outcome; an exception in training gives the outcome "failed".

    Returns None if interrupted by `stopping`. Files that cannot be read or written raise: they are not the run's fault.

    Args:
        keep: keep the final weights, as a checkpoint.
        patience: seconds to wait for another process that trains in this folder.
    """
    if int(os.environ.get("RANK", "0")) > 0:  # only torchrun's first process writes
        return checked_outcome(folder, spec.id) or train(spec, folder, report, stopping)
    reached = 0

    def note(step: int, loss: float) -> None:
        nonlocal reached
        reached = step
        report(step, loss)

    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with Lock(folder / "lock", f"another process trains in {folder}; wait for it to end", patience):
        tidy(folder)
        outcome = checked_outcome(folder, spec.id)
        if outcome is None:
            try:
                outcome = train(spec, folder, note, stopping, keep)
            except LabError:
                raise
            except Exception:
                # JSON cannot represent lone surrogates.
                error = traceback.format_exc().encode(errors="backslashreplace").decode()
                outcome = Outcome(state="failed", step=reached, error=error)
            if outcome is not None:
                outcome = msgspec.structs.replace(outcome, run=spec.id, curves=curves.mark(folder / CURVES))
                write_outcome(folder, outcome)
        if outcome is not None and outcome.state != "failed" and not keep:
            (folder / CHECKPOINT).unlink(missing_ok=True)
        return outcome


def check(spec: RunSpec) -> None:
    """Validate what would fail at the start of a run: oracle, data, the custom function."""
    optimizers.check(spec)
    data.load(spec.data)
    if isinstance(spec.problem, Custom):
        problems.custom.resolve(spec.problem.target)


class Stop:
    """Set by the first signal; the second one interrupts immediately, unless `patient`."""

    def __init__(self, patient: bool = False) -> None:
        self.asked, self.patient = False, patient

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.asked and not self.patient:
            raise KeyboardInterrupt
        self.asked = True


@contextmanager
def interrupts(patient: bool = False) -> Iterator[Stop]:
    """Handle Ctrl-C and SIGTERM by a `Stop`, within the context."""
    stop = Stop(patient)
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
