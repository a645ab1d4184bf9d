"""Files that survive a kill at any moment: atomic replacement, advisory locks."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from types import TracebackType

from inexact_muon.lab.errors import LabError, writing


def replace(path: Path, content: bytes) -> None:
    """Writes a whole file: a reader, or a machine after a power cut, sees the old content or the new one."""
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
        sync_folder(path.parent)


def tidy(folder: Path) -> None:
    """Removes what a killed `replace` left in a folder that is ours alone."""
    for left in folder.glob(".*.[0-9]*"):
        left.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Makes a rename in this folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Lock:
    """An exclusive lock of the operating system on a file; it ends with the process, however that ends."""

    def __init__(self, path: Path, taken: str, patience: float = 0.0) -> None:
        """Takes the lock.

        Args:
            path: the lock file; it stays behind, empty.
            taken: the sentence if somebody else holds it.
            patience: how many seconds to wait for that somebody.
        """
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
        """Gives the lock back."""
        self._file.close()

    def __enter__(self) -> Lock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
