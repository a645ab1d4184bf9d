"""Data types of figures: rows, charts over these rows, a table, or the command that produces them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Panel:
    """One chart: a vega-lite spec over a dataset named "rows"."""

    title: str
    rows: Sequence[Row]
    spec: dict[str, Any]


@dataclass(frozen=True)
class Table:
    """A small table of formatted text."""

    header: tuple[str, ...] = ()
    rows: Sequence[tuple[str, ...]] = ()
    title: str = ""


@dataclass
class Figure:
    """A figure of the report.

    Attributes:
        id: base name of its files.
        paper: its number in the paper, or what it adds.
        caption: what is plotted and how to read it, the same for all data.
        missing: the command that produces its data, if there are none.
        printed: numbers of the paper, in a separate table because they are of another problem.
        remarks: sentences about these data, which follow the caption.
        text: the caption and the remarks.
        tables: those that have rows.
        rows: the data of all panels, without duplicates.
    """

    id: str
    section: str
    title: str
    paper: str
    caption: str
    panels: Sequence[Panel] = ()
    table: Table = Table()
    missing: str = ""
    printed: Table = Table()
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.text = " ".join((self.caption, *self.remarks))
        self.tables = [table for table in (self.table, self.printed) if table.rows]
        self.rows = list({id(row): row for panel in self.panels for row in panel.rows}.values())
