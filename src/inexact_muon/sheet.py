"""Tables of plain text for terminals of any width.

A table that is too wide is narrowed by wrapping prose, then by dropping empty and optional columns. If it still does
not fit, each row is written as a block of lines. Cells are never truncated.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from inexact_muon._text import printable

PROSE = 24
"""Minimum width of a column of prose."""


@dataclass(frozen=True)
class Row:
    """The cells of a row, and its style on a terminal that has styles."""

    cells: Sequence[str]
    style: str = ""


@dataclass(frozen=True)
class Sheet:
    """A table that adapts to the available width.

    Args:
        aligned_left: columns of text, aligned to the left; the others hold numbers.
        prose: columns that may be wrapped between words.
        optional: columns that may be dropped, in this order.
        closing: number of final rows that are separated by a line.
        keys: number of leading columns that identify a row: the head of its block.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Row]
    aligned_left: tuple[str, ...] = ()
    prose: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    closing: int = 0
    keys: int = 1

    def print(self, to: Any) -> None:
        """Print to a console, something with a `width` and a `print` that takes a style, such as rich's."""
        for line, style in self.lines(to.width):
            to.print(line, style=style or None, soft_wrap=True, highlight=False, markup=False, emoji=False)

    def text(self, width: int) -> str:
        """The table, fitted to this width."""
        return "".join(f"{line}\n" for line, _ in self.lines(width))

    def lines(self, width: int) -> Iterator[tuple[str, str]]:
        """Each line with its style."""
        if self.title:
            yield printable(self.title), "italic"
        shown = list(range(len(self.columns)))
        empty = [name for k, name in enumerate(self.columns) if not any(row.cells[k] for row in self.rows)]
        for count, name in enumerate((None, *empty, *self.optional)):
            shown = [k for k in shown if self.columns[k] != name]
            dropped = [name for name in self.optional[: max(0, count - len(empty))] if name not in empty]
            if widths := self._fit(shown, width):
                yield from self._grid(shown, widths)
                if dropped:
                    yield f"Left out at this width: {', '.join(dropped)}.", ""
                return
        yield from self._blocks(width)

    def _grid(self, shown: Sequence[int], widths: Sequence[int]) -> Iterator[tuple[str, str]]:
        """The columns in a frame."""
        yield _rule("┏━┳┓", widths), ""
        yield from ((line, "") for line in self._boxed([self.columns[k] for k in shown], shown, widths, "┃"))
        yield _rule("┡━╇┩", widths), ""
        for i, row in enumerate(self.rows):
            if self.closing and i == len(self.rows) - self.closing:
                yield _rule("├─┼┤", widths), ""
            yield from ((line, row.style) for line in self._boxed([row.cells[k] for k in shown], shown, widths, "│"))
        yield _rule("└─┴┘", widths), ""

    def _boxed(self, cells: Sequence[str], shown: Sequence[int], widths: Sequence[int], bar: str) -> Iterator[str]:
        """The lines of one row: cells wrapped to their widths, titles and text to the left, numbers to the right."""
        wrapped = [_wrapped(printable(cell), width) for cell, width in zip(cells, widths, strict=True)]
        for line in range(max(map(len, wrapped))):
            parts = []
            for k, width, cell in zip(shown, widths, wrapped, strict=True):
                part = cell[line] if line < len(cell) else ""
                parts.append(part.ljust(width) if self.columns[k] in self.aligned_left else part.rjust(width))
            yield f"{bar} {f' {bar} '.join(parts)} {bar}"

    def _fit(self, shown: Sequence[int], available: int) -> list[int] | None:
        """Column widths within `available`, shrinking the widest first, none below its minimum; None if too wide."""
        widths = [max(len(self.columns[k]), *(len(row.cells[k]) for row in self.rows), 1) for k in shown]
        least = [self._least(k) for k in shown]
        available -= 3 * len(shown) + 1
        while sum(widths) > available:
            shrinking = [i for i in range(len(shown)) if widths[i] > least[i]]
            if not shrinking:
                return None
            widths[max(shrinking, key=lambda i: widths[i])] -= 1
        return widths

    def _least(self, k: int) -> int:
        """Minimum width: titles wrap between words, cells only if they are prose."""
        title = max(map(len, self.columns[k].split()), default=1)
        cells = [row.cells[k] for row in self.rows]
        if self.columns[k] not in self.prose:
            return max(title, *map(len, cells), 1)
        words = [len(word) for cell in cells for word in cell.split()]
        return max(title, *words, min(PROSE, max(map(len, cells), default=0)))

    def _blocks(self, available: int) -> Iterator[tuple[str, str]]:
        for row in self.rows:
            cells = [printable(cell) for cell in row.cells]
            yield "  ".join(cells[: self.keys]), "bold"
            named = zip(self.columns[self.keys :], cells[self.keys :], strict=True)
            for line in _packed([f"{name}: {cell}" for name, cell in named if cell], available - 2):
                yield f"  {line}", ""


def _rule(corners: str, widths: Sequence[int]) -> str:
    """A horizontal line: left end, dash, crossing and right end."""
    first, dash, crossing, last = tuple(corners)
    return first + crossing.join(dash * (width + 2) for width in widths) + last


def _wrapped(cell: str, width: int) -> list[str]:
    """The cell in lines of at most this width, broken between words where possible."""
    return [part for line in cell.split("\n") for part in textwrap.wrap(line, width, break_on_hyphens=False) or [""]]


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
