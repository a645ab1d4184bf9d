"""Progress of a sweep: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from inexact_muon._text import printable
from inexact_muon_lab.spec.decode import Named
from inexact_muon_lab.spec.spec import RunSpec, tag
from inexact_muon_lab.spec.study import StudyRuns, field_of
from inexact_muon_lab.store.store import Outcome
from inexact_muon_lab.terminal import number

LIVE_EVERY = 0.25
"""Seconds between refreshes of the table."""


@dataclass
class Board:
    """The displayed state of a sweep."""

    plan: StudyRuns
    console: Console
    ended: dict[str, Outcome] = field(default_factory=dict)
    running: dict[str, tuple[int, float | None]] = field(default_factory=dict)
    before: int = 0
    """Number of runs that had ended before this sweep."""
    note: str = ""

    def __post_init__(self) -> None:
        self.specs = {spec.id: spec for spec in self.plan.runs}
        self._began = self._spoke = time.monotonic()
        # Refreshed by `tick`: a refresh thread would race with the sweep.
        self._live = Live(console=self.console, get_renderable=self.render, auto_refresh=False, transient=True)

    def __enter__(self) -> Board:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def print_line(self, text: str) -> None:
        self.console.print(f"[{len(self.ended)}/{len(self.specs)}] {text}", highlight=False, soft_wrap=True)

    def tick(self) -> None:
        """Refresh the table of a terminal, if it is due; a file has a line for each run that ended, and no others."""
        if self.console.is_terminal and time.monotonic() - self._spoke >= LIVE_EVERY:
            self._spoke = time.monotonic()
            self._live.refresh()

    def remaining(self) -> float | None:
        """Estimated seconds to go, from the fraction of work that this sweep has done."""
        shares = sum(step / self.specs[run].steps for run, (step, _) in self.running.items())
        done = len(self.ended) - self.before + shares
        if done <= 0:
            return None
        return (time.monotonic() - self._began) * (len(self.specs) - len(self.ended) - shares) / done

    def label(self, run: str) -> str:
        return label(self.specs[run], self.plan.varied)

    def render(self) -> Group:
        table = Table(box=None, pad_edge=False)
        for title in ("run", "what", "step", "", "loss"):
            table.add_column(title, no_wrap=True)
        for run, (step, loss) in self.running.items():
            steps = self.specs[run].steps
            bar = ProgressBar(total=steps, completed=step, width=20)
            table.add_row(run, Text(self.label(run)), f"{step}/{steps}", bar, "" if loss is None else number(loss))
        bar = ProgressBar(total=len(self.specs), completed=len(self.ended), width=40)
        head = Text(f"{self.plan.name}: {len(self.ended)} of {len(self.specs)} runs, {clock(self.remaining())} left")
        rows: list[Any] = [head, bar, table]
        if winner := best(self.ended):
            rows.append(Text(f"best so far: {winner} {self.label(winner)} {figures(self.ended[winner])}"))
        if self.note:
            rows.append(Text(self.note, style="yellow"))
        return Group(*rows)


def best(outcomes: dict[str, Outcome]) -> str | None:
    """The finished run with the highest accuracy, or else the lowest loss."""
    finished = {run: o.result for run, o in outcomes.items() if o.state == "finished"}
    scores = {run: -(r.get("accuracy") or 0.0) if "accuracy" in r else r.get("loss") for run, r in finished.items()}
    known = {run: score for run, score in scores.items() if score is not None}
    return min(known, key=lambda run: known[run]) if known else None


def label(spec: RunSpec, varied: Sequence[str]) -> str:
    """ "lr=0.1 momentum=0.5": the last word of each field that varies, and its value."""
    return printable(" ".join(f"{name.rpartition('.')[2]}={short(field_of(spec, name))}" for name in varied))


def short(value: Any) -> str:
    """A value in a few characters; a section by its name."""
    if isinstance(value, Named):
        return tag(type(value))
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def figures(outcome: Outcome) -> str:
    """ "loss=1.2345 accuracy=0.9871"."""
    return " ".join(f"{k}={'not finite' if v is None else number(v)}" for k, v in outcome.result.items())


def summary(outcome: Outcome) -> str:
    """`figures`, then "; 3 parameters skipped steps, 1 all of them: a gradient was not finite" if any did."""
    if not outcome.skipped:
        return figures(outcome)
    every = f", {len(outcome.stuck)} all of them" if outcome.stuck else ""
    skips = f"{len(outcome.skipped)} parameters skipped steps{every}: their gradient was not finite"
    return f"{figures(outcome)}; {skips}"


def clock(seconds: float | None) -> str:
    """ "1:02:03", "4:05" or "?"."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
