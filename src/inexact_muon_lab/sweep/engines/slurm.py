"""SLURM through submitit, with one job per run; lost jobs are resubmitted.

Partition, account, time limit etc. come from sbatch's environment variables (SBATCH_PARTITION, ...).
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from inexact_muon_lab.errors import LabError
from inexact_muon_lab.extras import require
from inexact_muon_lab.spec.spec import RunSpec
from inexact_muon_lab.sweep.engines.remote import Answer, Job, prepare, store_answer, train_remotely
from inexact_muon_lab.sweep.engines.worker import redirected
from inexact_muon_lab.sweep.events import Event, Lost
from inexact_muon_lab.sweep.signals import interrupts

SLOTS = 64
"""Default number of jobs in the queue."""


class SlurmEngine:
    """Jobs of one task each; `cluster` as in submitit: empty for SLURM, "local" for processes on this machine."""

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
        self._executor.update_parameters(gpus_per_node=int(spec.device == "cuda"))
        # submitit's processes print long tracebacks on Ctrl-C.
        with (self._executor.folder / "controllers.txt").open("ab") as file, redirected(file, 2):
            self._jobs[spec.id] = (self._executor.submit(train, prepare(spec, folder)), folder)

    def poll(self, timeout: float) -> list[Event]:
        until = time.monotonic() + timeout
        while not (ended := [run for run, (job, _) in self._jobs.items() if self._stopped or job.done()]):
            if time.monotonic() >= until:
                return []
            time.sleep(0.05)
        return [self._end(run) for run in ended]

    def stop(self) -> None:
        """Cancel the jobs without waiting; a job holds the lock of its run until it has ended."""
        self._stopped = True
        for job, _ in self._jobs.values():
            job.cancel()

    def close(self) -> None:
        self.stop()

    def _end(self, run: str) -> Event:
        job, folder = self._jobs.pop(run)
        try:
            # submitit would wait 15 seconds for the result of a cancelled job.
            return store_answer(run, folder, Answer() if self._stopped else job.result())
        except Exception as error:  # errors of submitit and of the job
            return Lost(run, f"its job {job.job_id} was lost ({type(error).__name__})")


def train(job: Job) -> Answer:
    """Runs in the job; on Ctrl-C or cancellation it writes a checkpoint, if there is time."""
    with interrupts(patient=True) as stop:
        return train_remotely(job, lambda: stop.asked)
