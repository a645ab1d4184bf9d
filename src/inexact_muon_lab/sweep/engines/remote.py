"""Runs on other machines: tasks of a Ray cluster, or jobs of SLURM through submitit; lost runs are resubmitted.

A run trains in the store if the file system is shared, else in a temporary folder that is sent back. Partition, account
and time limit of SLURM come from sbatch's environment variables (SBATCH_PARTITION, ...).
"""

from __future__ import annotations

import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, TypeAlias

import torch

from inexact_muon_lab.errors import LabError
from inexact_muon_lab.extras import require
from inexact_muon_lab.spec.spec import RunSpec
from inexact_muon_lab.store.files import replace
from inexact_muon_lab.store.store import CURVES, OUTCOME, read_outcome
from inexact_muon_lab.sweep.engines.worker import redirected
from inexact_muon_lab.sweep.events import Broken, Done, Event, Lost
from inexact_muon_lab.sweep.execute import execute, interrupts

TICKET = "ticket"
SLOTS = 64
"""Default number of jobs in the queue."""


@dataclass(frozen=True)
class Job:
    """A run, its folder, a token that identifies the folder, and the path of the user's modules."""

    spec: RunSpec
    folder: Path
    ticket: str
    home: str


Answer: TypeAlias = dict[str, bytes] | Broken
"""What a job sends back: the files that the store lacks, or what stops the sweep."""


def prepare(spec: RunSpec, folder: Path) -> Job:
    """The job of a run."""
    ticket = uuid.uuid4().hex
    replace(folder / TICKET, ticket.encode())
    return Job(spec, folder.absolute(), ticket, str(Path.cwd()))


def train_remotely(job: Job, stopping: Callable[[], bool] = lambda: False) -> Answer:
    """Runs on the other machine. On a shared file system checkpoints survive the loss of a machine."""
    torch.set_num_threads(1)
    if job.home not in sys.path:
        sys.path.insert(0, job.home)
    ticket = job.folder / TICKET
    try:
        if ticket.exists() and ticket.read_text() == job.ticket:
            # A job of a killed sweep may still be training: then wait for it and take its outcome.
            execute(job.spec, job.folder, stopping=stopping, patience=inf)
            return {}
        with tempfile.TemporaryDirectory() as name:
            ended = execute(job.spec, Path(name), stopping=stopping)
            return {part: (Path(name) / part).read_bytes() for part in (CURVES, OUTCOME)} if ended else {}
    except LabError as error:
        return Broken(job.spec.id, str(error))


def store_answer(run: str, folder: Path, answer: Answer) -> Event:
    """Runs on this machine: stores the files of an answer, the outcome last."""
    if isinstance(answer, Broken):
        return answer
    try:
        for name in (CURVES, OUTCOME):
            if name in answer:
                replace(folder / name, answer[name])
        return Done(run, read_outcome(folder))
    except LabError as error:
        return Broken(run, str(error))


class RayEngine:
    """Tasks of one CPU each, and of one GPU if the run requests "cuda".

    They run on the cluster at `address`, or on the one running here, or on a new one. The package must be installed on
    every node. Default: as many runs at once as the cluster has CPUs.
    """

    def __init__(self, slots: int | None, address: str) -> None:
        self._ray = require("ray", "ray")
        try:
            host, colon, port = address.rpartition(":")
            if colon and port.isdigit() and "/" not in host:  # Ray would retry for minutes
                socket.create_connection((host, int(port)), timeout=10).close()
            self._ray.init(address=address or None, log_to_driver=False, logging_level="warning")
        except (OSError, RuntimeError, ValueError) as error:
            where, why = address or "this machine", str(error).splitlines()[0]
            raise LabError(f"no Ray cluster at {where}: {why}; `ray start --head` makes one") from None
        self.slots = slots or max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        # Ray must not restart a lost task: the sweep resubmits the run.
        self._train = self._ray.remote(num_cpus=1, max_retries=0)(train_remotely)
        self._tasks: dict[Any, tuple[str, Path]] = {}

    def submit(self, spec: RunSpec, folder: Path) -> None:
        task = self._train.options(num_gpus=int(spec.device == "cuda"))
        self._tasks[task.remote(prepare(spec, folder))] = (spec.id, folder)

    def poll(self, timeout: float) -> list[Event]:
        ready, _ = self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=timeout)
        events: list[Event] = []
        for task in ready:
            run, folder = self._tasks.pop(task)
            try:
                events.append(store_answer(run, folder, self._ray.get(task)))
            except self._ray.exceptions.RayError as error:
                events.append(Lost(run, f"its Ray task was lost ({type(error).__name__})"))
        return events

    def stop(self) -> None:
        """Cancel the tasks; their runs resume from their last checkpoints."""
        for task in self._tasks:
            self._ray.cancel(task, force=True)

    def close(self) -> None:
        self._ray.shutdown()


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
            self._jobs[spec.id] = (self._executor.submit(train_in_job, prepare(spec, folder)), folder)

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

    close = stop

    def _end(self, run: str) -> Event:
        job, folder = self._jobs.pop(run)
        try:
            # submitit would wait 15 seconds for the result of a cancelled job.
            return store_answer(run, folder, {} if self._stopped else job.result())
        except Exception as error:  # errors of submitit and of the job
            return Lost(run, f"its job {job.job_id} was lost ({type(error).__name__})")


def train_in_job(job: Job) -> Answer:
    """Runs in the job; on Ctrl-C or cancellation it writes a checkpoint, if there is time."""
    with interrupts(patient=True) as stop:
        return train_remotely(job, lambda: stop.asked)
