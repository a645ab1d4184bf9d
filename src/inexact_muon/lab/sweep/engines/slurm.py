"""SLURM through submitit: one job for each run; a job that is lost is submitted again.

Partition, account, time limit and so on come from sbatch's own environment variables (SBATCH_PARTITION, ...).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from inexact_muon.lab.errors import LabError
from inexact_muon.lab.extras import require
from inexact_muon.lab.spec.spec import RunSpec
from inexact_muon.lab.sweep.engines.remote import Answer, Job, prepare, take_in, train_remotely
from inexact_muon.lab.sweep.events import Event, Lost
from inexact_muon.lab.sweep.signals import interrupts

SLOTS = 64
"""How many jobs are in the queue at once by default."""


class SlurmEngine:
    """Jobs of one task each; `cluster` is submitit's word: empty for SLURM, "local" for processes on this machine."""

    def __init__(self, slots: int | None, logs: Path, cluster: str) -> None:
        submitit = require("submitit", "slurm")
        self.slots = slots or SLOTS
        try:
            self._executor = submitit.AutoExecutor(folder=logs, cluster=cluster or "slurm")
        except (RuntimeError, ValueError) as error:
            raise LabError(f"no SLURM here: {error}") from None
        self._executor.update_parameters(name="inexact-muon", cpus_per_task=1, timeout_min=24 * 60)
        self._jobs: dict[str, tuple[Any, Path]] = {}
        self._stopped = False

    def submit(self, spec: RunSpec, folder: Path) -> None:
        """Submits a job."""
        self._executor.update_parameters(gpus_per_node=int(spec.device == "cuda"))
        with _errors_to(self._executor.folder / "controllers.txt"):
            self._jobs[spec.id] = (self._executor.submit(train, prepare(spec, folder)), folder)

    def poll(self, timeout: float) -> list[Event]:
        """Jobs that have ended."""
        until = time.monotonic() + timeout
        while not (ended := [run for run, (job, _) in self._jobs.items() if self._stopped or job.done()]):
            if time.monotonic() >= until:
                return []
            time.sleep(0.05)
        return [self._end(run) for run in ended]

    def stop(self) -> None:
        """Cancels the jobs and does not wait for them: until one has ended it holds the lock of its run."""
        self._stopped = True
        for job, _ in self._jobs.values():
            job.cancel()

    def close(self) -> None:
        """Leaves no job behind."""
        self.stop()

    def _end(self, run: str) -> Event:
        job, folder = self._jobs.pop(run)
        try:
            # For the result of a cancelled job submitit would wait a quarter of a minute.
            return take_in(run, folder, Answer() if self._stopped else job.result())
        except Exception as error:  # submitit raises its own and whatever the job raised
            return Lost(run, f"its job {job.job_id} was lost ({type(error).__name__})")


def train(job: Job) -> Answer:
    """Runs there; Ctrl-C or a cancelled job ends the run with a checkpoint, if there is time."""
    with interrupts(patient=True) as stop:
        return train_remotely(job, lambda: stop.asked)


@contextmanager
def _errors_to(path: Path) -> Iterator[None]:
    """A process started meanwhile has this file as its standard error: submitit's die of Ctrl-C in many lines."""
    kept = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
