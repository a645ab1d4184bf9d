"""A worker process of the local engine: imports torch once, then trains one run after another.

It exits when its channel closes, so that it never outlives its sweep.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import torch

from inexact_muon_lab.errors import LabError, LabWarning, writing
from inexact_muon_lab.spec.spec import RunSpec
from inexact_muon_lab.sweep.events import Broken, Done, Notice, Progress
from inexact_muon_lab.sweep.execute import execute
from inexact_muon_lab.train.trainer import Report

READY, STOP = "ready", "stop"
OUTPUT = "output.txt"
REPORT_EVERY = 0.2

Channel: TypeAlias = "Connection[Any, Any]"


def work(channel: Channel, index: int) -> None:
    """Train the runs received, until the channel closes; on the index-th GPU, if there are GPUs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the sweep handles it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    jobs: queue.SimpleQueue[tuple[RunSpec, Path]] = queue.SimpleQueue()
    stop = threading.Event()
    threading.Thread(target=_listen, args=(channel, jobs, stop), daemon=True).start()
    torch.set_num_threads(1)
    if torch.cuda.is_available():
        torch.cuda.set_device(index % torch.cuda.device_count())
    send(channel, READY)
    while True:
        spec, folder = jobs.get()
        try:
            with captured(folder), forward_warnings(channel, spec.id):
                outcome = execute(spec, folder, reporter(channel, spec.id), stop.is_set)
            send(channel, Done(spec.id, outcome))
        except LabError as error:
            send(channel, Broken(spec.id, str(error)))


def send(channel: Channel, message: Any) -> None:
    """Send a message to the sweep; exit silently if the sweep is gone."""
    try:
        channel.send(message)
    except OSError:
        os._exit(1)


@contextmanager
def forward_warnings(channel: Channel, run: str) -> Iterator[None]:
    """Send LabWarnings to the sweep; other warnings go to the run's output."""
    shown = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, LabWarning):
            send(channel, Notice(run, str(message)))
        else:
            shown(message, category, *where, **more)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = shown


def _listen(channel: Channel, jobs: queue.SimpleQueue[Any], stop: threading.Event) -> None:
    while True:
        try:
            message = channel.recv()
        except (EOFError, OSError):
            os._exit(1)  # the sweep is gone; the run will resume from its checkpoint
        if message == STOP:
            stop.set()
        else:
            jobs.put(message)


def reporter(channel: Channel, run: str) -> Report:
    """Sends a run's progress, a few times per second."""
    last = 0.0

    def report(step: int, loss: float) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= REPORT_EVERY:
            last = now
            send(channel, Progress(run, step, loss))

    return report


@contextmanager
def captured(folder: Path) -> Iterator[None]:
    """Redirect what a run prints to a file in its folder; no file if it prints nothing."""
    path = folder / OUTPUT
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
    try:
        with file, redirected(file, 1, 2):
            yield
    finally:
        if path.exists() and not path.stat().st_size:
            path.unlink()


@contextmanager
def redirected(file: BinaryIO, *numbers: int) -> Iterator[None]:
    """Redirect file descriptors, also of processes started meanwhile, to an open file."""
    originals = {number: os.dup(number) for number in numbers}
    try:
        for number in numbers:
            os.dup2(file.fileno(), number)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, copy in originals.items():
            os.dup2(copy, number)
            os.close(copy)
