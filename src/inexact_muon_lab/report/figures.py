"""All figures of the report, in order; those without data name the command that produces them."""

from __future__ import annotations

from dataclasses import replace

from inexact_muon_lab.report import bound_ratios, charts, curve_figures, effects_by_size, map_figures, rule_regrets
from inexact_muon_lab.report.figure import Figure, Row, Table
from inexact_muon_lab.report.ladders import grids, in_words, ladders
from inexact_muon_lab.report.load import Results
from inexact_muon_lab.report.sources import ORACLES
from inexact_muon_lab.report.tables import OracleRow
from inexact_muon_lab.spec.oracle_text import parts

FLOOR = 1e-9
"""Smaller errors are plotted at this value."""


def figures(results: Results, reference: Results | None = None) -> list[Figure]:
    """All figures; panels and rows of reference evidence follow and are labelled as such."""
    drawn = _of(results)
    if reference:
        drawn = [_joined(own, theirs) for own, theirs in zip(drawn, _of(reference), strict=True)]
    end = next(k for k, figure in enumerate(drawn) if figure.section != drawn[0].section)
    return [*drawn[:end], effects_by_size.figure(results, reference), *drawn[end:]]


def _joined(own: Figure, theirs: Figure) -> Figure:
    """Own and reference parts of a figure; the computed table of oracles is not evidence and stays as it is."""
    if own.id == "oracles" and own.panels:
        return own
    table = Table(own.table.header or theirs.table.header, [*own.table.rows, *theirs.table.rows])
    if own.table.header != theirs.table.header and own.table.rows and theirs.table.rows:
        table = own.table  # columns of other counts
    return replace(own, panels=[*own.panels, *theirs.panels], table=table, remarks=(*own.remarks, *theirs.remarks))


def _of(results: Results) -> list[Figure]:
    """Those of the paper in its order: Figures 1a, 1b, 2a, 2b, Table 1 with Figure 3, 4, 5; then the others."""
    series, planes = ladders(results), grids(results)
    language, images = ([s for s in series if s.images == which] for which in (False, True))
    measured = [s for s in series if any(run.records("lmo") for run in s.runs)]
    pictures = [g for g in planes if g.images]
    return [
        curve_figures.convergence(language),
        map_figures.heat_maps(results, [g for g in planes if not g.images]),
        curve_figures.training(images),
        map_figures.accuracy(pictures),
        curve_figures.table_one(language),
        curve_figures.lmo_error(measured),
        curve_figures.layers(measured),
        map_figures.accuracy_maps(pictures),
        curve_figures.baselines(results),
        bound_ratios.figure(results.tables.theory),
        rule_regrets.figure(results.tables.cotuning),
        oracles(results.tables.oracles),
    ]


def oracles(table: tuple[OracleRow, ...]) -> Figure:
    """Comparison of all oracles, from the table that the demo writes."""
    texts = {r.method: parts(r.method) for r in table}
    rows: list[Row] = [
        {"method": r.method, "family": in_words(r.family), "iterations": texts[r.method].iterations,
         "products": r.square, "delta": max(r.delta["1e-03"], FLOOR), "gap": r.gap["power-law"],
         "overshoot": r.overshoot["power-law"]}
        for r in table
    ]  # fmt: skip
    shown = [row for row in rows if row["products"] <= 25 and texts[row["method"]].plain]
    cost, bound = charts.quantity("products", "cost in n³ products"), charts.quantity("delta", "largest |1 - f(s)|")
    gap, overshoot = charts.quantity("gap"), charts.quantity("overshoot")
    panels = [
        charts.scatter("Error bound on [1e-3, 1]", shown, cost, bound, log=True),
        charts.scatter("On singular values j⁻¹; exact is (0, 1)", rows, gap, overshoot),
    ]
    head = ("oracle", "bound on [1e-3, 1]", "gap", "overshoot", "n³ products")
    lines = [
        (row["method"], f"{row['delta']:.3g}", f"{row['gap']:.4f}", f"{row['overshoot']:.4f}", f"{row['products']:.1f}")
        for row in rows
    ]
    caption = "Computed from the coefficients, in exact arithmetic: no training involved."
    return Figure("oracles", "Oracles", "Every oracle: cost and error", "not in the paper", caption,
                  panels if shown else [], Table(head, lines), ORACLES)  # fmt: skip
