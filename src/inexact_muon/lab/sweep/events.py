"""What an engine tells the sweep."""

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
    """A run ended; without outcome it was stopped and resumes from its checkpoint."""

    run: str
    outcome: Outcome | None


@dataclass(frozen=True)
class Lost:
    """Whoever trained a run is gone."""

    run: str
    why: str


@dataclass(frozen=True)
class Broken:
    """A run could not go on for a reason outside of it, such as a full disk; the sweep must stop."""

    run: str
    sentence: str


@dataclass(frozen=True)
class Notice:
    """Something that the user should know of a run that goes on."""

    run: str
    sentence: str


Event = Progress | Notice | Done | Lost | Broken
