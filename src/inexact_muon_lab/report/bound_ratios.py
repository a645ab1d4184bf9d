"""Every bound against measured values: on problems with proved constants, and between the numbers of a training."""

from __future__ import annotations

from collections.abc import Iterator

from inexact_muon_lab.report import charts, sources
from inexact_muon_lab.report.figure import Figure, Row, Table
from inexact_muon_lab.report.finding import Finding, unknown
from inexact_muon_lab.report.ladders import Series, oracle_in_words
from inexact_muon_lab.report.tables import Bound, Theory, named
from inexact_muon_lab.statistics import FALSE, OPEN, TRUE, known_value, quantile

ROUNDING = 1e-9
"""Relative rounding tolerance of inequalities."""
SLACK = 1e-6
"""Relative rounding tolerance of inequalities between measured numbers."""
STUDY = "theory study"


def figure(tables: tuple[Theory, ...]) -> Figure:
    """bound / measured by statement."""
    measured = [(named(STUDY, t.origin), [row for bound in t.rows for row in _rows(bound)]) for t in tables]
    panels = [charts.ratios(f"{name}: bound / measured, 1 is tight", rows) for name, rows in measured if rows]
    lines = [line for _, rows in measured for line in _lines(rows)]
    caption = (
        "Each dot is a statement on one run: an oracle on a problem whose constants are proved. Two numbers: our bound "
        "from gap and overshoot on the same run. Ratios above 10,000 are drawn there; what the paper refuses "
        "(delta of 1 or more) is not drawn."
    )
    head = ("statement", "runs", "paper / measured: least", "median", "two numbers / measured: least", "median")
    return Figure("theory", sources.BEYOND, "Theory: bound against measured", "Theorems 1 to 7", caption, panels,
                  Table(head, lines), sources.THEORY)  # fmt: skip


def _rows(row: Bound) -> Iterator[Row]:
    """Both bounds, if they and the measured value are positive: the axis is logarithmic."""
    for name, value in (("paper", row.paper), ("two numbers", row.ours)):
        if value is not None and value > 0.0 and row.measured > 0.0:
            yield {"statement": row.statement, "problem": row.problem, "oracle": oracle_in_words(row.oracle),
                   "bound": name, "measured": row.measured, "margin": row.margin, "value": value,
                   "ratio": value / row.measured}  # fmt: skip


def _lines(rows: list[Row]) -> Iterator[tuple[str, ...]]:
    for statement in dict.fromkeys(row["statement"] for row in rows):
        cells, runs = [], 0
        for name in ("paper", "two numbers"):
            ratios = [row["ratio"] for row in rows if row["statement"] == statement and row["bound"] == name]
            runs = max(runs, len(ratios))
            cells += [f"{min(ratios):.3g}", f"{quantile(ratios, 0.5):.3g}"] if ratios else ["-", "-"]
        yield statement, str(runs), *cells


def every_bound_holds(table: Theory) -> Finding:
    """measured <= bound for both bounds of every row, up to the noise of the measurement."""
    broken, close, checked = [], 0, 0
    for row in table.rows:
        for bound in (row.paper, row.ours):
            if bound is not None:
                checked += 1
                limit = bound + ROUNDING * abs(bound)
                if row.measured - row.margin > limit:
                    broken.append(f"{row.statement} on {row.problem} with {row.oracle}")
                close += row.measured - row.margin <= limit < row.measured + row.margin
    text = f"{len(broken)} of {checked} bounds lie below what was measured" if checked else ""
    note = "; ".join(broken[:3]) or (f"{close} within the noise of the measurement" if close else "")
    p = FALSE if broken else OPEN if close or not checked else TRUE
    value = known_value(len(broken), checked)
    return Finding(named(STUDY, table.origin), text, value, p, note, "bound", count=(len(broken), checked))


def bounds_hold(ladder: Series) -> Finding:
    """|eta| <= delta, nu <= 1 + delta, 1 - eta <= nu in every layer at every record; counted, not tested."""
    checked, broken = 0, []
    for run in ladder.runs:
        checked += len(run.inexactness)
        for step, layer, delta, eta, nu in run.inexactness:
            slack = SLACK * (1 + abs(delta))
            if abs(eta) > delta + slack or nu > 1 + delta + slack or 1 - eta > nu + slack:
                broken.append(f"{layer} at step {step} of {run.id}")
    if not checked:
        return unknown(ladder.evidence, "no LMO error was recorded: telemetry.every")
    text = f"{len(broken)} of {checked} measured layers outside the bounds"
    value, p = known_value(len(broken), len(ladder.seeds)), FALSE if broken else TRUE
    return Finding(ladder.evidence, text, value, p, "; ".join(broken[:3]), count=(len(broken), checked))
