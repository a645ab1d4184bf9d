"""The content as files: CSV, SVG and PNG of each figure, and report.md for terminals and pull requests."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import vl_convert

from inexact_muon._text import printable
from inexact_muon_lab.report.arms import tables
from inexact_muon_lab.report.charts import SCHEMA
from inexact_muon_lab.report.claims import Judged, findings
from inexact_muon_lab.report.figure import Figure
from inexact_muon_lab.report.page import SIGNS, environment
from inexact_muon_lab.report.shown import Shown
from inexact_muon_lab.store.files import replace

WIDTH = 460
"""Width of a panel in files."""


def picture(figure: Figure) -> dict[str, Any]:
    """All panels of a figure, two per row, on white."""
    panels = [
        {k: v for k, v in panel.spec.items() if k not in ("$schema", "autosize", "config")}
        | {"data": {"name": f"rows {index}"}, "width": WIDTH, "title": panel.title}
        for index, panel in enumerate(figure.panels)
    ]
    apart = {"resolve": {"scale": {"color": "independent", "shape": "independent"}}}
    return {
        "$schema": SCHEMA,
        "title": {"text": f"{figure.title} ({figure.paper})", "anchor": "start", "fontSize": 16},
        "datasets": {f"rows {index}": list(panel.rows) for index, panel in enumerate(figure.panels)},
        "vconcat": [{"hconcat": panels[i : i + 2], **apart} for i in range(0, len(panels), 2)],
        **apart,
        "background": "white",
    }


def save_figure(figure: Figure, folder: Path, pictures: bool = True) -> None:
    """ID.csv with numbers that read back exactly, and ID.svg and ID.png if `pictures`; nothing without data."""
    if figure.panels:
        out = io.StringIO()
        names = list(dict.fromkeys(name for row in figure.rows for name in row))
        writer = csv.DictWriter(out, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(figure.rows)
        replace(folder / f"{figure.id}.csv", out.getvalue().encode())
    if figure.panels and pictures:
        spec = json.dumps(_printable(picture(figure)))
        replace(folder / f"{figure.id}.svg", vl_convert.vegalite_to_svg(spec).encode())
        replace(folder / f"{figure.id}.png", vl_convert.vegalite_to_png(spec, scale=1.5))


def _printable(value: Any) -> Any:
    """A chart without control characters, on which the renderer of SVG aborts the process."""
    if isinstance(value, dict):
        return {printable(str(key)): _printable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(one) for one in value]
    return printable(value) if isinstance(value, str) else value


def markdown(shown: Shown) -> str:
    """Claims, tables, and the paths of the pictures."""
    theirs = [item for item in shown.reference_judged if item.finding.statistic]
    claims = [
        (j.claim.sentence, j.claim.where, f"{SIGNS[j.verdict][0]} {j.verdict}", j.finding.statistic,
         j.finding.range, j.finding.sample, j.finding.evidence, "; ".join(j.notes))
        for j in (*shown.judged, *theirs)
    ]  # fmt: skip
    plain = environment(autoescape=False)
    plain.filters |= {"text": text, "printable": printable}
    return plain.get_template("report.md").render(
        shown=shown,
        states=Counter(run.state for run in shown.results.runs).items(),
        findings=[line(item) for item in findings([j for j in shown.judged if j.claim.id in shown.counted])],
        claims=claims,
        comparisons=tables(shown.arms),
    )


def line(item: Judged) -> str:
    """A finding in one line."""
    f, sign = item.finding, SIGNS[item.verdict][0]
    return f"{sign} {item.claim.sentence}: {item.verdict}. {f.statistic} ({f.evidence}, {f.sample})"


def text(cell: str) -> str:
    """A table cell, escaped for Markdown and HTML."""
    return printable(cell).replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").replace("\n", " ")
