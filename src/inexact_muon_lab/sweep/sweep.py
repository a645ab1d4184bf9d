"""A sweep: all unfinished runs of a plan, on an engine, into a store."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

from rich.console import Console

from inexact_muon_lab.errors import LabError, warn, writing
from inexact_muon_lab.spec.spec import RunSpec
from inexact_muon_lab.spec.study import StudyRuns
from inexact_muon_lab.store import store
from inexact_muon_lab.store.store import Outcome, Store
from inexact_muon_lab.sweep.board import Board, summary
from inexact_muon_lab.sweep.engines import Engine
from inexact_muon_lab.sweep.events import Broken, Done, Event, Lost, Notice, Progress
from inexact_muon_lab.sweep.execute import Stop, check, interrupts
from inexact_muon_lab.train.environment import inputs

DEATHS = 5
"""Number of workers that may die on one run in a sweep before the run counts as failed."""


def sweep(
    plan: StudyRuns,
    folder: Path,
    start: Callable[[], Engine],
    console: Console,
    retry: bool = False,
    enough: Callable[[], bool] = lambda: False,
    close: bool = True,
) -> dict[str, Outcome]:
    """Train the unfinished runs of the plan; returns the outcomes of all ended ones.

    Args:
        enough: once it returns True, no further run is started, and running ones are completed.
        close: close the engine at the end; False if other sweeps share it.

    Raises:
        LabError: an external error; stored data is not lost.
        KeyboardInterrupt: interrupted; checkpoints are written unless interrupted again.
    """
    with interrupts() as stop, ExitStack() as stack:
        engine = start()
        if close:
            stack.callback(engine.close)
        for spec in _distinct(plan):
            check(spec)
        opened = stack.enter_context(closing(Store(folder, plan)))
        notice_changes(plan, folder)
        return Sweep(plan, opened, engine, console).run(stop, retry, enough)


class Sweep:
    """A sweep in progress."""

    def __init__(self, plan: StudyRuns, opened: Store, engine: Engine, console: Console) -> None:
        self.plan, self.store, self.engine = plan, opened, engine
        self.board = Board(plan, console)
        self.deaths: Counter[str] = Counter()
        self.broken = ""
        self.stopping = False

    def run(self, stop: Stop, retry: bool, enough: Callable[[], bool]) -> dict[str, Outcome]:
        """Run until nothing is left, or `stop`, `enough`, or an error."""
        if retry:
            self.store.retry()
        self.queue = deque(self.store.waiting(self.plan))
        stored, board = store.runs(self.store.folder), self.board
        board.ended = {run.id: run.outcome for run in stored if run.id in board.specs and run.outcome}
        board.before = len(board.ended)
        with board:
            while board.running or (self.queue and not self.stopping and not enough()):
                if (stop.asked or self.broken) and not self.stopping:
                    self.stopping = True
                    board.note = "stopping: checkpoints are being written; Ctrl-C again to stop at once"
                    if stop.asked:
                        board.print_line(board.note)
                    self.engine.stop()
                while self.queue and len(board.running) < self.engine.slots and not self.stopping and not enough():
                    self.begin(self.queue.popleft())
                for event in self.engine.poll(0.1):
                    self.handle(event)
                board.tick()
        if self.broken:
            raise LabError(self.broken)
        if self.stopping:
            raise KeyboardInterrupt
        return board.ended

    def begin(self, spec: RunSpec) -> None:
        folder = self.store.run_folder(spec.id)
        with writing(folder):
            folder.mkdir(exist_ok=True)
        self.store.begin(spec.id)
        self.board.running[spec.id] = (0, None)
        self.engine.submit(spec, folder)

    def handle(self, event: Event) -> None:
        if isinstance(event, Progress):
            self.board.running[event.run] = (event.step, event.loss)
            return
        if isinstance(event, Notice):
            self.board.print_line(event.sentence)
            return
        spec = self.board.specs[event.run]
        self.board.running.pop(event.run)
        if isinstance(event, Done) and event.outcome is not None:
            self.end(event.run, event.outcome)
        elif isinstance(event, Lost) and not self.stopping:  # a loss while stopping is not the run's fault
            self.handle_lost(spec, event.why)
        else:
            self.requeue(spec)
            if isinstance(event, Broken):
                self.broken = event.sentence

    def end(self, run: str, outcome: Outcome) -> None:
        try:
            self.store.end(run, outcome)
        except LabError as error:
            self.broken = str(error)  # the outcome file exists; the next sweep records it
        self.board.ended[run] = outcome
        self.board.print_line(f"{run} {outcome.state}: {self.board.label(run)} {summary(outcome)}")

    def handle_lost(self, spec: RunSpec, why: str) -> None:
        """A worker died: requeue its run, unless workers keep dying on it."""
        self.deaths[spec.id] += 1
        if self.deaths[spec.id] < DEATHS:
            self.board.print_line(f"{spec.id}: {why}; it resumes from its checkpoint")
            self.requeue(spec)
            return
        outcome = Outcome(state="failed", step=0, run=spec.id, error=f"{why}, {DEATHS} times in one sweep")
        store.write_outcome(self.store.run_folder(spec.id), outcome)
        self.end(spec.id, outcome)

    def requeue(self, spec: RunSpec) -> None:
        """Put an unfinished run back, first in the queue."""
        try:
            self.store.mark_interrupted(spec.id)
        except LabError as error:
            self.broken = str(error)
        self.queue.appendleft(spec)


def notice_changes(plan: StudyRuns, folder: Path) -> None:
    """Warn if runs of the plan ended on other data, or with other code of a custom problem, than there is now."""
    ended = {run.id: run.outcome.environment for run in store.runs(folder) if run.outcome}
    now = {key: inputs(spec) for spec in _distinct(plan) if (key := (str(spec.problem), str(spec.data)))}
    names = [
        name
        for spec in plan.runs
        for name, value in now[str(spec.problem), str(spec.data)].items()
        if ended.get(spec.id, {}).get(name, value) != value
    ]
    for name, count in Counter(names).items():
        warn(
            f"{folder}: {count} runs ended with other {name} than there is now, and do not compare with runs that "
            "follow; choose another --out to repeat them"
        )


def _distinct(plan: StudyRuns) -> list[RunSpec]:
    """One run for each combination of what `check` validates."""
    specs = {(str(s.problem), str(s.data), s.polar): s for s in plan.runs}
    return list(specs.values())
