"""Events that an engine reports to the sweep."""

from __future__ import annotations

from dataclasses import dataclass

from inexact_muon.lab.store.store import Outcome


@dataclass(frozen=True)
class Progress:
    """A run has reached a step."""

    run: str
    step: int
    loss: float


@dataclass(frozen=True)
class Done:
    """A run ended; without an outcome it was stopped and resumes from its checkpoint."""

    run: str
    outcome: Outcome | None


@dataclass(frozen=True)
class Lost:
    """The process that trained a run is gone."""

    run: str
    why: str


@dataclass(frozen=True)
class Broken:
    """A run stopped for an external reason, such as a full disk; the sweep must stop."""

    run: str
    sentence: str


@dataclass(frozen=True)
class Notice:
    """A message to the user about a run that continues."""

    run: str
    sentence: str


Event = Progress | Notice | Done | Lost | Broken
