"""A run of a store and its outcome: a file with its own checksum, written once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, Protocol, TypeVar, get_args

import msgspec

from inexact_muon_lab.errors import LabError, warn
from inexact_muon_lab.spec.decode import Section
from inexact_muon_lab.spec.spec import RunSpec
from inexact_muon_lab.store import curves
from inexact_muon_lab.store.files import replace

End = Literal["finished", "diverged", "failed"]
State = Literal["waiting", "running", End]
ENDED: tuple[State, ...] = get_args(End)
MEASURED: tuple[State, ...] = ("finished", "diverged")
"""Ends that are results: a failed run says nothing about its optimizer."""
OUTCOME, CURVES, CHECKPOINT = "outcome.json", "curves.jsonl", "checkpoint.pt"


class Outcome(Section, frozen=True):
    """The outcome of a run. `diverged` is a result: the loss was no longer finite."""

    state: End
    step: int
    run: str = ""
    """The run's id; empty in outcomes that were written before they had it."""
    result: dict[str, float | None] = msgspec.field(default_factory=dict)
    """Last value of every metric; bitwise reproducible."""
    skipped: dict[str, int] = msgspec.field(default_factory=dict)
    """Parameter -> number of steps skipped because its gradient was not finite."""
    seconds: dict[str, float] = msgspec.field(default_factory=dict)
    """Wall time by part."""
    others: float | None = None
    """Share of the machine's CPU time that other processes used since the run began or was resumed; None if unknown."""
    error: str = ""
    """Traceback of a failed run."""
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    curves: curves.Mark = curves.Mark()
    """Mark of the final curves."""

    @property
    def stuck(self) -> list[str]:
        """Parameters that skipped every step."""
        return [name for name, count in self.skipped.items() if count >= self.step]


class Run(Section, frozen=True):
    """One row of the index."""

    id: str
    spec: RunSpec
    state: State
    attempts: int = 0
    started: float | None = None
    ended: float | None = None
    outcome: Outcome | None = None

    @property
    def consistent(self) -> bool:
        """Whether the state is that of the outcome; without an outcome the run has not ended."""
        return self.state in (("waiting", "running") if self.outcome is None else (self.outcome.state,))


class Ended(Protocol):
    """A run with an id and, once it has ended, an outcome."""

    @property
    def id(self) -> str: ...

    @property
    def outcome(self) -> Outcome | None: ...


R = TypeVar("R", bound=Ended)


def united(first: Iterable[R], others: Iterable[R], conflict: Callable[[R, R], None]) -> list[R]:
    """Each run once, preferring those that have ended; `conflict` is told of two that ended differently."""
    runs = {run.id: run for run in first}
    for run in others:
        known = runs.get(run.id)
        if known is None or known.outcome is None:
            runs[run.id] = run
        elif run.outcome is not None and run.outcome.result != known.outcome.result:
            conflict(known, run)
    return list(runs.values())


class Sealed(Section, frozen=True):
    """File content: the outcome, and the SHA-256 of its text."""

    outcome: msgspec.Raw
    sha256: str


def write(outcome: Outcome) -> bytes:
    """The text of an outcome with its checksum."""
    text = msgspec.json.encode(outcome)
    return msgspec.json.encode(Sealed(outcome=msgspec.Raw(text), sha256=hashlib.sha256(text).hexdigest()))


def unseal(text: bytes) -> Outcome:
    """The outcome in a text written by `write`; raises if it was changed."""
    try:
        sealed = msgspec.json.decode(text, type=Sealed)
        if hashlib.sha256(sealed.outcome).hexdigest() == sealed.sha256:
            return msgspec.json.decode(sealed.outcome, type=Outcome)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    raise LabError("its outcome is damaged")


def read_outcome(folder: Path) -> Outcome | None:
    """The outcome in this folder; None if the run has not ended."""
    path = folder / OUTCOME
    try:
        return unseal(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except LabError:
        raise LabError(f"{path} is damaged; the same sweep repeats the run") from None


def checked_outcome(folder: Path, run: str) -> Outcome | None:
    """The outcome of a run in its folder; None if it has not ended or, with a warning, if its files are not its own."""
    try:
        outcome = read_outcome(folder)
    except LabError as error:
        warn(str(error))
        return None
    if outcome is not None and outcome.run not in ("", run):
        warn(f"{folder / OUTCOME} is that of run {outcome.run}; the same sweep repeats run {run}")
        return None
    if outcome is not None and not curves.holds(folder / CURVES, outcome.curves):
        warn(f"{folder / CURVES} is damaged or cut off; the same sweep repeats the run")
        return None
    return outcome


def write_outcome(folder: Path, outcome: Outcome) -> None:
    """Write the outcome of the run in this folder."""
    replace(folder / OUTCOME, write(outcome))
