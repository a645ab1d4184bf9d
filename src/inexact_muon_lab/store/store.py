"""The store of a study: an index in SQLite, one folder per run.

    DIR/store.sqlite           the index: specs, states, results; written by the one sweep that holds DIR/lock
    DIR/runs/ID/curves.jsonl   curves, append-only (`curves`)
    DIR/runs/ID/checkpoint.pt  where an unfinished run resumes
    DIR/runs/ID/outcome.json   the outcome; written once, atomically, by the process that trained the run

The outcome file is authoritative and the index follows it: a sweep that was killed between the two finds the file when
it restarts, and a lost or damaged index is rebuilt from the files. Workers write only to their run's folder, so they
may be on other machines of a shared file system. Everything read has a checksum: curves by line and as a whole (in the
outcome), outcomes, specs (by the run's id). What does not match is left out with a warning, and the next sweep repeats
the run.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import msgspec

from inexact_muon_lab.errors import LabError, warn, writing
from inexact_muon_lab.spec.spec import RunSpec, canonical
from inexact_muon_lab.spec.study import DECLARED, StudyRuns
from inexact_muon_lab.store.files import Lock
from inexact_muon_lab.store.outcome import CHECKPOINT as CHECKPOINT
from inexact_muon_lab.store.outcome import CURVES as CURVES
from inexact_muon_lab.store.outcome import OUTCOME as OUTCOME
from inexact_muon_lab.store.outcome import Outcome as Outcome
from inexact_muon_lab.store.outcome import Run as Run
from inexact_muon_lab.store.outcome import checked_outcome, write
from inexact_muon_lab.store.outcome import read_outcome as read_outcome
from inexact_muon_lab.store.outcome import write_outcome as write_outcome
from inexact_muon_lab.store.reading import INDEX as INDEX
from inexact_muon_lab.store.reading import REFERENCE as REFERENCE
from inexact_muon_lab.store.reading import about as about
from inexact_muon_lab.store.reading import checksum, damaged_index, readable, reading
from inexact_muon_lab.store.reading import find as find
from inexact_muon_lab.store.reading import intact_curves as intact_curves
from inexact_muon_lab.store.reading import is_store as is_store
from inexact_muon_lab.store.reading import places as places
from inexact_muon_lab.store.reading import read as read
from inexact_muon_lab.store.reading import read_curves as read_curves
from inexact_muon_lab.store.reading import run_folder as run_folder
from inexact_muon_lab.store.reading import runs as runs

_SCHEMA = """
begin;
create table if not exists about (key text primary key, value text not null);
create table if not exists runs (
    id text primary key, position integer not null, spec text not null, state text not null,
    attempts integer not null default 0, started real, ended real, outcome text
);
commit;
"""


class Store:
    """The store of a study, opened for writing by one process at a time."""

    def __init__(self, folder: Path, plan: StudyRuns, earlier: Mapping[str, str] | None = None) -> None:
        """Open or create the store, add missing runs, and recover what a killed sweep left.

        Args:
            earlier: description of the evidence that the runs in the folder were imported from, with its declaration.
        """
        self.folder = folder
        _same_study(folder, plan)
        with writing(folder):
            (folder / "runs").mkdir(parents=True, exist_ok=True)
        taken = f"another sweep is running on {folder}; wait for it, or choose another --out"
        self._lock = Lock(folder / "lock", taken)
        try:
            with writing(folder):
                self._index = sqlite3.connect(folder / INDEX, isolation_level=None)
                self._index.text_factory = readable
                self._index.execute("pragma journal_mode = wal")
                self._index.executescript(_SCHEMA)  # an index without tables was left by a kill or a full disk
            self._add(plan, earlier or {})
            self._recover()
        except BaseException as error:
            self._lock.release()
            if isinstance(error, sqlite3.DatabaseError):
                raise damaged_index(folder / INDEX, error) from None
            raise

    def _add(self, plan: StudyRuns, earlier: Mapping[str, str]) -> None:
        texts = {"name": plan.name, "title": plan.title, "figure": plan.figure, "varied": ",".join(plan.varied)}
        texts |= self._declaration(plan, earlier)
        with self._transaction():
            self._index.executemany(
                "insert into runs (id, position, spec, state) values (?, ?, ?, 'waiting') "
                "on conflict (id) do update set position = excluded.position, spec = excluded.spec",
                [(spec.id, position, canonical(spec).decode()) for position, spec in enumerate(plan.runs)],
            )
            texts["runs"] = str(self._index.execute("select count(*) from runs").fetchone()[0])
            texts["sha256"] = checksum(texts)
            self._index.execute("delete from about")
            self._index.executemany("insert into about values (?, ?)", texts.items())

    def _declaration(self, plan: StudyRuns, earlier: Mapping[str, str]) -> dict[str, str]:
        """Declared claims and arms; a declaration that was changed after runs had ended is marked permanently."""
        known = dict(self._index.execute("select key, value from about").fetchall())
        olds = [{key: old[key] for key in (*DECLARED, "redeclared") if key in old} for old in (earlier, known)]
        new = {key: msgspec.json.encode(table, order="sorted").decode() for key, table in plan.declared.items()}
        if not new:
            return olds[0] | olds[1]
        ended = self._index.execute("select count(*) from runs where outcome is not null").fetchone()[0]
        changed = (ended or earlier) and any(old.get(key, text) != text for old in olds for key, text in new.items())
        marked = changed or any("redeclared" in old for old in olds)
        return new | ({"redeclared": "yes"} if marked else {})

    def _recover(self) -> None:
        """Update the index from the files: record ended runs; running, lost or damaged ones wait again."""
        rows = self._index.execute("select id, state, outcome from runs").fetchall()
        owners = {text: run for run, _, text in rows if text}
        for run, state, text in rows:
            outcome = checked_outcome(self.run_folder(run), run)
            if outcome is not None and owners.get(sealed := write(outcome).decode(), run) != run:
                warn(f"{self.run_folder(run)} has the outcome of run {owners[sealed]}; run {run} is repeated")
                outcome = None
            if outcome is not None:
                if (state, text) != (outcome.state, write(outcome).decode()):
                    self.end(run, outcome)
            elif state != "waiting" or text is not None:
                if state != "running":
                    warn(f"{self.run_folder(run)} has lost the files of a run that had ended; the run is repeated")
                self._repeat(run)

    def _repeat(self, run: str) -> None:
        """Remove the outcome of a run, which waits again."""
        with writing(self.folder):
            (self.run_folder(run) / OUTCOME).unlink(missing_ok=True)
        self._set(run, state="waiting", ended=None, outcome=None)

    def run_folder(self, run: str) -> Path:
        return run_folder(self.folder, run)

    def waiting(self, plan: StudyRuns) -> list[RunSpec]:
        """The unfinished runs of the plan, in order."""
        states = dict(self._index.execute("select id, state from runs").fetchall())
        return [spec for spec in plan.runs if states[spec.id] == "waiting"]

    def begin(self, run: str) -> None:
        """Record that a run has been given to a worker."""
        with self._transaction():
            self._index.execute(
                "update runs set state = 'running', outcome = null, attempts = attempts + 1, "
                "started = coalesce(started, ?) where id = ?",
                (time.time(), run),
            )

    def mark_interrupted(self, run: str) -> None:
        """Record that a run was interrupted; it resumes from its checkpoint."""
        self._set(run, state="waiting", outcome=None)

    def end(self, run: str, outcome: Outcome) -> None:
        self._set(run, state=outcome.state, ended=time.time(), outcome=write(outcome).decode())

    def retry(self) -> None:
        """Let failed runs resume from their checkpoints."""
        for (run,) in self._index.execute("select id from runs where state = 'failed'").fetchall():
            self._repeat(run)

    def close(self) -> None:
        """Fold the log into the index, so that it can be read from a read-only disk, and release the lock."""
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


def _same_study(folder: Path, plan: StudyRuns) -> None:
    """Raise if the folder belongs to another study, or its index is damaged."""
    with reading(folder / INDEX) if (folder / INDEX).exists() else nullcontext() as index:
        rows = index.execute("select value from about where key = 'name'").fetchall() if index else []
    if rows and rows[0][0] != plan.name:
        raise LabError(f"{folder} holds the study {rows[0][0]!r}, not {plan.name!r}; choose another --out")
