"""Engines that train runs and report events."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from inexact_muon_lab.spec.spec import RunSpec
from inexact_muon_lab.sweep.engines.local import LocalEngine as LocalEngine
from inexact_muon_lab.sweep.engines.remote import RayEngine, SlurmEngine
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


ENGINES: dict[str, Callable[[int | None, str, Path], Engine]] = {
    "local": lambda workers, address, logs: LocalEngine(workers or 1),
    "ray": lambda workers, address, logs: RayEngine(workers, address),
    "slurm": lambda workers, address, logs: SlurmEngine(workers, logs, address),
}
"""Name -> engine with that many workers, at the address of the command line; SLURM's logs go to the folder."""
