"""The content as files: CSV, SVG and PNG of each figure, and report.md for terminals and pull requests."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import vl_convert

from inexact_muon._text import printable
from inexact_muon_lab.report.advice import advice
from inexact_muon_lab.report.arms import tables
from inexact_muon_lab.report.claim_rows import tallies
from inexact_muon_lab.report.claims import SENTENCES, Judged, findings
from inexact_muon_lab.report.declarations import sentences
from inexact_muon_lab.report.figure import Figure, Row
from inexact_muon_lab.report.finding import joined
from inexact_muon_lab.report.open_costs import costs, cut
from inexact_muon_lab.report.page import SIGNS, Shown, heading, sections
from inexact_muon_lab.store.files import replace

ROWS = {"name": "rows"}
"""The data of a panel in its chart."""
WIDTH = 460
"""Width of a panel in files."""


def csv_text(rows: list[Row]) -> str:
    """The rows of a figure; numbers are written so that they round-trip exactly."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def picture(figure: Figure) -> dict[str, Any]:
    """All panels of a figure, two per row, on white."""
    panels, data = [], {}
    for index, panel in enumerate(figure.panels):
        spec = {k: v for k, v in panel.spec.items() if k not in ("$schema", "autosize", "config")}
        panels.append(_on(f"rows {index}", spec) | {"width": WIDTH, "title": panel.title})
        data[f"rows {index}"] = list(panel.rows)
    apart = {"resolve": {"scale": {"color": "independent", "shape": "independent"}}}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "title": {"text": f"{figure.title} ({figure.paper})", "anchor": "start", "fontSize": 16},
        "datasets": data,
        "vconcat": [{"hconcat": panels[i : i + 2], **apart} for i in range(0, len(panels), 2)],
        **apart,
        "background": "white",
    }


def _on(dataset: str, spec: dict[str, Any]) -> dict[str, Any]:
    """A chart and its layers over this dataset instead of the one named "rows"."""
    own = spec | {"data": {"name": dataset}} if spec.get("data") == ROWS else dict(spec)
    return own | {"layer": [_on(dataset, layer) for layer in spec["layer"]]} if "layer" in spec else own


def save_figure(figure: Figure, folder: Path, pictures: bool = True) -> list[Path]:
    """ID.csv, and ID.svg and ID.png if `pictures`; nothing for a figure without data."""
    if not figure.panels:
        return []
    contents = {"csv": csv_text(figure.rows).encode()}
    if pictures:
        spec = json.dumps(_printable(picture(figure)))
        contents |= {
            "svg": vl_convert.vegalite_to_svg(spec).encode(),
            "png": vl_convert.vegalite_to_png(spec, scale=1.5),
        }
    for suffix, content in contents.items():
        replace(folder / f"{figure.id}.{suffix}", content)
    return [folder / f"{figure.id}.{suffix}" for suffix in contents]


def _printable(value: Any) -> Any:
    """A chart without control characters, on which the renderer of SVG aborts the process."""
    if isinstance(value, dict):
        return {printable(str(key)): _printable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(one) for one in value]
    return printable(value) if isinstance(value, str) else value


def markdown(shown: Shown) -> str:
    """Claims, tables, and the paths of the pictures."""
    results, judged = shown.results, shown.judged
    states = Counter(run.state for run in results.runs)
    lines = [f"# {text(heading(results))}", ""]
    lines += [", ".join([f"{len(results.runs)} runs", *(f"{count} {state}" for state, count in states.items())]), ""]
    lines += [f"- {text(problem)}" for problem in shown.problems]
    for name, counts in tallies(shown):
        board = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        lines.append(f"- {name}, {len(shown.counted)} claims: {board}")
    lines += [f"- {text(line(item))}" for item in findings(judged)]
    lines += [f"- {text(advised)}" for advised in (*advice(results), *cut(results))]
    lines += [f"- {SENTENCES[name]}: {text(price)}" for name, price in costs(results, judged).items()]
    lines += [f"- to go on: `{printable(shown.command_line)} --budget 10m`"] if shown.command_line else []
    head = ("claim", "where", "verdict", "statistic", "95 % interval", "sample", "evidence", "note")
    rows = [
        (j.claim.sentence, j.claim.where, f"{SIGNS[j.verdict][0]} {j.verdict}", j.finding.statistic,
         j.finding.range, j.finding.sample, j.finding.evidence, notes(j))
        for j in (*judged, *(item for item in shown.reference_judged if item.finding.statistic))
    ]  # fmt: skip
    declared = [text(sentence) + "." for study in shown.studies for sentence in sentences(study)]
    lines += ["", "## Claims", "", *(line for sentence in declared for line in (sentence, "")), *table(head, rows)]
    if shown.comparisons:
        lines += ["", "## Arms against each other"]
        for one in tables(shown.comparisons):
            lines += ["", f"{text(one.title)}:", "", *table(one.header, one.rows)]
    for name, members in sections(shown.figures):
        lines += ["", f"## {name}"]
        for figure in members:
            lines += ["", f"### {figure.title} ({figure.paper})", ""]
            if figure.panels:
                lines += [figure.text, "", f"![{figure.title}](report/{figure.id}.svg)"]
            else:
                lines += [f"No data for this picture yet: `{figure.missing}`"]
            for one in figure.tables:
                lines += ["", *([f"{one.title}:", ""] if one.title else []), *table(one.header, one.rows)]
    return "\n".join(lines) + "\n"


def line(item: Judged) -> str:
    """A finding in one line."""
    f = item.finding
    sign = SIGNS[item.verdict][0]
    return f"{sign} {item.claim.sentence}: {item.verdict}. {f.statistic} ({f.evidence}, {f.sample})"


def notes(item: Judged) -> str:
    """Notes on a verdict: the claim's own, the effect of the correction, noise and detectable difference."""
    return joined(item.finding.note, item.changed, item.finding.noise)


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """A Markdown table."""
    head = list(header)
    body = [[text(cell) for cell in row] for row in rows]
    return ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *body)]


def text(cell: str) -> str:
    """A table cell, escaped for Markdown and HTML."""
    return printable(cell).replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").replace("\n", " ")
