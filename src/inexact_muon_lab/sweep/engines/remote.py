"""A run on another machine: in the store if the file system is shared, else in a temporary folder that is sent back."""

from __future__ import annotations

import sys
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

import torch

from inexact_muon_lab.errors import LabError
from inexact_muon_lab.spec.spec import RunSpec, canonical, from_json
from inexact_muon_lab.store.files import replace
from inexact_muon_lab.store.store import CURVES, OUTCOME, read_outcome
from inexact_muon_lab.sweep.events import Broken, Done, Event
from inexact_muon_lab.sweep.execute import execute

TICKET = "ticket"


@dataclass(frozen=True)
class Job:
    """The request: the run, its folder, a token that identifies the folder, and the path of the user's modules."""

    spec: bytes
    folder: str
    ticket: str
    home: str


@dataclass(frozen=True)
class Answer:
    """The response: files that the store lacks, or the error that stops the sweep."""

    files: dict[str, bytes] = field(default_factory=dict)
    sentence: str = ""


def prepare(spec: RunSpec, folder: Path) -> Job:
    """The job of a run."""
    ticket = uuid.uuid4().hex
    replace(folder / TICKET, ticket.encode())
    return Job(canonical(spec), str(folder.absolute()), ticket, str(Path.cwd()))


def train_remotely(job: Job, stopping: Callable[[], bool] = lambda: False) -> Answer:
    """Runs on the other machine. On a shared file system checkpoints survive the loss of a machine."""
    torch.set_num_threads(1)
    if job.home not in sys.path:
        sys.path.insert(0, job.home)
    spec, folder = from_json(job.spec), Path(job.folder)
    try:
        if (folder / TICKET).exists() and (folder / TICKET).read_text() == job.ticket:
            # A job of a killed sweep may still be training: then wait for it and take its outcome.
            execute(spec, folder, stopping=stopping, patience=inf)
            return Answer()
        with tempfile.TemporaryDirectory() as name:
            ended = execute(spec, Path(name), stopping=stopping)
            return Answer({part: (Path(name) / part).read_bytes() for part in (CURVES, OUTCOME)} if ended else {})
    except LabError as error:
        return Answer(sentence=str(error))


def store_answer(run: str, folder: Path, answer: Answer) -> Event:
    """Runs on this machine: stores the files of an answer, the outcome last."""
    if answer.sentence:
        return Broken(run, answer.sentence)
    try:
        for name in (CURVES, OUTCOME):
            if name in answer.files:
                replace(folder / name, answer.files[name])
        return Done(run, read_outcome(folder))
    except LabError as error:
        return Broken(run, str(error))
