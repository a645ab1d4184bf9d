"""Process setup of the command: Ctrl-C, non-encodable text, warnings as sentences."""

from __future__ import annotations

import io
import signal
import sys
import threading
import warnings
from types import FrameType
from typing import TextIO


def prepare() -> Interrupts:
    """Set up streams, warnings and Ctrl-C of this process."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # paths and exceptions may contain lone surrogates
    warnings.showwarning = show_warning
    return Interrupts()


class Interrupts:
    """Records Ctrl-C before Python raises it: extension modules may swallow the exception during import."""

    def __init__(self) -> None:
        self.triggered = False
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.triggered = True
        raise KeyboardInterrupt


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a LabWarning as one sentence, other warnings as Python does."""
    if category.__name__ == "LabWarning":
        print(f"inexact-muon: warning: {message}", file=sys.stderr)
    else:
        (file or sys.stderr).write(warnings.formatwarning(message, category, filename, lineno, line))
