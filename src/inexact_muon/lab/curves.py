"""One append-only file of curves per run: a record a line, each with its checksum.

    1c291ca3 {"kind":"train","step":10,"loss":2.31}

What a kill leaves is a valid prefix and at most one torn line, which is dropped. A bad line before the end is damage
and is refused. Records of kind "time" hold wall times; all others are the same bits whenever the run is repeated.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

import msgspec

from inexact_muon.lab.errors import LabError, writing

Record = dict[str, Any]


def read(path: Path) -> list[Record]:
    """The valid records; [] if there is no file."""
    return [record for record, _ in _scan(path)]


def results(path: Path) -> list[Record]:
    """The records without wall times: what must be equal bit for bit."""
    return [record for record in read(path) if record["kind"] != "time"]


class Curves:
    """The writer. Opens at the end of what was recorded up to a step; anything later is cut off."""

    def __init__(self, path: Path, step: int) -> None:
        self.path = path
        end = 0
        for record, position in _scan(path):
            if record["step"] > step:
                break
            end = position
        with writing(path):
            self._handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
            os.ftruncate(self._handle, end)
            os.lseek(self._handle, end, os.SEEK_SET)

    def append(self, kind: str, step: int, **values: Any) -> None:
        """Adds a record; a number that is not finite becomes null."""
        body = msgspec.json.encode({"kind": kind, "step": step, **values})
        with writing(self.path):
            line = memoryview(b"%08x %s\n" % (zlib.crc32(body), body))
            while line:
                line = line[os.write(self._handle, line) :]

    def sync(self) -> None:
        """Makes everything so far durable."""
        with writing(self.path):
            os.fsync(self._handle)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._handle)


def _scan(path: Path) -> list[tuple[Record, int]]:
    """(record, end of its line in bytes) for the valid prefix."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    found, start = [], 0
    while (end := content.find(b"\n", start)) >= 0:
        line = content[start:end]
        if not _valid(line):
            if end + 1 < len(content):
                number = content.count(b"\n", 0, start) + 1
                raise LabError(f"{path}: line {number} is damaged; delete the folder {path.parent} to repeat the run")
            break
        found.append((msgspec.json.decode(line[9:]), end + 1))
        start = end + 1
    return found


def _valid(line: bytes) -> bool:
    try:
        return line[8:9] == b" " and int(line[:8], 16) == zlib.crc32(line[9:])
    except ValueError:
        return False
