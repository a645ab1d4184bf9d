"""One append-only file of curves per run: one record per line, each with its checksum.

    1c291ca3 {"kind":"train","step":10,"loss":2.31}

A kill leaves a valid prefix and at most one torn line, which is dropped. A bad line before the end is an error. Missing
lines at the end are detected by a `Mark`, which checkpoints and outcomes contain. Records of kind "time" contain wall
times; all others are bitwise reproducible.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from inexact_muon_lab.errors import LabError, writing

Record = dict[str, Any]
RESERVED = ("kind", "step")
"""Fields of every record; a metric of this name is stored with a trailing underscore."""

POINTS = 160
"""Maximum number of points of a thinned curve; its values are a subset of the run's."""


def thin(values: Sequence[Any], points: int = POINTS) -> list[Any]:
    """Every k-th value and the last, at most `points`; shorter curves are unchanged."""
    stride = -(-(len(values) - 1) // (points - 1)) or 1
    return [v for i, v in enumerate(values) if i % stride == 0 or i == len(values) - 1]


class Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Length of a file prefix in bytes, and its SHA-256."""

    bytes: int = 0
    sha256: str = hashlib.sha256().hexdigest()


EMPTY = Mark()


def read(path: Path, expected: Mark | None = None) -> list[Record]:
    """The valid records; [] if there is no file. Raises on a bad line before the end, or a file of another mark."""
    content = _content(path)
    if expected is not None and _mark(content) != expected:
        raise LabError(f"{path} is damaged or cut off; the same sweep repeats the run")
    records = []
    *lines, torn = content.split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            valid = line[8:9] == b" " and int(line[:8], 16) == zlib.crc32(line[9:])
        except ValueError:
            valid = False
        if valid:
            records.append(msgspec.json.decode(line[9:]))
        elif number < len(lines) or torn:
            raise LabError(f"{path}: line {number} is damaged; the same sweep repeats the run")
    return records


def mark(path: Path) -> Mark:
    """The mark of the whole file; that of an empty file if there is none."""
    return _mark(_content(path))


def holds(path: Path, expected: Mark, whole: bool = True) -> bool:
    """Whether the file, or its prefix unless `whole`, matches the mark."""
    content = _content(path)
    return _mark(content if whole else content[: expected.bytes]) == expected


class Curves:
    """Writer that continues from a mark: the file must match it and is truncated there."""

    def __init__(self, path: Path, start: Mark = EMPTY) -> None:
        self.path, self._end = path, start.bytes
        with writing(path):
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            os.ftruncate(self._handle, self._end)
            self._sum = hashlib.sha256(os.pread(self._handle, self._end, 0))
            os.lseek(self._handle, self._end, os.SEEK_SET)

    @property
    def mark(self) -> Mark:
        """The mark of everything written so far."""
        return Mark(self._end, self._sum.hexdigest())

    def append(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Append a record; a number that is not finite becomes null."""
        named = {f"{name}_" if name in RESERVED else name: value for name, value in values.items()}
        body = msgspec.json.encode({"kind": kind, "step": step, **named})
        line = b"%08x %s\n" % (zlib.crc32(body), body)
        with writing(self.path):
            unwritten = memoryview(line)
            while unwritten:
                unwritten = unwritten[os.write(self._handle, unwritten) :]
        self._end += len(line)
        self._sum.update(line)

    def sync(self) -> None:
        with writing(self.path):
            os.fsync(self._handle)

    def close(self) -> None:
        os.close(self._handle)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _mark(content: bytes) -> Mark:
    return Mark(len(content), hashlib.sha256(content).hexdigest())
