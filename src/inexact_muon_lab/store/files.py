"""Crash-safe files: atomic replacement, advisory locks."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from inexact_muon_lab.errors import LabError, writing


def replace(path: Path, content: bytes) -> None:
    """Replace a file atomically: after a kill or power failure it has either the old or the new content."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with writing(path):
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the rename
        finally:
            os.close(folder)


def tidy(folder: Path) -> None:
    """Remove leftovers of a killed `replace` from a folder that only this package writes."""
    for leftover in folder.glob(".*.[0-9]*"):
        leftover.unlink(missing_ok=True)


class Lock:
    """An exclusive operating system lock on a file, released when the process ends."""

    def __init__(self, path: Path, taken: str, patience: float = 0.0) -> None:
        """Acquire the lock, waiting `patience` seconds for it; raises with the message `taken` if another process holds
        it. The file is left behind, empty."""
        with writing(path):
            self._file = path.open("a")
        until = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= until:
                    self._file.close()
                    raise LabError(taken) from None
                time.sleep(0.05)

    def release(self) -> None:
        self._file.close()

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()
