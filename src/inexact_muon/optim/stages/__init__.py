"""Stages around the oracle: what changes its input, and what changes its answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from inexact_muon._text import read, write
from inexact_muon.optim.stages.values import RMS as RMS
from inexact_muon.optim.stages.values import After as After
from inexact_muon.optim.stages.values import Before as Before
from inexact_muon.optim.stages.values import EntryMoment as EntryMoment
from inexact_muon.optim.stages.values import RowMoment as RowMoment
from inexact_muon.optim.stages.values import SecondMoment as SecondMoment
from inexact_muon.optim.stages.values import Signed as Signed
from inexact_muon.optim.stages.values import Stage as Stage

BEFORE: dict[str, type[Before]] = {stage.name: stage for stage in (SecondMoment, Signed)}
AFTER: dict[str, type[After]] = {stage.name: stage for stage in (RowMoment, EntryMoment, RMS)}
"""Name -> class, for parsing."""

NONE = "none"
"""Text of no stages."""

JOIN = " + "

EXAMPLES = {"before": "second-moment", "after": "row-moment"}

Given = Stage | str | Sequence[Stage | str] | None
"""Stages as an option: a value, its text ("sign", "row-moment + rms:0.2"), several of them, or none."""


def parse(choice: Given, kind: type[Stage]) -> tuple[Any, ...]:
    """The stages of an option, in order; `kind` is `Before` or `After`.

    Raises:
        ValueError, TypeError: it is no stage of this kind, or a stage occurs twice, whose state would be one.
    """
    if isinstance(choice, str):
        choice = [] if choice.strip() == NONE else choice.split(JOIN)
    entries: list[Any] = [] if choice is None else list(choice) if isinstance(choice, list | tuple) else [choice]
    stages = tuple(read(entry, {**BEFORE, **AFTER}) if isinstance(entry, str) else entry for entry in entries)
    option = kind.__name__.lower()
    for stage in stages:
        if isinstance(stage, Stage) and not isinstance(stage, kind):
            other = "after" if kind is Before else "before"
            raise ValueError(f"{stage.name} comes {other} the oracle: write {other}={stage.name!r}")
        if not isinstance(stage, kind):
            raise TypeError(
                f"{option} takes stages or their text, such as {option}={EXAMPLES[option]!r}, got {stage!r}"
            )
    names = [stage.name for stage in stages]
    if len(set(names)) < len(names):
        raise ValueError(f"{option} names a stage twice: {', '.join(names)}")
    return stages


def text(stages: Iterable[Stage]) -> str:
    """The text of stages, with all fields; `parse` reads it."""
    return JOIN.join(write(stage, full=True) for stage in stages) or NONE


def short(text: str) -> str:
    """The text of stages with the fields that differ from their defaults, if it can be read."""
    try:
        return JOIN.join(str(read(part, {**BEFORE, **AFTER})) for part in text.split(JOIN)) if text != NONE else ""
    except ValueError:  # a stage of the user's
        return text
