"""Data as numpy arrays in a deterministic order: a batch is a function of seed and step, so resuming needs no state."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from inexact_muon_lab.data.images import Images as Images
from inexact_muon_lab.data.images import read_cifar10, read_digits
from inexact_muon_lab.data.text import Tokens as Tokens
from inexact_muon_lab.data.text import read_shards, read_stdlib, read_text
from inexact_muon_lab.spec.spec import Cifar10, Data, Digits, Nothing, Shards, Stdlib, Text

READERS: dict[type, Callable[[Any], Tokens | Images | None]] = {
    Stdlib: lambda data: read_stdlib(),
    Text: read_text,
    Shards: read_shards,
    Digits: lambda data: read_digits(),
    Cifar10: read_cifar10,
    Nothing: lambda data: None,
}

WHOLE, PIECES = 64 << 20, 64
"""Arrays of up to WHOLE bytes are hashed entirely; of larger ones PIECES pieces with that many bytes in total."""


Stamp = tuple[tuple[str, int, int], ...]
"""(path, time of the last change, size) of every file."""


def load(data: Data | None) -> Tokens | Images | None:
    """The validated data of a spec section; a worker reads it once for many runs, and again if a file has changed."""
    return _load(data, stamp(data))


def fingerprint(data: Data | None) -> str:
    """SHA-256 of the examples; empty if the problem generates its own.

    For an array larger than WHOLE, its size and PIECES evenly spaced pieces are hashed: FineWeb has gigabytes.
    """
    return _fingerprint(data, stamp(data))


def stamp(data: Data | None) -> Stamp:
    """The files of a section with a path; none if there is nothing yet."""
    path = Path(getattr(data, "path", "") or "/dev/null").expanduser()
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    stats = [(str(file), file.stat()) for file in files if file.is_file()]
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)


@lru_cache(maxsize=2)
def _load(data: Data | None, _stamp: Stamp) -> Tokens | Images | None:
    return READERS[type(data)](data)


@lru_cache(maxsize=2)
def _fingerprint(data: Data | None, _stamp: Stamp) -> str:
    loaded = _load(data, _stamp)
    if loaded is None:
        return ""
    parts = (*loaded.train, *loaded.validation) if isinstance(loaded, Tokens) else (*loaded.train, *loaded.test)
    total = hashlib.sha256()
    for part in parts:
        total.update(f"{part.dtype.str} {part.shape};".encode())
        flat = part.reshape(-1)
        length = WHOLE // PIECES // part.itemsize
        starts = np.linspace(0, flat.size - length, PIECES).astype(int)
        for piece in [flat] if part.nbytes <= WHOLE else [flat[start : start + length] for start in starts]:
            total.update(np.ascontiguousarray(piece).tobytes())
    return total.hexdigest()
