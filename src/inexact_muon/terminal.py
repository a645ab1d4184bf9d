"""Tables and numbers on a terminal of any width.

A table that is too wide is narrowed by wrapping prose, then by leaving out empty and optional columns; after that it is
stacked (groups of columns under each other, the key repeated) or written as one block of lines for each row. No cell is
cut.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

PROSE = 24
"""Columns of prose are not made narrower than this."""
MOST = 4
"""A table is stacked in at most so many groups of columns; one that needs more is written in blocks."""


def console(width: int) -> Console:
    """Standard output: as wide as COLUMNS or the terminal says, `width` where there is neither."""
    known = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return Console(width=None if known else width, markup=False, emoji=False)  # names and paths hold any text


def number(value: float | None, digits: int = 6) -> str:
    """A measured value to so many significant digits, trailing zeros kept so that columns line up; None is "-"."""
    if value is None:
        return "-"
    if isinstance(value, int):
        return str(value)
    text = f"{value:#.{digits}g}"
    return f"{value:.{digits}g}" if "e" in text else text.rstrip(".")


@dataclass(frozen=True)
class Row:
    """The cells of a row, and how it is drawn."""

    cells: Sequence[str | Text]
    style: str = ""


@dataclass(frozen=True)
class Sheet:
    """A table, before it is known how wide it may be.

    Args:
        left: columns of words, aligned to the left; the others hold numbers.
        prose: columns that may be wrapped between words.
        optional: columns that may be left out, the first one first.
        closing: so many rows at the end are set apart by a line.
        keys: so many columns at the start say what a row is about.
        narrow: what is done when it does not fit otherwise.
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
        """Writes the table, narrowed to the console's width."""
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
            table.add_column(Text(self.columns[k]), justify=justify, width=width, overflow="fold")
        for i, row in enumerate(self.rows):
            if self.closing and i == len(self.rows) - self.closing:
                table.add_section()
            cells = [row.cells[k] for k in kept]
            table.add_row(*(Text(c) if isinstance(c, str) else c for c in cells), style=row.style or None)
        return table

    def _fit(self, kept: Sequence[int], room: int) -> list[int] | None:
        """Widths of these columns within `room`: the widest shrink first, none below its least; None if too wide."""
        widths = [self._widest(k) for k in kept]
        least = [self._least(k) for k in kept]
        room -= 3 * len(kept) + 1
        while sum(widths) > room:
            shrinking = [i for i in range(len(kept)) if widths[i] > least[i]]
            if not shrinking:
                return None
            widths[max(shrinking, key=lambda i: widths[i])] -= 1
        return widths

    def _widest(self, k: int) -> int:
        return max(len(self.columns[k]), *(len(row.cells[k]) for row in self.rows), 1)

    def _least(self, k: int) -> int:
        """A title is wrapped between words, a cell only if it is prose."""
        title = max(map(len, self.columns[k].split()), default=1)
        cells = [str(row.cells[k]) for row in self.rows]
        if self.columns[k] not in self.prose:
            return max(title, *map(len, cells), 1)
        words = [len(word) for cell in cells for word in cell.split()]
        return max(title, *words, min(PROSE, max(map(len, cells), default=0)))

    def _groups(self, room: int) -> list[list[int]]:
        """Columns in groups that fit, each after the keys; none if a column does not fit, or there are too many."""
        keys = list(range(self.keys))
        groups = [list(keys)]
        for k in range(self.keys, len(self.columns)):
            if self._fit([*groups[-1], k], room) is None:
                groups.append(list(keys))
            if self._fit([*groups[-1], k], room) is None:
                return []
            groups[-1].append(k)
        return groups if len(groups) <= MOST else []

    def _blocks(self, room: int) -> Iterator[Text]:
        for row in self.rows:
            cells = [str(cell) for cell in row.cells]
            yield Text("  ".join(cells[: self.keys]), style="bold")
            named = zip(self.columns[self.keys :], cells[self.keys :], strict=True)
            for line in _packed([f"{name}: {cell}" for name, cell in named if cell], room - 2):
                yield Text(f"  {line}")


def _packed(parts: Sequence[str], room: int) -> Iterator[str]:
    """Lines of parts with two spaces between them; a part that is longer than a line is wrapped between words."""
    line = ""
    for part in parts:
        joined = f"{line}  {part}" if line else part
        if len(joined) <= room:
            line = joined
            continue
        if line:
            yield line
        *whole, line = textwrap.wrap(
            part, room, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        ) or [""]
        yield from whole
    if line:
        yield line
