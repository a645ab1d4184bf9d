"""Every picture of the report, in order; those without data say what to run."""

from __future__ import annotations

from inexact_muon.report import charts, image_figures, language_figures
from inexact_muon.report.figure import Figure, Panel, Table
from inexact_muon.report.load import Results

FLOOR = 1e-9
"""Errors below this are drawn at it."""

BEYOND = "Beyond the paper's experiments"
EXTENSIONS = (
    Figure("theory", BEYOND, "Theory: bound against measured", "Theorems 1 and 2", ""),
    Figure("co-tuning", BEYOND, "Co-tuning: regret by rule", "Corollary 3", ""),
    Figure("precision", BEYOND, "Precision control: iterations by layer over time", "not in the paper", ""),
)
"""Pictures whose data no study records so far; the page says so."""


def figures(results: Results) -> list[Figure]:
    """All of them."""
    return [*language_figures.figures(results), *image_figures.figures(results), *EXTENSIONS, oracles(results)]


def oracles(results: Results) -> Figure:
    """Every oracle side by side, from the table that the demo writes."""
    rows = [
        {
            "method": r["method"],
            "family": r["family"],
            "products": r["square"],
            "delta": max(r["delta"]["1e-03"], FLOOR),
            "gap": r["gap"]["power-law"],
            "overshoot": r["overshoot"]["power-law"],
        }
        for r in results.oracles
    ]
    shown = [r for r in rows if r["family"] != "exact-svd" and r["products"] <= 25 and r["method"].count("=") == 1]
    panels: tuple[Panel, ...] = ()
    if shown:
        panels = (
            charts.scatter("Error bound at 1e-3", shown, ("products", "cost in n³ products"), ("delta", "delta"), True),
            charts.scatter("On singular values j⁻¹; exact is (0, 1)", rows, ("gap", "gap"), ("overshoot", "overshoot")),
        )
    head = ("oracle", "delta at 1e-3", "gap", "overshoot", "n³ products")
    lines = tuple(
        (r["method"], f"{r['delta']:.3g}", f"{r['gap']:.4f}", f"{r['overshoot']:.4f}", f"{r['products']:.1f}")
        for r in rows
    )
    caption = "Computed from the coefficients, in exact arithmetic: no training involved."
    return Figure("oracles", "Oracles", "Every oracle: cost and error", "not in the paper", caption,
                  panels, Table(head, lines) if lines else None, "inexact-muon demo")  # fmt: skip
