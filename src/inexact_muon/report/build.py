"""What `inexact-muon report` does: read the stores of a folder, judge, draw, write."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from inexact_muon.lab.errors import writing
from inexact_muon.lab.files import replace
from inexact_muon.report import export, load
from inexact_muon.report.claims import Judged, findings, judge
from inexact_muon.report.figures import figures
from inexact_muon.report.page import page

PAGE, TEXT, FILES = "report.html", "report.md", "report"


@dataclass(frozen=True)
class Built:
    """What was written."""

    page: Path
    judged: list[Judged]


def build(folder: Path, console: Console | None = None, refresh: int = 0, pictures: bool = True) -> Built:
    """Writes report.html, report.md and report/ID.{csv,svg,png} into the folder.

    Args:
        refresh: seconds after which the page loads itself again; 0 for never.
        pictures: write SVG and PNG too, which take longest.
    """
    with Progress(console=console or Console(quiet=True), transient=True) as progress:
        task = progress.add_task("reading the runs", total=None)
        results = load.load(folder)
        judged = judge(results)
        drawn = figures(results)
        with writing(folder):
            (folder / FILES).mkdir(exist_ok=True)
        replace(folder / PAGE, page(results, judged, drawn, refresh).encode())
        replace(folder / TEXT, export.markdown(results, judged, drawn).encode())
        progress.update(task, total=len(drawn))
        for figure in drawn:
            progress.update(task, description=f"writing {figure.id}", advance=1)
            export.save_figure(figure, folder / FILES, pictures)
    return Built(folder / PAGE, judged)


def announce(built: Built, console: Console) -> None:
    """Where the page is, and the three most important findings."""
    for item in findings(built.judged):
        console.print(export.line(item), markup=False, highlight=False, soft_wrap=True)
    size = built.page.stat().st_size / 1e6
    console.print(
        f"page: {built.page.resolve()} ({size:.1f} MB, opens without network)", highlight=False, soft_wrap=True
    )
