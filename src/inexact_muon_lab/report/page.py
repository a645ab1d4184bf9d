"""One self-contained HTML file with styles, scripts and data; no network needed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from typing import Any

import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from inexact_muon_lab.report.arms import tables
from inexact_muon_lab.report.claims import SENTENCES, Judged, findings
from inexact_muon_lab.report.figure import Panel
from inexact_muon_lab.report.forest import claim_groups, interval_text
from inexact_muon_lab.report.load import RunRecord, StudyRecord
from inexact_muon_lab.report.shown import Shown
from inexact_muon_lab.spec.study import field_of
from inexact_muon_lab.statistics import CONFIRMED, REFUTED, UNDECIDED, Verdict
from inexact_muon_lab.sweep.board import short

SIGNS: dict[Verdict, tuple[str, str]] = {
    CONFIRMED: ("✓", "good"),
    REFUTED: ("✗", "bad"),
    UNDECIDED: ("…", "open"),
}
"""Sign and colour of a verdict, so that colour is never the only cue."""
PAPER = "https://arxiv.org/abs/2510.19933"
HERO = ("table-1", "cnn-loss", "convergence", "sizes")
"""Figures whose first panel may be shown at the top, in order of preference."""
STATES = ("finished", "diverged", "failed", "running", "waiting")
FIELDS = ("optimizer.name", "optimizer.polar", "optimizer.lr", "optimizer.momentum", "seed", "steps")


LEAD = 3
"""Findings at the top of the page."""


def page(shown: Shown, refresh: int = 0) -> str:
    """The whole page. `refresh`: seconds after which it reloads itself, 0 for never."""
    studies, runs = shown.results.studies, shown.results.runs
    html = environment(autoescape=True)
    html.filters |= {"sign": lambda v: SIGNS[v][0], "kind": lambda v: SIGNS[v][1]}
    html.filters["short"] = lambda v: "open" if v == UNDECIDED else v
    plotted = {figure.id: figure for figure in shown.figures if figure.panels}
    return html.get_template("page.html").render(
        shown=shown,
        sentences=SENTENCES,
        comparisons=tables(shown.arms),
        states=_states(runs),
        lead=lead(shown),
        groups=claim_groups(shown),
        about=f"{_count(len(studies), 'study', 'studies')}, {_count(len(runs), 'run', 'runs')}",
        paper=PAPER,
        hero=next((plotted[name] for name in (*HERO, *plotted) if name in plotted), None),
        studies=[_study(study) for study in shown.studies],
        refresh=refresh,
        version=version("inexact-muon"),
        bundle=Markup(_bundle()),
        data=_inline({figure.id: list(map(_with_rows, figure.panels)) for figure in shown.figures}),
    )


def environment(autoescape: bool) -> Environment:
    """The templates of the report."""
    loader = PackageLoader("inexact_muon_lab.report")
    return Environment(loader=loader, autoescape=autoescape, undefined=StrictUndefined, trim_blocks=True)


def lead(shown: Shown) -> list[tuple[Judged, str]]:
    """The most important findings with their numbers in words: own ones first, then those of reference evidence."""
    own = findings([item for item in shown.judged if item.claim.id in shown.counted], LEAD)
    known = {item.claim.id for item in own}
    others = findings([item for item in shown.reference_judged if item.claim.id not in known], LEAD - len(own))
    return [(item, _sentence(item)) for item in (*own, *others)]


def _sentence(item: Judged) -> str:
    """Statistic, interval with its unit, sample and the paper's value."""
    finding, unit = item.finding, item.claim.unit
    paper = "" if item.claim.paper is None else f"; the paper: {unit.text(item.claim.paper)}"
    interval = interval_text(item)
    span = f" ({interval}{unit.suffix}, {finding.sample})" if interval else f" ({finding.sample})"
    return f"{finding.statistic}{'' if finding.count else span}{paper}"


def _count(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _with_rows(panel: Panel) -> dict[str, Any]:
    return {**panel.spec, "datasets": {"rows": list(panel.rows)}}


def _inline(value: Any) -> Markup:
    """JSON for a script element, with "<" escaped."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


@cache
def _bundle() -> str:
    """vega, vega-lite and vega-embed from the installed package; nothing is fetched."""
    bundle: Any = vl_convert.javascript_bundle  # its stub requires an argument that is optional
    return str(bundle()).replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _states(runs: Sequence[RunRecord]) -> list[tuple[str, int]]:
    counts = Counter(run.state for run in runs)
    return [(state, counts[state]) for state in STATES if counts[state]]


def _study(study: StudyRecord) -> dict[str, Any]:
    metrics = list(dict.fromkeys(name for run in study.runs for name in run.result))
    rows = []
    for run in study.runs:
        fields = (field_of(run.spec, name) for name in FIELDS)
        values = (run.result.get(name) for name in metrics)
        own = [*("" if v is None else short(v) for v in fields), *("" if v is None else f"{v:.4f}" for v in values)]
        rows.append([run.id, run.state, *own])
    header = ["run", "state", *(name.removeprefix("optimizer.") for name in FIELDS), *metrics]
    about = {"title": study.title, "folder": str(study.folder), "states": _states(study.runs)}
    return {**about, "header": header, "runs": rows}
