r"""Packed evidence: stores as one small file of plain data, with a checksum.

    inexact-muon evidence 1 SHA256\n     the header, of what follows
    bzip2 { "stores": [ { "about": {...}, "runs": [ { "id", "spec", "state", ..., "outcome", "curves" } ] } ] }

Curves are thinned to what a page plots (`train` and `validation`), without wall times; LMO errors and choices are
complete. Nothing in a file is executed, and incomplete or foreign files are rejected.
"""

from __future__ import annotations

import bz2
import hashlib
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from inexact_muon._text import nearest, printable
from inexact_muon_lab.errors import LabError
from inexact_muon_lab.spec.decode import Section
from inexact_muon_lab.store.curves import Record, thin
from inexact_muon_lab.store.files import replace
from inexact_muon_lab.store.outcome import Run

SUFFIX = ".pack"
MAGIC, VERSION = b"inexact-muon evidence", b"1"
LARGEST, RATIO, SMALL = 1 << 30, 100, 1 << 20
"""Maximum unpacked size in bytes; as a multiple of the packed size, which is ten in practice, beyond SMALL."""
SHARE = 16
"""The unpacked text is at most this part of the machine's memory: parsed, it takes ten times its size."""
THINNED = ("train", "validation")


class PackedRun(Run, frozen=True):
    """A row of a store's index with the curves of its run."""

    curves: list[dict[str, Any]] = msgspec.field(default_factory=list)


class PackedStore(Section, frozen=True):
    """Description and runs of a store."""

    about: dict[str, str]
    runs: list[PackedRun]

    @property
    def name(self) -> str:
        return self.about.get("name", "")


class Content(Section, frozen=True):
    """Contents of a file."""

    stores: list[PackedStore]


def thinned(records: Sequence[Record]) -> list[Record]:
    """Losses and wall times thinned to what a page plots and judges, other records unchanged."""
    chosen: list[Record] = [r for r in records if r["kind"] not in (*THINNED, "time")]
    chosen += thin([r for r in records if r["kind"] == "time"])
    for kind in THINNED:
        mine = [r for r in records if r["kind"] == kind]
        plotted = [r for r in mine if (r.get("loss") or 0) > 0]
        chosen += thin(plotted) + [r for r in mine if not (r.get("loss") or 0) > 0]
    return sorted(chosen, key=lambda r: int(r["step"]))


def write(path: Path, stores: Sequence[PackedStore]) -> None:
    """Replace the file."""
    text = msgspec.json.encode(Content(stores=list(stores)))
    body = bz2.compress(text)  # compresses digits better than xz, five times as fast
    replace(path, b"%s %s %s\n" % (MAGIC, VERSION, hashlib.sha256(body).hexdigest().encode()) + body)


def read(path: Path) -> list[PackedStore]:
    """The validated stores of a file."""
    try:
        stat = path.stat()
        return _read(path, stat.st_mtime_ns, stat.st_size)
    except OSError as error:
        raise LabError(f"{path} cannot be read: {error.strerror}") from None


def read_one(location: Path) -> PackedStore:
    """The store in FILE, if it has only one, or at FILE/NAME."""
    file = location if location.is_file() else location.parent
    stores = {store.name: store for store in read(file)}
    if location.is_file() and len(stores) == 1:
        return next(iter(stores.values()))
    if location.is_file():
        raise LabError(
            f"{location} holds {len(stores)} studies; name one: {', '.join(str(location / n) for n in stores)}"
        )
    if location.name not in stores:
        raise LabError(f"{file} holds no study {location.name!r}: {nearest(location.name, stores)}")
    return stores[location.name]


def is_packed(location: Path) -> bool:
    """Whether this is a file, or FILE/NAME, rather than a folder."""
    return location.is_file() or (not location.exists() and location.parent.is_file())


@lru_cache(maxsize=4)
def _read(path: Path, _changed: int, _size: int) -> list[PackedStore]:
    header, newline, body = path.read_bytes().partition(b"\n")
    words = header[:200].split(b" ")
    if not newline or not header.startswith(MAGIC) or len(words) != 4:
        raise LabError(f"{path} is not packed evidence; `inexact-muon pack DIR FILE` makes it")
    if words[2] != VERSION:
        raise LabError(f"{path} has version {words[2].decode(errors='replace')} of packed evidence, known is 1; update")
    if hashlib.sha256(body).hexdigest().encode() != words[3]:
        raise LabError(f"{path} is damaged: its checksum does not fit; copy or pack it again")
    try:
        return _checked(msgspec.json.decode(_unpacked(body, path), type=Content)).stores
    except (msgspec.MsgspecError, EOFError, OSError, UnicodeDecodeError, RecursionError, KeyError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise LabError(f"{path} is packed evidence of another kind: {why}") from None


def _unpacked(body: bytes, path: Path) -> bytes:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    most = min(LARGEST, memory // SHARE, max(SMALL, RATIO * len(body)))
    decompressor = bz2.BZ2Decompressor()
    text = decompressor.decompress(body, max_length=most)
    if not decompressor.eof:
        raise LabError(f"{path} is cut off, or unpacks to more than {most / 1e6:.1f} MB")
    return text


def _checked(content: Content) -> Content:
    """Validate that every run matches its id and its outcome, and that names are names of folders."""
    for store in content.stores:
        if store.name in (".", "..") or "/" in store.name or printable(store.name) != store.name:
            raise msgspec.ValidationError(f"{ascii(store.name)[:100]} is not the name of a study")
        for run in store.runs:
            if run.spec.id != run.id or not run.consistent or (run.outcome and run.outcome.run not in ("", run.id)):
                raise msgspec.ValidationError(f"run {run.id} does not fit its spec or its outcome")
            if any(not isinstance(r.get("kind"), str) or not isinstance(r.get("step"), int) for r in run.curves):
                raise msgspec.ValidationError(f"a curve of run {run.id} has no kind or step")
    return content
