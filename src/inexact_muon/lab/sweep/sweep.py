"""A sweep: every run of a plan that has not ended, on an engine, into a store."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from inexact_muon.lab.errors import LabError, writing
from inexact_muon.lab.spec.spec import RunSpec
from inexact_muon.lab.spec.study import StudyRuns
from inexact_muon.lab.store import store
from inexact_muon.lab.store.store import Outcome, Store
from inexact_muon.lab.sweep.board import Board
from inexact_muon.lab.sweep.engines import Engine
from inexact_muon.lab.sweep.events import Broken, Done, Event, Lost, Notice, Progress
from inexact_muon.lab.sweep.execute import check
from inexact_muon.lab.sweep.signals import Stop, interrupts

DEATHS = 5
"""So many workers may die on one run in one sweep; then the run has failed."""


def sweep(
    plan: StudyRuns,
    folder: Path,
    start: Callable[[], Engine],
    console: Console,
    retry: bool = False,
    enough: Callable[[], bool] = lambda: False,
) -> dict[str, Outcome]:
    """Trains what is left of the plan; the outcomes of all its runs that have ended.

    Args:
        enough: once it says so, no further run begins, and those that have begun are trained to their end.

    Raises:
        LabError: something outside of the runs is wrong; nothing that was stored is lost.
        KeyboardInterrupt: it was interrupted; checkpoints are written unless that took too long for somebody.
    """
    with interrupts() as stop:
        engine = start()
        try:
            for spec in _different(plan):
                check(spec)
            opened = Store(folder, plan)
            try:
                return Sweep(plan, opened, engine, console).run(stop, retry, enough)
            finally:
                opened.close()
        finally:
            engine.close()


class Sweep:
    """A sweep in progress."""

    def __init__(self, plan: StudyRuns, opened: Store, engine: Engine, console: Console) -> None:
        self.plan, self.store, self.engine = plan, opened, engine
        self.board = Board(plan, console)
        self.active: dict[str, RunSpec] = {}
        self.deaths: Counter[str] = Counter()
        self.broken = ""
        self.stopping = False

    def run(self, stop: Stop, retry: bool, enough: Callable[[], bool] = lambda: False) -> dict[str, Outcome]:
        """Until nothing is left, or `stop`, or `enough`, or something is broken."""
        if retry:
            self.store.retry()
        self.left = deque(self.store.waiting(self.plan))
        ours = {spec.id for spec in self.plan.runs}
        self.board.ended = {r.id: r.outcome for r in store.runs(self.store.folder) if r.id in ours and r.outcome}
        self.board.before = len(self.board.ended)
        with self.board:
            while self.active or (self.left and not self.stopping and not enough()):
                if (stop.asked or self.broken) and not self.stopping:
                    self.stopping = True
                    self.board.note = "stopping: checkpoints are being written; Ctrl-C again to stop at once"
                    if stop.asked:
                        self.board.say(self.board.note)
                    self.engine.stop()
                while self.left and len(self.active) < self.engine.slots and not self.stopping and not enough():
                    self.begin(self.left.popleft())
                for event in self.engine.poll(0.1):
                    self.handle(event)
                self.board.tick()
        if self.broken:
            raise LabError(self.broken)
        if self.stopping:
            raise KeyboardInterrupt
        return self.board.ended

    def begin(self, spec: RunSpec) -> None:
        """Gives a run to the engine."""
        folder = self.store.run_folder(spec.id)
        with writing(folder):
            folder.mkdir(exist_ok=True)
        self.store.begin(spec.id)
        self.active[spec.id] = spec
        self.board.running[spec.id] = (0, None)
        self.engine.submit(spec, folder)

    def handle(self, event: Event) -> None:
        """Takes in what the engine says."""
        if isinstance(event, Progress):
            self.board.running[event.run] = (event.step, event.loss)
            return
        if isinstance(event, Notice):
            self.board.say(event.sentence)
            return
        spec = self.active.pop(event.run)
        self.board.running.pop(event.run)
        if isinstance(event, Done) and event.outcome is not None:
            self.end(event.run, event.outcome)
        elif isinstance(event, Lost) and not self.stopping:  # one that was told to stop did not die of its run
            self.lose(spec, event.why)
        else:
            self.give_back(spec)
            if isinstance(event, Broken):
                self.broken = event.sentence

    def end(self, run: str, outcome: Outcome) -> None:
        """A run ended: noted in the index and shown."""
        try:
            self.store.end(run, outcome)
        except LabError as error:
            self.broken = str(error)  # its outcome file is there; the next sweep takes it in
        self.board.ran(run, outcome)

    def lose(self, spec: RunSpec, why: str) -> None:
        """A worker died: its run goes on elsewhere, unless workers keep dying on it."""
        self.deaths[spec.id] += 1
        if self.deaths[spec.id] < DEATHS:
            self.board.say(f"{spec.id}: {why}; it resumes from its checkpoint")
            self.give_back(spec)
            return
        outcome = Outcome(state="failed", step=0, error=f"{why}, {DEATHS} times in one sweep")
        store.write_outcome(self.store.run_folder(spec.id), outcome)
        self.end(spec.id, outcome)

    def give_back(self, spec: RunSpec) -> None:
        """A run that did not end waits again, first in line."""
        try:
            self.store.give_back(spec.id)
        except LabError as error:
            self.broken = str(error)
        self.left.appendleft(spec)


def _different(plan: StudyRuns) -> list[RunSpec]:
    """One run for each combination of what `check` looks at."""
    found = {(str(s.problem), str(s.data), getattr(s.optimizer, "polar", None)): s for s in plan.runs}
    return list(found.values())
