"""What a function of `figures` returns: rows, charts over these rows, a table, or what to run to get them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Panel:
    """One chart: a vega-lite spec over a dataset named "rows"."""

    title: str
    rows: tuple[Row, ...]
    spec: dict[str, Any]

    def with_data(self) -> dict[str, Any]:
        """The spec with its rows inside."""
        return {**self.spec, "datasets": {"rows": list(self.rows)}}


@dataclass(frozen=True)
class Table:
    """A small table of text; numbers are formatted already."""

    header: tuple[str, ...] = ()
    rows: Sequence[tuple[str, ...]] = ()
    title: str = ""


@dataclass(frozen=True)
class Figure:
    """A picture of the report.

    Attributes:
        id: the name of its files.
        paper: its number in the paper, or what it adds.
        caption: what is drawn and how to read it.
        missing: what makes its data, for a page without them.
        printed: numbers of the paper, which stand in no table of ours: they are of another problem.
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

    @property
    def tables(self) -> list[Table]:
        """Those that have rows."""
        return [table for table in (self.table, self.printed) if table.rows]

    @property
    def rows(self) -> list[Row]:
        """The data of all panels; a row that two of them draw appears once."""
        return list({id(row): row for panel in self.panels for row in panel.rows}.values())
