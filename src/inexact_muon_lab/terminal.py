"""The console of commands, and numbers for its tables (`inexact_muon.sheet`)."""

from __future__ import annotations

import os
import sys
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


def _safe(shown: Any) -> Any:
    if isinstance(shown, Text) and shown.plain != (plain := printable(shown.plain)):
        shown = shown.copy()
        shown.plain = plain
    return shown


def console(width: int) -> Console:
    """Console on standard output, as wide as COLUMNS or the terminal, else `width`."""
    columns = os.environ.get("COLUMNS", "")
    known = columns.isdigit() or (sys.stdout is not None and sys.stdout.isatty())
    opened = SafeConsole(width=None if known else width, markup=False, emoji=False)
    if opened.width < LEAST:
        opened.width = LEAST
    return opened


def number(value: float | None, digits: int = 6) -> str:
    """A measured value with this many significant digits, keeping trailing zeros for alignment; None is "-"."""
    if value is None:
        return "-"
    if isinstance(value, int):
        return str(value)
    text = f"{value:#.{digits}g}"
    return f"{value:.{digits}g}" if "e" in text else text.rstrip(".")
