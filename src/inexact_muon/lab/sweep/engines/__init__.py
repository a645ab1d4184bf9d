"""Engines: where runs are trained. Each is given runs, and tells what became of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from inexact_muon.lab.spec.spec import RunSpec
from inexact_muon.lab.sweep.engines.local import LocalEngine
from inexact_muon.lab.sweep.engines.ray import RayEngine
from inexact_muon.lab.sweep.engines.slurm import SlurmEngine
from inexact_muon.lab.sweep.events import Event


class Engine(Protocol):
    """A number of slots, each training one run at a time in that run's folder."""

    slots: int

    def submit(self, spec: RunSpec, folder: Path) -> None:
        """Starts a run; there is a free slot."""

    def poll(self, timeout: float) -> list[Event]:
        """What has happened; waits so many seconds for something to happen."""

    def stop(self) -> None:
        """Asks every run to write a checkpoint and to end; a `Done` without outcome or a `Lost` follows for each."""

    def close(self) -> None:
        """Ends everything, at once."""


@dataclass(frozen=True)
class EngineOptions:
    """What the command line says about engines."""

    workers: int | None
    address: str = ""
    logs: Path = Path("submitit")


ENGINES: dict[str, Callable[[EngineOptions], Engine]] = {
    "local": lambda options: LocalEngine(options.workers or 1),
    "ray": lambda options: RayEngine(options.workers, options.address),
    "slurm": lambda options: SlurmEngine(options.workers, options.logs, options.address),
}
