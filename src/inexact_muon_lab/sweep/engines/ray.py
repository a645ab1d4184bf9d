"""A Ray cluster, with one task per run; lost runs are resubmitted."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from inexact_muon_lab.errors import LabError
from inexact_muon_lab.extras import require
from inexact_muon_lab.spec.spec import RunSpec
from inexact_muon_lab.sweep.engines.remote import prepare, store_answer, train_remotely
from inexact_muon_lab.sweep.events import Event, Lost


class RayEngine:
    """Tasks of one CPU each, and of one GPU if the run requests "cuda".

    They run on the cluster at `address`, or on the one running here, or on a new one. The package must be installed on
    every node. Default: as many runs at once as the cluster has CPUs.
    """

    def __init__(self, slots: int | None, address: str) -> None:
        self._ray = require("ray", "ray")
        try:
            _check_reachable(address)
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


def _check_reachable(address: str) -> None:
    """Fail immediately if host:port is not reachable; Ray would retry for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=10).close()
