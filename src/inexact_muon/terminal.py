"""Tables and numbers for terminals of any width.

A table that is too wide is narrowed by wrapping prose, then by dropping empty and optional columns. If it still does
not fit, it is stacked (groups of columns, each with the key columns) or written as one block of lines per row. Cells
are never truncated.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from inexact_muon._text import printable

PROSE = 24
"""Minimum width of a column of prose."""
MOST = 4
"""Maximum number of stacked column groups; a table that needs more is written in blocks."""


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
    made = SafeConsole(width=None if known else width, markup=False, emoji=False)
    if made.width < LEAST:
        made.width = LEAST
    return made


def number(value: float | None, digits: int = 6) -> str:
    """A measured value with this many significant digits, keeping trailing zeros for alignment; None is "-"."""
    if value is None:
        return "-"
    if isinstance(value, int):
        return str(value)
    text = f"{value:#.{digits}g}"
    return f"{value:.{digits}g}" if "e" in text else text.rstrip(".")


@dataclass(frozen=True)
class Row:
    """The cells of a row, and its style."""

    cells: Sequence[str | Text]
    style: str = ""


@dataclass(frozen=True)
class Sheet:
    """A table that adapts to the available width.

    Args:
        left: columns of text, aligned to the left; the others hold numbers.
        prose: columns that may be wrapped between words.
        optional: columns that may be dropped, in this order.
        closing: number of final rows that are separated by a line.
        keys: number of leading columns that identify a row.
        narrow: layout if the table does not fit.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Row]
    left: tuple[str, ...] = ()
    prose: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    closing: int = 0
    keys: int = 1
    narrow: Literal["stack", "blocks"] = "stack"

    def print(self, to: Console) -> None:
        """Print the table, fitted to the console's width."""
        if self.title:
            to.print(Text(self.title, style="italic"), soft_wrap=True)
        kept = list(range(len(self.columns)))
        empty = [name for k, name in enumerate(self.columns) if not any(map(len, (row.cells[k] for row in self.rows)))]
        for count, name in enumerate((None, *empty, *self.optional)):
            kept = [k for k in kept if self.columns[k] != name]
            left_out = [name for name in self.optional[: max(0, count - len(empty))] if name not in empty]
            if widths := self._fit(kept, to.width):
                to.print(self._grid(kept, widths))
                if left_out:
                    to.print(f"Left out at this width: {', '.join(left_out)}.", highlight=False)
                return
        groups = self._groups(to.width) if self.narrow == "stack" else []
        for group in groups:
            to.print(self._grid(group, self._fit(group, to.width) or []))
        if not groups:
            for line in self._blocks(to.width):
                to.print(line, soft_wrap=True)

    def _grid(self, kept: Sequence[int], widths: Sequence[int]) -> Table:
        table = Table()
        for k, width in zip(kept, widths, strict=True):
            justify: Literal["left", "right"] = "left" if self.columns[k] in self.left else "right"
            table.add_column(Text(printable(self.columns[k])), justify=justify, width=width, overflow="fold")
        for i, row in enumerate(self.rows):
            if self.closing and i == len(self.rows) - self.closing:
                table.add_section()
            cells = [row.cells[k] for k in kept]
            table.add_row(*(_safe(Text(c) if isinstance(c, str) else c) for c in cells), style=row.style or None)
        return table

    def _fit(self, kept: Sequence[int], available: int) -> list[int] | None:
        """Column widths within `available`, shrinking the widest first, none below its minimum; None if too wide."""
        widths = [self._widest(k) for k in kept]
        least = [self._least(k) for k in kept]
        available -= 3 * len(kept) + 1
        while sum(widths) > available:
            shrinking = [i for i in range(len(kept)) if widths[i] > least[i]]
            if not shrinking:
                return None
            widths[max(shrinking, key=lambda i: widths[i])] -= 1
        return widths

    def _widest(self, k: int) -> int:
        return max(len(self.columns[k]), *(len(row.cells[k]) for row in self.rows), 1)

    def _least(self, k: int) -> int:
        """Minimum width: titles wrap between words, cells only if they are prose."""
        title = max(map(len, self.columns[k].split()), default=1)
        cells = [str(row.cells[k]) for row in self.rows]
        if self.columns[k] not in self.prose:
            return max(title, *map(len, cells), 1)
        words = [len(word) for cell in cells for word in cell.split()]
        return max(title, *words, min(PROSE, max(map(len, cells), default=0)))

    def _groups(self, available: int) -> list[list[int]]:
        """Column groups that fit, each with the keys; empty if a column does not fit or there are too many groups."""
        keys = list(range(self.keys))
        groups = [list(keys)]
        for k in range(self.keys, len(self.columns)):
            if self._fit([*groups[-1], k], available) is None:
                groups.append(list(keys))
            if self._fit([*groups[-1], k], available) is None:
                return []
            groups[-1].append(k)
        return groups if len(groups) <= MOST else []

    def _blocks(self, available: int) -> Iterator[Text]:
        for row in self.rows:
            cells = [str(cell) for cell in row.cells]
            yield Text("  ".join(cells[: self.keys]), style="bold")
            named = zip(self.columns[self.keys :], cells[self.keys :], strict=True)
            for line in _packed([f"{name}: {cell}" for name, cell in named if cell], available - 2):
                yield Text(f"  {line}")


def _packed(parts: Sequence[str], available: int) -> Iterator[str]:
    """Lines of parts separated by two spaces; a part longer than a line is wrapped between words."""
    line = ""
    for part in parts:
        joined = f"{line}  {part}" if line else part
        if len(joined) <= available:
            line = joined
            continue
        if line:
            yield line
        *whole, line = textwrap.wrap(
            part, available, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        ) or [""]
        yield from whole
    if line:
        yield line
