"""One self-contained HTML file: styles, scripts and data inside; no network."""

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

from inexact_muon.lab.board import short
from inexact_muon.lab.study import field_of
from inexact_muon.report.claims import Judged, findings, overall
from inexact_muon.report.figure import Figure
from inexact_muon.report.load import Results, StudyRecord
from inexact_muon.report.planned import sentences
from inexact_muon.statistics import CONFIRMED, REFUTED, UNDECIDED, Verdict

SIGNS: dict[Verdict, tuple[str, str]] = {
    CONFIRMED: ("✓", "good"),
    REFUTED: ("✗", "bad"),
    UNDECIDED: ("…", "open"),
}
"""Sign and colour of a verdict: never colour alone."""

STATES = ("finished", "diverged", "failed", "running", "waiting")
FIELDS = ("optimizer.name", "optimizer.polar", "optimizer.lr", "optimizer.momentum", "seed", "steps")


def page(results: Results, judged: list[Judged], figures: list[Figure], refresh: int = 0) -> str:
    """The whole page. `refresh`: seconds after which it loads itself again, 0 for never."""
    environment = Environment(
        loader=PackageLoader("inexact_muon.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {"slug": slug, "sign": lambda v: SIGNS[v][0], "kind": lambda v: SIGNS[v][1]}
    counts = Counter(overall(judged).values())
    states = Counter(run.state for run in results.runs)
    return environment.get_template("page.html").render(
        title=heading(results),
        total=len(results.runs),
        problems=results.tables.problems,
        declared=[line for study in results.studies for line in sentences(study)],
        states=[(state, states[state]) for state in STATES if states[state]],
        tally=[(verdict, *SIGNS[verdict], counts[verdict]) for verdict in SIGNS],
        top=findings(judged),
        judged=judged,
        sections=sections(figures),
        studies=[_study(study) for study in results.studies],
        refresh=refresh,
        version=version("inexact-muon"),
        style=_raw(environment, "page.css"),
        script=_raw(environment, "page.js"),
        bundle=Markup(_bundle()),
        data=inline({figure.id: [panel.with_data() for panel in figure.panels] for figure in figures}),
    )


def heading(results: Results) -> str:
    """The study's own title, or the folder's name for several."""
    return results.studies[0].title if len(results.studies) == 1 else f"{results.folder.resolve().name}: all studies"


def sections(figures: list[Figure]) -> list[tuple[str, list[Figure]]]:
    """Figures by section, in order."""
    found: dict[str, list[Figure]] = {}
    for figure in figures:
        found.setdefault(figure.section, []).append(figure)
    return list(found.items())


def slug(name: str) -> str:
    """A name for an anchor."""
    return "section-" + re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def inline(value: Any) -> Markup:
    """JSON that can stand inside a script element: no "<" can end it."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


@cache
def _bundle() -> str:
    """vega, vega-lite and vega-embed, from the package: nothing is fetched."""
    bundle: Any = vl_convert.javascript_bundle  # its stub wants an argument that it does not need
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
        "header": ["run", "state", *(field.removeprefix("optimizer.") for field in FIELDS), *metrics],
        "runs": [
            [
                run.id,
                run.state,
                *("" if (v := field_of(run.spec, field)) is None else short(v) for field in FIELDS),
                *("" if (v := run.result.get(name)) is None else f"{v:.4f}" for name in metrics),
            ]
            for run in study.runs
        ],
    }
