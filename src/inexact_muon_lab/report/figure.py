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

    def with_data(self) -> dict[str, Any]:
        """The spec including its rows."""
        return {**self.spec, "datasets": {"rows": list(self.rows)}}


@dataclass(frozen=True)
class Table:
    """A small table of formatted text."""

    header: tuple[str, ...] = ()
    rows: Sequence[tuple[str, ...]] = ()
    title: str = ""


@dataclass(frozen=True)
class Figure:
    """A figure of the report.

    Attributes:
        id: base name of its files.
        paper: its number in the paper, or what it adds.
        caption: what is plotted and how to read it, the same for all data.
        missing: the command that produces its data, if there are none.
        printed: numbers of the paper, in a separate table because they are of another problem.
        remarks: sentences about these data, which follow the caption.
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

    @property
    def text(self) -> str:
        """The caption and the remarks."""
        return " ".join((self.caption, *self.remarks))

    @property
    def tables(self) -> list[Table]:
        """The tables that have rows."""
        return [table for table in (self.table, self.printed) if table.rows]

    @property
    def rows(self) -> list[Row]:
        """The data of all panels, without duplicates."""
        return list({id(row): row for panel in self.panels for row in panel.rows}.values())
