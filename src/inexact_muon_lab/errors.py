"""Errors outside of training: a bad file or spec, a full disk, no network."""

from __future__ import annotations

import errno
import sqlite3
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class LabError(ValueError):
    """One sentence for the user: what, where, and what to do. Not caused by the run itself."""


class LabWarning(UserWarning):
    """One sentence about something that is left out or repeated; what is shown is correct."""


def warn(sentence: str) -> None:
    """Issue a LabWarning; the command line prints only the sentence."""
    warnings.warn(sentence, LabWarning, stacklevel=3)


WHY = {
    errno.ENOSPC: "the disk is full; free some space and start again",
    errno.EDQUOT: "the disk quota is used up; free some space and start again",
    errno.EFBIG: "the file has reached the largest size allowed here; raise the limit and start again",
    errno.EROFS: "it is mounted read-only; choose another --out",
    errno.EACCES: "permission is denied; choose another --out",
    errno.ELOOP: "it is a link, which could lead anywhere; remove it",
    errno.EPERM: "permission is denied; choose another --out",
}
SQLITE = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_IOERR: errno.ENOSPC,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_CANTOPEN: errno.EROFS,
}
"""SQLite's primary codes as error numbers."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error of the disk below `path` into one sentence; stored data is not lost."""
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:
        code = error.errno if isinstance(error, OSError) else SQLITE.get(error.sqlite_errorcode & 0xFF)
        if code not in WHY:
            raise
        raise LabError(f"cannot write {path}: {WHY[code]}") from error
