"""Events that an engine reports to the sweep."""

from __future__ import annotations

from dataclasses import dataclass

from inexact_muon_lab.store.store import Outcome


@dataclass(frozen=True)
class Event:
    """Something that happened to a run."""

    run: str


@dataclass(frozen=True)
class Progress(Event):
    """A run has reached a step."""

    step: int
    loss: float


@dataclass(frozen=True)
class Done(Event):
    """A run ended; without an outcome it was stopped and resumes from its checkpoint."""

    outcome: Outcome | None


@dataclass(frozen=True)
class Lost(Event):
    """The process that trained a run is gone."""

    why: str


@dataclass(frozen=True)
class Broken(Event):
    """A run stopped for an external reason, such as a full disk; the sweep must stop."""

    sentence: str


@dataclass(frozen=True)
class Notice(Event):
    """A message to the user about a run that continues."""

    sentence: str
