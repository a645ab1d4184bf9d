"""The store of a study: an index in SQLite, one folder per run.

    DIR/store.sqlite           the index: specs, states, results; written by the one sweep that holds DIR/lock
    DIR/runs/ID/curves.jsonl   curves, append-only (`curves`)
    DIR/runs/ID/checkpoint.pt  where a half-finished run resumes
    DIR/runs/ID/outcome.json   how the run ended; written once, atomically, by whoever trained it

The outcome file is the truth and the index follows: a sweep that was killed between the two finds the file when it
starts again. Workers write only in their run's folder, so they may be on other machines of a shared file system.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

from inexact_muon.lab import curves
from inexact_muon.lab.errors import LabError, writing
from inexact_muon.lab.files import Lock, replace
from inexact_muon.lab.spec import RunSpec, Section, canonical, from_json
from inexact_muon.lab.study import Plan
from inexact_muon.schedules.grammar import nearest

End = Literal["finished", "diverged", "failed"]
State = Literal["waiting", "running", "finished", "diverged", "failed"]
INDEX, LOCK, OUTCOME = "store.sqlite", "lock", "outcome.json"
CURVES, CHECKPOINT = "curves.jsonl", "checkpoint.pt"

_SCHEMA = """
create table if not exists about (key text primary key, value text not null);
create table if not exists runs (
    id text primary key, position integer not null, spec text not null, state text not null,
    attempts integer not null default 0, started real, ended real, outcome text
);
"""


class Outcome(Section, frozen=True):
    """How a run ended. `diverged` is a result: the loss stopped being finite."""

    state: End
    step: int
    result: dict[str, float | None] = msgspec.field(default_factory=dict)
    """Last value of every metric; the same bits whenever the run is repeated."""
    seconds: dict[str, float] = msgspec.field(default_factory=dict)
    """Wall time by part."""
    error: str = ""
    """Traceback of a failed run."""
    environment: dict[str, str] = msgspec.field(default_factory=dict)


class Run(Section, frozen=True):
    """One row of the index."""

    id: str
    spec: RunSpec
    state: State
    attempts: int
    started: float | None
    ended: float | None
    outcome: Outcome | None


class Store:
    """The store of a study, opened for writing by one process at a time."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        """Opens or makes the store, adds the runs it lacks, and takes in what a killed sweep left."""
        self.folder = folder
        _same_study(folder, plan)
        with writing(folder):
            (folder / "runs").mkdir(parents=True, exist_ok=True)
        self._lock = Lock(folder / LOCK, f"another sweep is running on {folder}; wait for it, or choose another --out")
        try:
            with writing(folder):
                self._index = sqlite3.connect(folder / INDEX, isolation_level=None)
                self._index.execute("pragma journal_mode = wal")
                self._index.executescript(_SCHEMA)
            self._add(plan)
            self._recover()
        except BaseException:
            self._lock.release()
            raise

    def _add(self, plan: Plan) -> None:
        about = {"name": plan.name, "title": plan.title, "figure": plan.figure, "varied": ",".join(plan.varied)}
        with self._transaction():
            self._index.executemany("insert or replace into about values (?, ?)", about.items())
            self._index.executemany(
                "insert into runs (id, position, spec, state) values (?, ?, ?, 'waiting') "
                "on conflict (id) do update set position = excluded.position",
                [(spec.id, position, canonical(spec).decode()) for position, spec in enumerate(plan.runs)],
            )

    def _recover(self) -> None:
        open_runs = "select id, state from runs where state in ('waiting', 'running')"
        for run, state in self._index.execute(open_runs).fetchall():
            found = read_outcome(self.run_folder(run))
            if found is not None:
                self.end(run, found)
            elif state == "running":
                self.give_back(run)

    def run_folder(self, run: str) -> Path:
        """Where a run keeps its curves, checkpoint and outcome."""
        return run_folder(self.folder, run)

    def waiting(self, plan: Plan) -> list[RunSpec]:
        """The runs of the plan that are still to do, in order."""
        states = dict(self._index.execute("select id, state from runs").fetchall())
        return [spec for spec in plan.runs if states[spec.id] == "waiting"]

    def begin(self, run: str) -> None:
        """Notes that a run has been given to a worker."""
        with self._transaction():
            self._index.execute(
                "update runs set state = 'running', attempts = attempts + 1, started = coalesce(started, ?) "
                "where id = ?",
                (time.time(), run),
            )

    def give_back(self, run: str) -> None:
        """Notes that a run was interrupted; it resumes from its checkpoint."""
        self._set(run, state="waiting")

    def end(self, run: str, outcome: Outcome) -> None:
        """Notes how a run ended."""
        self._set(run, state=outcome.state, ended=time.time(), outcome=msgspec.json.encode(outcome).decode())

    def retry(self) -> int:
        """Makes the failed runs wait again, from their checkpoints; says how many."""
        failed = [run for (run,) in self._index.execute("select id from runs where state = 'failed'").fetchall()]
        for run in failed:
            with writing(self.folder):
                (self.run_folder(run) / OUTCOME).unlink(missing_ok=True)
            self._set(run, state="waiting", outcome=None)
        return len(failed)

    def close(self) -> None:
        """Folds the log into the index, so that it can be read from a read-only disk, and lets others in."""
        try:
            self._index.close()
        finally:
            self._lock.release()

    def _set(self, run: str, **values: Any) -> None:
        names = ", ".join(f"{name} = ?" for name in values)
        with self._transaction():
            self._index.execute(f"update runs set {names} where id = ?", (*values.values(), run))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with writing(self.folder):
            self._index.execute("begin immediate")
            try:
                yield
                self._index.execute("commit")
            except BaseException:
                if self._index.in_transaction:
                    self._index.execute("rollback")
                raise


# reading, while a sweep runs or not -----------------------------------------------------------------------------------


def about(folder: Path) -> dict[str, str]:
    """Name, title, figure and varied fields of the study."""
    with closing(_open(folder)) as index:
        return dict(index.execute("select key, value from about").fetchall())


def runs(folder: Path) -> list[Run]:
    """Every run of a store, in the order of its study."""
    query = "select id, spec, state, attempts, started, ended, outcome from runs order by position, id"
    with closing(_open(folder)) as index:
        rows = index.execute(query).fetchall()
    try:
        return [
            Run(
                id=run,
                spec=from_json(spec),
                state=state,
                attempts=attempts,
                started=started,
                ended=ended,
                outcome=msgspec.json.decode(outcome, type=Outcome) if outcome else None,
            )
            for run, spec, state, attempts, started, ended, outcome in rows
        ]
    except msgspec.ValidationError as error:
        raise LabError(f"{folder} holds runs that this version of inexact-muon does not know: {error}") from None


def find(folder: Path, text: str) -> Run:
    """The run whose id begins with a text."""
    every = runs(folder)
    found = [run for run in every if run.id.startswith(text)]
    if len(found) != 1:
        why = f"{len(found)} runs begin" if found else "no run begins"
        raise LabError(f"{folder}: {why} with {text!r}: {nearest(text, [run.id for run in found or every][:12])}")
    return found[0]


def run_folder(folder: Path, run: str) -> Path:
    """Where a run keeps its files."""
    return folder / "runs" / run


def read_curves(folder: Path, run: str) -> list[curves.Record]:
    """The curves of a run so far."""
    return curves.read(run_folder(folder, run) / CURVES)


def read_outcome(folder: Path) -> Outcome | None:
    """How the run in this folder ended; None if it has not."""
    try:
        return msgspec.json.decode((folder / OUTCOME).read_bytes(), type=Outcome)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError:
        raise LabError(f"{folder / OUTCOME} is damaged; delete it to repeat the run") from None


def write_outcome(folder: Path, outcome: Outcome) -> None:
    """Ends the run in this folder."""
    replace(folder / OUTCOME, msgspec.json.encode(outcome))


def _open(folder: Path) -> sqlite3.Connection:
    path = folder / INDEX
    if not path.exists():
        raise LabError(f"{folder} is not a store (it has no {INDEX}); make one with `inexact-muon sweep`")
    for options in ("mode=ro", "immutable=1"):  # the second for a read-only disk, where SQLite cannot make its -shm
        index = sqlite3.connect(f"{path.absolute().as_uri()}?{options}", uri=True)
        try:
            index.execute("select count(*) from runs").fetchone()
            return index
        except sqlite3.DatabaseError as error:
            index.close()
            why = error
    raise LabError(f"{path} cannot be read: {why}")


def _same_study(folder: Path, plan: Plan) -> None:
    if (folder / INDEX).exists():
        name = about(folder).get("name", plan.name)
        if name != plan.name:
            raise LabError(f"{folder} holds the study {name!r}, not {plan.name!r}; choose another --out")
