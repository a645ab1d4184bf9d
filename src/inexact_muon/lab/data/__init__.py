"""Data as numpy arrays in a deterministic order: a batch is a function of seed and step, so resuming needs no state."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from inexact_muon.lab.data.images import Images as Images
from inexact_muon.lab.data.images import read_cifar10, read_digits
from inexact_muon.lab.data.shards import read_shards
from inexact_muon.lab.data.text import read_stdlib, read_text
from inexact_muon.lab.data.tokens import Tokens as Tokens
from inexact_muon.lab.spec import Cifar10, Digits, Nothing, Shards, Stdlib, Text

READERS: dict[type, Callable[[Any], Tokens | Images | None]] = {
    Stdlib: lambda data: read_stdlib(),
    Text: read_text,
    Shards: read_shards,
    Digits: lambda data: read_digits(),
    Cifar10: read_cifar10,
    Nothing: lambda data: None,
}


@lru_cache(maxsize=2)
def load(data: Any) -> Tokens | Images | None:
    """The data that a section names, checked; a worker reads it once for many runs."""
    return READERS[type(data)](data)
