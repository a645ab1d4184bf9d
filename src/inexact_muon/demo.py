"""The demo: every oracle side by side, the tiny studies, and the page about them."""

from __future__ import annotations

import json
import os
import time
from functools import partial
from pathlib import Path

import msgspec
import torch
from rich.console import Console
from rich.progress import track

from inexact_muon import catalogue
from inexact_muon.lab import study, verify_study
from inexact_muon.lab.decode import decode, read_toml
from inexact_muon.lab.engines import ENGINES, EngineOptions
from inexact_muon.lab.errors import LabError
from inexact_muon.lab.files import replace
from inexact_muon.lab.sweep import sweep
from inexact_muon.report.build import announce, build
from inexact_muon.report.tables import LENT
from inexact_muon.terminal import Row, Sheet

STUDIES = ("gpt-iterations", "cnn-iterations", "gpt-heatmap", "cnn-steps", "optimizers", "matrix")
MORE = ("cnn-iterations", "gpt-iterations")
"""Studies that get two more seeds, which a verdict needs, if there is time."""
ENOUGH = 170.0
"""Seconds after which nothing more is begun, so that the demo ends in five minutes."""


def demo(out: Path, console: Console) -> None:
    """Oracles, studies, report; interrupted and started again, it goes on where it was."""
    began = time.monotonic()
    save_oracles(out, console)
    for index, name in enumerate(STUDIES):
        console.print(f"study {index + 1} of {len(STUDIES)}", highlight=False)
        train(plan(name, (0,)), out / name, console)
    for name in MORE:
        if time.monotonic() - began > ENOUGH:
            console.print(f"no time for more seeds of {name}: the same command again goes on with them")
        else:
            train(plan(name, (0, 1, 2)), out / name, console)
    check_theory(out, console)
    lend_tables(out)
    announce(build(out, console), console)


def check_theory(out: Path, console: Console) -> None:
    """theory.json: every statement on a few runs; the whole study takes minutes."""
    if not (out / "theory.json").exists():
        torch.set_num_threads(1)
        cases = list(verify_study.cases(fast=True))
        rows = verify_study.measure(track(cases, "checking every bound", console=console))
        replace(out / "theory.json", json.dumps({"rows": rows}).encode())


def lend_tables(out: Path) -> None:
    """Studies of hours, co-tuning and precision: the project's own tables, which say that they are."""
    for path in lent():
        if not (out / path.name).exists():
            replace(out / path.name, json.dumps(json.loads(path.read_bytes()) | {"origin": LENT}).encode())


def lent() -> list[Path]:
    """Those tables: in an installed package, or in the repository."""
    here = Path(__file__).parent
    places = (here / "report" / "data", here.parent.parent / "docs" / "figures")
    return next((found for place in places if (found := sorted(place.glob("*-study.json")))), [])


def train(planned: study.Plan, folder: Path, console: Console) -> None:
    """What is left of a study, on every core."""
    console.print(f"{planned.title}: {len(planned.runs)} runs", highlight=False)
    workers = min(os.cpu_count() or 1, len(planned.runs))
    options = EngineOptions(workers=workers, address="", logs=folder / "logs")
    try:
        sweep(planned, folder, partial(ENGINES["local"], options), console)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"finished runs are stored in {folder}; the same command resumes") from None


def plan(name: str, seeds: tuple[int, ...]) -> study.Plan:
    """A tiny study with these seeds."""
    path = studies() / f"{name}.toml"
    written = decode(read_toml(path), study.Study, str(path))
    return study.plan(msgspec.structs.replace(written, seeds=seeds), str(path))


def save_oracles(out: Path, console: Console) -> None:
    """The table and the picture of all oracles."""
    with console.status("designing the oracles and drawing them"):
        paths = catalogue.save(catalogue.rows(), out)
    console.print("oracles: " + ", ".join(str(path) for path in paths), soft_wrap=True, highlight=False)


def show_oracles(out: Path, console: Console) -> None:
    """The same, with the table printed."""
    save_oracles(out, console)
    title = "Oracles: error bound by smallest singular value, gap and overshoot by spectrum, cost in products"
    rows = [Row(catalogue.cells(r)) for r in catalogue.rows()]
    Sheet(title, tuple(catalogue.header()), rows, left=("oracle",)).print(console)


def studies() -> Path:
    """The folder of the tiny studies: in an installed package, or in the repository."""
    here = Path(__file__).parent
    for place in (here / "studies" / "tiny", here.parent.parent / "studies" / "tiny"):
        if place.is_dir():
            return place
    raise LabError("the tiny studies are missing; install the package again")
