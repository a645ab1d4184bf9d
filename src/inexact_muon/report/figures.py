"""Every picture of the report, in order; those without data say what to run."""

from __future__ import annotations

from inexact_muon.report import charts, cotuning, image_figures, language_figures, precision, sources, theory
from inexact_muon.report.figure import Figure, Panel, Table
from inexact_muon.report.load import Results
from inexact_muon.report.tables import OracleRow

FLOOR = 1e-9
"""Errors below this are drawn at it."""

BEYOND = "Beyond the paper's experiments"


def figures(results: Results) -> list[Figure]:
    """All of them."""
    tables = results.tables
    return [
        *language_figures.figures(results),
        *image_figures.figures(results),
        theory.figure(tables.theory, BEYOND),
        cotuning.figure(tables.cotuning, BEYOND),
        precision.figure(tables.precision, BEYOND),
        oracles(tables.oracles),
    ]


def oracles(table: tuple[OracleRow, ...]) -> Figure:
    """Every oracle side by side, from the table that the demo writes."""
    rows = [
        {"method": r.method, "family": r.family, "products": r.square, "delta": max(r.delta.small, FLOOR),
         "gap": r.gap.power_law, "overshoot": r.overshoot.power_law}
        for r in table
    ]  # fmt: skip
    plain = {r.method for r in table if r.family != "exact-svd" and r.square <= 25 and r.method.count("=") == 1}
    shown = [row for row in rows if row["method"] in plain]
    panels: list[Panel] = []
    if shown:
        panels = [
            charts.scatter("Error bound at 1e-3", shown, ("products", "cost in n³ products"), ("delta", "delta"), True),
            charts.scatter("On singular values j⁻¹; exact is (0, 1)", rows, ("gap", "gap"), ("overshoot", "overshoot")),
        ]
    head = ("oracle", "delta at 1e-3", "gap", "overshoot", "n³ products")
    lines = [
        (r.method, f"{max(r.delta.small, FLOOR):.3g}", f"{r.gap.power_law:.4f}", f"{r.overshoot.power_law:.4f}",
         f"{r.square:.1f}")
        for r in table
    ]  # fmt: skip
    caption = "Computed from the coefficients, in exact arithmetic: no training involved."
    return Figure("oracles", "Oracles", "Every oracle: cost and error", "not in the paper", caption, panels,
                  Table(head, lines), sources.ORACLES)  # fmt: skip
