"""Engines that train runs and report events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from inexact_muon_lab.spec.spec import RunSpec
from inexact_muon_lab.sweep.engines.local import LocalEngine
from inexact_muon_lab.sweep.engines.ray import RayEngine
from inexact_muon_lab.sweep.engines.slurm import SlurmEngine
from inexact_muon_lab.sweep.events import Event


class Engine(Protocol):
    """A number of slots, each training one run at a time in that run's folder."""

    slots: int

    def submit(self, spec: RunSpec, folder: Path) -> None:
        """Start a run; a slot must be free."""

    def poll(self, timeout: float) -> list[Event]:
        """Events since the last call; waits up to `timeout` seconds for one."""

    def stop(self) -> None:
        """Ask every run to checkpoint and end; each then reports a `Done` without outcome or a `Lost`."""

    def close(self) -> None:
        """Terminate everything immediately."""


@dataclass(frozen=True)
class EngineOptions:
    """Engine options of the command line."""

    workers: int | None
    address: str = ""
    logs: Path = Path("submitit")


ENGINES: dict[str, Callable[[EngineOptions], Engine]] = {
    "local": lambda options: LocalEngine(options.workers or 1),
    "ray": lambda options: RayEngine(options.workers, options.address),
    "slurm": lambda options: SlurmEngine(options.workers, options.logs, options.address),
}
