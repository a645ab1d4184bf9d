"""Process setup of the command: Ctrl-C, non-encodable text, warnings as sentences."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import warnings
from contextlib import suppress
from types import FrameType
from typing import Any

from inexact_muon._text import printable
from inexact_muon_lab.errors import LabWarning

others = warnings.showwarning
"""Prints warnings of other kinds."""


def prepare() -> Interrupts:
    """Set up streams, warnings and Ctrl-C of this process."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell: `>&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - open as long as the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # paths and exceptions may contain lone surrogates
    warnings.showwarning = show_warning
    return Interrupts()


def discard_output() -> None:
    """Nothing more is written to standard output, also not what is left in its buffer when Python ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(sentence: str) -> None:
    """A sentence of this command on standard error; text from files does not control the terminal."""
    print(f"inexact-muon: {printable(sentence)}", file=sys.stderr)


class Interrupts:
    """Records Ctrl-C before Python raises it: extension modules may swallow the exception during import."""

    def __init__(self) -> None:
        self.triggered = False
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.triggered = True
        raise KeyboardInterrupt


def show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """Print a LabWarning as one sentence, other warnings as Python does."""
    if issubclass(category, LabWarning):
        say(f"warning: {message}")
    else:
        others(message, category, *where, **more)
