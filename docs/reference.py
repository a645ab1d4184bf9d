"""The reference: a page for each module, an entry for each public name, made when the site is built."""

import importlib
import inspect
import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from markdown import Extension, Markdown
from markdown.preprocessors import HtmlBlockPreprocessor, Preprocessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url
from mkdocstrings import HeadingShiftingTreeprocessor

MODULES = {
    "inexact_muon": "The package: what most people need. `Muon.for_model` is described with `Muon`.",
    "inexact_muon.optim": "Optimizers, step lengths, routing, telemetry.",
    "inexact_muon.polar": "Polar methods: m to approximately U V^T.",
    "inexact_muon.lmo": "Balls: norm, dual norm and oracle.",
    "inexact_muon_lab.tune": "Transfer between oracles, recorded spectra.",
    "inexact_muon.views": "How a parameter is cut into matrices.",
    "inexact_muon.parallel": "Many ranks: strategies, compressors, bytes on the wire.",
    "inexact_muon.integrations.transformers": "transformers' Trainer.",
    "inexact_muon_lab.testing": "Contract suites for oracles and balls of your own.",
    "inexact_muon_lab.problems": "What a training problem of your own returns.",
    "inexact_muon.schedules": "Torch-free: coefficients, design of polynomials, scalar maps, costs, text.",
    "inexact_muon_lab.theory": "Torch-free: every statement as a function of floats.",
}
"""Module -> what it is for, in the order in which people need them."""

FIRST = {
    "inexact_muon": "Muon explain advise plot measure Inexactness transfer predict Scion EF21Muon",
    "inexact_muon.optim": "Muon explain Explanation clip_grad_norm_ QKClip load_foreign flat_stats"
    " to_tensorboard to_wandb StepTimer Scion LMOOptimizer sign_sgd normalised_sgd spectral_descent gluon Length Fixed"
    " Steepest Clipped Smooth",
    "inexact_muon.polar": "parse PolarMethod Auto PolarExpress Zolotarev Cans Jordan You Cesista NewtonSchulz ExactSVD"
    " Polynomial cheapest choose Choice calibrate Costs",
    "inexact_muon.lmo": "Ball Spectral Sign Euclidean ColNorm RowNorm Nuclear Perturbed parse",
    "inexact_muon_lab.tune": "advise Advice plot transfer Transfer record widths Widths",
    "inexact_muon.views": "View Whole Transposed Flatten Split Stacked Interleaved",
    "inexact_muon.parallel": "Strategy AutoStrategy OwnerRank Replicated GramReduced BlockPeriodic Team Wire",
    "inexact_muon_lab.problems": "Task",
    "inexact_muon_lab.testing": "check_polar check_ball",
    "inexact_muon.schedules": "Schedule ScalarMap",
}
"""Module -> names that come first, in this order; the others follow in alphabetical order."""

SHIM = "https://unpkg.com/iframe-worker/shim"


def in_docstring(md: Markdown) -> bool:
    """Whether this converter is the one that mkdocstrings makes for docstrings."""
    return HeadingShiftingTreeprocessor.name in md.treeprocessors


class HtmlBlock(HtmlBlockPreprocessor):
    """HTML at the beginning of a line; text in a docstring."""

    def run(self, lines: list[str]) -> list[str]:
        return lines if in_docstring(self.md) else super().run(lines)


class Doctests(Preprocessor):
    """A block that starts with >>> is code in a docstring; Markdown would take it for a quotation."""

    def run(self, lines: list[str]) -> list[str]:
        if not in_docstring(self.md):
            return lines
        text = re.sub(r"(?m)^(>>> .*(?:\n.+)*)", r"\n```pycon\n\1\n```\n", "\n".join(lines))
        return text.split("\n")


class PlainDocstrings(Extension):
    """Shows docstrings as they are written, where <m, d> is an inner product and ||g||* a dual norm.

    In pages HTML and emphasis are as before.
    """

    def extendMarkdown(self, md: Markdown) -> None:
        md.preprocessors.register(Doctests(md), "doctests", 28)  # before fences are looked for
        md.preprocessors.register(HtmlBlock(md), "html_block", 20)
        for name in ("html", "em_strong"):
            pattern: Any = md.inlinePatterns[name]
            pattern.handleMatch = partial(_outside_docstrings, md, pattern.handleMatch)


def _outside_docstrings(md: Markdown, handle: Callable[..., Any], match: re.Match[str], data: str) -> Any:
    return (None, None, None) if in_docstring(md) else handle(match, data)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Adds the extension; called by mkdocs."""
    config.markdown_extensions.append(PlainDocstrings())  # type: ignore[arg-type]
    return config


def public(module: str) -> list[str]:
    """Classes and functions that the module offers under its own name, those of `FIRST` first."""
    loaded = importlib.import_module(module)
    names = dir(loaded) if hasattr(loaded, "__dir__") else list(vars(loaded))
    own = hasattr(loaded, "__path__")  # a package exports what it imports, a file what it defines

    def offered(name: str) -> bool:
        value = getattr(loaded, name)
        known = inspect.isclass(value) or inspect.isfunction(value)
        return known and value.__module__.startswith("inexact_muon") and (own or value.__module__ == module)

    found = {name for name in names if not name.startswith("_") and offered(name)}
    first = FIRST.get(module, "").split()
    return [*first, *sorted(found - set(first), key=str.lower)]


def origin(module: str, name: str) -> str:
    """The dotted name under which the object is defined, where its docstring is read."""
    value: Any = getattr(importlib.import_module(module), name)
    return f"{value.__module__}.{value.__qualname__}"


@cache
def homes() -> dict[str, str]:
    """Origin of each public name -> the module whose page describes it: the package, else the nearest."""
    found: dict[str, str] = {}
    for module in sorted(MODULES, key=len):  # of several the longest that the origin starts with
        for name in public(module):
            where = origin(module, name)
            if where not in found or (where.startswith(f"{module}.") and found[where] != "inexact_muon"):
                found[where] = module
    return found


def summary(module: str, name: str) -> str:
    """The first line of the docstring, as text of a cell."""
    line = (inspect.getdoc(getattr(importlib.import_module(module), name)) or "").split("\n", 1)[0]
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(p if p.startswith("`") else _plain(p) for p in parts)


def _plain(text: str) -> str:
    """Text as Markdown that shows it as it is: < has no escape but the entity."""
    return re.sub(r"([\\*_{}\[\]|])", r"\\\1", text).replace("<", "&lt;").replace(">", "&gt;")


def page(module: str) -> str:
    """The page of a module: a table of its names, then those whose home it is with their docstrings."""
    lines = [f"# {module}", "", MODULES[module], "", "| name | what it is |", "|---|---|"]
    entries = []
    for name in public(module):
        where = origin(module, name)
        home = homes()[where]
        target = f"#{where}" if home == module else f"{home}.md#{where}"
        lines.append(f"| [`{name}`]({target}) | {summary(module, name)} |")
        if home == module:
            entries += [f"::: {where}", f"    options: {{ heading: {name} }}", ""]
    return "\n".join([*lines, "", *entries])


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages; called by mkdocs."""
    for module in MODULES:
        files.append(File.generated(config, f"reference/{module}.md", content=page(module)))
    return files


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """The theme would fetch a script for the search of pages opened from files; the site has its own."""
    return output.replace(SHIM, get_relative_url("assets/frame-worker.js", page.url))


def on_post_template(output: str, template_name: str, config: MkDocsConfig) -> str:
    """The same for the page that says that a page is missing."""
    return output.replace(SHIM, "assets/frame-worker.js")
