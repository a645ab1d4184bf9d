"""Worker processes on this machine, with one thread each; dead workers are replaced."""

from __future__ import annotations

import multiprocessing
import os
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from inexact_muon_lab.errors import LabError
from inexact_muon_lab.spec.spec import RunSpec
from inexact_muon_lab.sweep.engines.worker import READY, STOP, work
from inexact_muon_lab.sweep.events import Broken, Done, Event, Lost

FALSE_STARTS = 3
"""Maximum number of consecutive workers that may die before they are ready."""


@dataclass
class Worker:
    """A process, its channel, and the run it trains."""

    process: SpawnProcess
    channel: Connection[Any, Any]
    run: str | None = None
    ready: bool = False


class LocalEngine:
    """`slots` worker processes, started immediately."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._false_starts = 0
        os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        self._workers = [self._start(index) for index in range(slots)]

    def submit(self, spec: RunSpec, folder: Path) -> None:
        worker = next(w for w in self._workers if w.run is None)
        worker.run = spec.id
        self._send(worker, (spec, folder))

    def poll(self, timeout: float) -> list[Event]:
        ready = wait([thing for w in self._workers for thing in (w.channel, w.process.sentinel)], timeout)
        events: list[Event] = []
        for index, worker in enumerate(self._workers):
            self._read(worker, events)  # including messages sent before it died
            if worker.process.sentinel in ready:
                events += self._remove(worker)
                self._workers[index] = self._start(index)
        return events

    def stop(self) -> None:
        for worker in self._workers:
            self._send(worker, STOP)

    def close(self) -> None:
        for worker in self._workers:
            worker.process.kill()  # an idle one has nothing to lose
        for worker in self._workers:
            worker.process.join()
            worker.channel.close()

    def _read(self, worker: Worker, events: list[Event]) -> None:
        try:
            while worker.channel.poll():
                message = worker.channel.recv()
                if message == READY:
                    worker.ready, self._false_starts = True, 0
                    continue
                events.append(message)
                if isinstance(message, Done | Broken):
                    worker.run = None
        except (EOFError, OSError):
            worker.process.join(1)  # it is ending; wait for its exit code
            worker.process.kill()

    def _remove(self, worker: Worker) -> list[Event]:
        worker.process.join()
        worker.channel.close()
        code = worker.process.exitcode
        if not worker.ready:
            self._false_starts += 1
            if self._false_starts >= FALSE_STARTS:
                raise LabError(
                    f"workers exit at startup (exit code {code}); check that `python -c 'import torch'` works"
                )
        return [] if worker.run is None else [Lost(worker.run, f"its worker died with exit code {code}")]

    @staticmethod
    def _send(worker: Worker, message: Any) -> None:
        with suppress(OSError):  # a dead worker is detected by the next poll
            worker.channel.send(message)

    @staticmethod
    def _start(index: int) -> Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs, index))
        process.start()
        theirs.close()
        return Worker(process, ours)
