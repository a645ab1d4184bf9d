"""The demo: every oracle side by side, the tiny studies, and the page about them."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from inexact_muon import catalogue
from inexact_muon.lab import study
from inexact_muon.lab.decode import decode, read_toml
from inexact_muon.lab.engines import ENGINES, EngineOptions
from inexact_muon.lab.errors import LabError
from inexact_muon.lab.sweep import sweep
from inexact_muon.report.build import announce, build

SEEDS: dict[str, tuple[int, ...]] = {
    "gpt-iterations": (0, 1, 2),
    "cnn-iterations": (0, 1, 2),
    "gpt-heatmap": (0,),
    "cnn-steps": (0,),
    "optimizers": (0,),
}
"""The tiny studies and their seeds: three where a verdict needs an interval and the time allows it."""


def demo(out: Path, console: Console) -> None:
    """Oracles, studies, report; interrupted and started again, it goes on where it was."""
    save_oracles(out, console)
    workers = os.cpu_count() or 1
    for index, name in enumerate(SEEDS):
        planned = plan(name)
        console.print(f"study {index + 1} of {len(SEEDS)}: {planned.title}, {len(planned.runs)} runs", highlight=False)
        options = EngineOptions(workers=min(workers, len(planned.runs)), address="", logs=out / name / "logs")
        try:
            sweep(planned, out / name, partial(ENGINES["local"], options), console)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"finished runs are stored in {out}; the same command resumes") from None
    announce(build(out, console), console)


def plan(name: str) -> study.Plan:
    """A tiny study with the demo's seeds."""
    path = studies() / f"{name}.toml"
    written = decode(read_toml(path), study.Study, str(path))
    return study.plan(msgspec.structs.replace(written, seeds=SEEDS[name]), str(path))


def save_oracles(out: Path, console: Console) -> None:
    """The table and the picture of all oracles."""
    with console.status("designing the oracles and drawing them"):
        paths = catalogue.save(catalogue.rows(), out)
    console.print("oracles: " + ", ".join(str(path) for path in paths), soft_wrap=True, highlight=False)


def show_oracles(out: Path, console: Console) -> None:
    """The same, with the table printed."""
    save_oracles(out, console)
    title = "Oracles: error bound by smallest singular value, gap and overshoot by spectrum, cost in products"
    shown = Table(title=title)
    for name in catalogue.header():
        first = name == "oracle"
        shown.add_column(name, justify="left" if first else "right", no_wrap=first, min_width=0 if not first else 24)
    for r in catalogue.rows():
        shown.add_row(*catalogue.cells(r))
    console.print(shown)


def studies() -> Path:
    """The folder of the tiny studies: in an installed package, or in the repository."""
    here = Path(__file__).parent
    for place in (here / "studies" / "tiny", here.parent.parent / "studies" / "tiny"):
        if place.is_dir():
            return place
    raise LabError("the tiny studies are missing; install the package again")
