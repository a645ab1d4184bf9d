"""One self-contained HTML file with styles, scripts and data; no network needed."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cache
from importlib.metadata import version
from typing import Any

import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from inexact_muon_lab.report.advice import advice
from inexact_muon_lab.report.arms import tables
from inexact_muon_lab.report.claim_rows import Shown as Shown
from inexact_muon_lab.report.claim_rows import claim_groups, lead, tallies
from inexact_muon_lab.report.declarations import sentences
from inexact_muon_lab.report.figure import Figure
from inexact_muon_lab.report.load import Results, StudyRecord
from inexact_muon_lab.report.open_costs import cut
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


def page(shown: Shown, refresh: int = 0) -> str:
    """The whole page. `refresh`: seconds after which it reloads itself, 0 for never."""
    results, figures = shown.results, shown.figures
    environment = Environment(
        loader=PackageLoader("inexact_muon_lab.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {"slug": slug, "sign": lambda v: SIGNS[v][0], "kind": lambda v: SIGNS[v][1]}
    environment.filters["short"] = lambda v: "open" if v == UNDECIDED else v
    groups = claim_groups(shown)
    states = Counter(run.state for run in results.runs)
    return environment.get_template("page.html").render(
        title=heading(results),
        problems=shown.problems,
        declared=[line for study in shown.studies for line in sentences(study)],
        cut=cut(results),
        advice=advice(results),
        comparisons=tables(shown.comparisons),
        command_line=shown.command_line,
        states=[(state, states[state]) for state in STATES if states[state]],
        boards=tallies(shown),
        counted=len(shown.counted),
        lead=lead(shown),
        groups=groups,
        costs=[(row.claim.sentence, row.cost) for group in groups for row in group.rows if row.cost],
        about=about(results),
        paper=PAPER,
        hero=_hero(figures),
        sections=sections(figures),
        studies=[_study(study) for study in shown.studies],
        refresh=refresh,
        version=version("inexact-muon"),
        style=_raw(environment, "page.css"),
        script=_raw(environment, "page.js"),
        bundle=Markup(_bundle()),
        data=inline({figure.id: [panel.with_data() for panel in figure.panels] for figure in figures}),
    )


def _hero(figures: list[Figure]) -> Figure | None:
    """The figure whose first panel is shown at the top."""
    plotted = {figure.id: figure for figure in figures if figure.panels}
    return next((plotted[name] for name in (*HERO, *plotted) if name in plotted), None)


def heading(results: Results) -> str:
    """The study's own title, or the question that several studies answer."""
    return results.studies[0].title if len(results.studies) == 1 else "What precise orthogonalisation buys in Muon"


def about(results: Results) -> str:
    """ "6 studies, 312 runs"."""
    counts = ((len(results.studies), "study", "studies"), (len(results.runs), "run", "runs"))
    return ", ".join(f"{count} {one if count == 1 else many}" for count, one, many in counts)


def sections(figures: list[Figure]) -> list[tuple[str, list[Figure]]]:
    """Figures by section, in order."""
    by_section: dict[str, list[Figure]] = {}
    for figure in figures:
        by_section.setdefault(figure.section, []).append(figure)
    return list(by_section.items())


def slug(name: str) -> str:
    """A name as an anchor."""
    return "section-" + re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def inline(value: Any) -> Markup:
    """JSON for a script element, with "<" escaped."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


@cache
def _bundle() -> str:
    """vega, vega-lite and vega-embed from the installed package; nothing is fetched."""
    bundle: Any = vl_convert.javascript_bundle  # its stub requires an argument that is optional
    return str(bundle()).replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _raw(environment: Environment, name: str) -> Markup:
    assert environment.loader is not None
    return Markup(environment.loader.get_source(environment, name)[0])


def _study(study: StudyRecord) -> dict[str, Any]:
    metrics = list(dict.fromkeys(name for run in study.runs for name in run.result))
    states = Counter(run.state for run in study.runs)
    return {
        "name": study.name,
        "title": study.title,
        "folder": str(study.folder),
        "states": [(state, states[state]) for state in STATES if states[state]],
        "header": ["run", "state", *(name.removeprefix("optimizer.") for name in FIELDS), *metrics],
        "runs": [
            [
                run.id,
                run.state,
                *("" if (v := field_of(run.spec, name)) is None else short(v) for name in FIELDS),
                *("" if (v := run.result.get(name)) is None else f"{v:.4f}" for name in metrics),
            ]
            for run in study.runs
        ],
    }
