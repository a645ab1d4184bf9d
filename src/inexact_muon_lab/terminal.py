"""The console of commands, and numbers for its tables (`inexact_muon.sheet`)."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Mapping
from math import isfinite
from typing import Any

from rich.console import Console
from rich.text import Text

from inexact_muon._text import printable

LEAST = 20
"""Narrowest width that is laid out for; a terminal that claims less wraps the lines itself."""


class SafeConsole(Console):
    """A console that prints text as it is, but for control characters: names and paths come from files."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print text with its control characters replaced, and other objects as they are."""
        super().print(*(printable(o) if isinstance(o, str) else _safe(o) for o in objects), **options)

    def on_broken_pipe(self) -> None:
        """Leave it to the caller: rich ends the process with code 1 where `| head` has seen enough."""
        raise BrokenPipeError


def _safe(shown: Any) -> Any:
    if isinstance(shown, Text) and shown.plain != (plain := printable(shown.plain)):
        shown = shown.copy()
        shown.plain = plain
    return shown


def console(width: int, stderr: bool = False) -> Console:
    """Console on standard output (or standard error), as wide as COLUMNS or the terminal, else `width`."""
    columns = os.environ.get("COLUMNS", "")
    known = columns.isdigit() or (sys.stdout is not None and sys.stdout.isatty())
    opened = SafeConsole(width=None if known else width, markup=False, emoji=False, stderr=stderr)
    if opened.width < LEAST:
        opened.width = LEAST
    return opened


def write_json(value: Any) -> None:
    """The output of `--json`: one line on standard output; numbers that are not finite are null."""
    sys.stdout.write(json.dumps(plain(value), ensure_ascii=False, allow_nan=False) + "\n")


def plain(value: Any) -> Any:
    """Dataclasses, named tuples, arrays and paths as what JSON has."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def number(value: float | None, digits: int = 6) -> str:
    """A measured value with this many significant digits, keeping trailing zeros for alignment; None is "-"."""
    if value is None:
        return "-"
    if isinstance(value, int):
        return str(value)
    text = f"{value:#.{digits}g}"
    return f"{value:.{digits}g}" if "e" in text else text.rstrip(".")
