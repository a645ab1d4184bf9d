"""The demo: all oracles, the tiny studies, and the report page."""

from __future__ import annotations

import json
import os
import shutil
import time
from contextlib import closing
from pathlib import Path

import msgspec
import torch
from rich.console import Console
from rich.progress import track

from inexact_muon.sheet import Row, Sheet
from inexact_muon_lab.bounds import cases as bounds
from inexact_muon_lab.cli import catalogue
from inexact_muon_lab.decide import command
from inexact_muon_lab.report.build import announce, build
from inexact_muon_lab.report.open_costs import COMMAND
from inexact_muon_lab.spec import study
from inexact_muon_lab.store.files import replace
from inexact_muon_lab.store.store import REFERENCE
from inexact_muon_lab.sweep.engines import Engine, LocalEngine
from inexact_muon_lab.sweep.sweep import sweep

HERE, ROOT = Path(__file__).parent.parent, Path(__file__).parents[3]
"""The installed package, and the repository: studies and evidence are shipped in the one, and written in the other."""
STUDIES = ("cnn-iterations", "gpt-iterations", "gpt-heatmap", "cnn-steps", "matrix", "optimizers")
"""Order of training; the time limit cuts the last ones."""
ENOUGH = 240.0
"""Seconds after which no run is started, so that the demo takes five minutes; the page lists what was cut."""


def demo(out: Path, console: Console, budget: str = "") -> None:
    """Oracles, studies, report; then, for `budget` such as 10m, what the declared claims still need, cheapest first."""
    began, seconds = time.monotonic(), command.seconds(budget)
    save_oracles(out, console)
    replace(out / COMMAND, f"inexact-muon demo --out {out}\n".encode())
    copy_reference(out)
    check_theory(out, console)
    try:
        with closing(workers()) as engine:
            for index, planned in enumerate(map(plan, STUDIES), start=1):
                title = f"study {index} of {len(STUDIES)}: {planned.title}, {len(planned.runs)} runs"
                console.print(title, highlight=False)
                over = lambda: time.monotonic() - began > ENOUGH  # noqa: E731
                sweep(planned, out / planned.name, lambda: engine, console, enough=over, close=False)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"finished runs are stored in {out}; the same command resumes") from None
    if seconds:
        declared = [file(name) for name in STUDIES if plan(name).decide]
        command.decide(declared, out, workers, console, budget=seconds, page=False)
    announce(build(out, console), console)


def workers() -> Engine:
    """One worker per core."""
    return LocalEngine(os.cpu_count() or 1)


def check_theory(out: Path, console: Console) -> None:
    """Write theory.json: every statement on a few runs; the whole study takes minutes."""
    if not (out / "theory.json").exists():
        torch.set_num_threads(1)
        cases = list(bounds.cases(fast=True))
        rows = bounds.measure(track(cases, "checking every bound", console=console, disable=not console.is_terminal))
        replace(out / "theory.json", json.dumps({"rows": rows}).encode())


def copy_reference(out: Path) -> None:
    """Copy the reference files into the reference folder."""
    for path in reference_files():
        (out / REFERENCE).mkdir(parents=True, exist_ok=True)
        if not (out / REFERENCE / path.name).exists():
            shutil.copyfile(path, out / REFERENCE / path.name)


def reference_files() -> list[Path]:
    """The project's own evidence (hours of training): packed runs and tables."""
    tables = _first((HERE / "report" / "data", ROOT / "docs" / "figures"), "cotuning-study.json")
    return tables + _first((HERE / "studies" / REFERENCE, ROOT / "studies" / REFERENCE), "*.pack")


def studies() -> Path:
    """The folder of the tiny studies."""
    return _first((HERE / "studies" / "tiny", ROOT / "studies" / "tiny"), "*.toml")[0].parent


def _first(folders: tuple[Path, ...], pattern: str) -> list[Path]:
    return next((files for folder in folders if (files := sorted(folder.glob(pattern)))), [])


def plan(name: str) -> study.StudyRuns:
    """A tiny study, seed by seed, so that a time limit leaves complete seeds."""
    written = study.load(file(name))
    return msgspec.structs.replace(written, runs=tuple(sorted(written.runs, key=lambda spec: spec.seed)))


def file(name: str) -> Path:
    """The file of a tiny study."""
    return studies() / f"{name}.toml"


def save_oracles(out: Path, console: Console) -> list[catalogue.CatalogueRow]:
    """Write the table of all oracles."""
    with console.status("designing the oracles"):
        rows = catalogue.rows()
        paths = catalogue.save(rows, out)
    console.print("oracles: " + ", ".join(str(path) for path in paths), soft_wrap=True, highlight=False)
    return rows


def show_oracles(out: Path, console: Console) -> None:
    """The same, and print the table."""
    title = "Oracles: error bound by smallest singular value, gap and overshoot by spectrum, cost in products"
    rows = [Row(catalogue.cells(r)) for r in save_oracles(out, console)]
    Sheet(title, tuple(catalogue.header()), rows, aligned_left=("oracle",)).print(console)
