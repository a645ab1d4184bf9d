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
    """What was written, and what could not be read."""

    page: Path
    judged: list[Judged]
    problems: tuple[str, ...]


def build(
    folder: Path, console: Console | None = None, refresh: int = 0, pictures: bool = True, out: Path | None = None
) -> Built:
    """Writes report.html, report.md and report/ID.{csv,svg,png}.

    Args:
        refresh: seconds after which the page loads itself again; 0 for never.
        pictures: write SVG and PNG too, which take longest.
        out: where to write; by default into the folder itself.
    """
    out = out or folder
    with Progress(console=console or Console(quiet=True), transient=True) as progress:
        task = progress.add_task("reading the runs", total=None)
        results = load.load(folder)
        judged = judge(results)
        drawn = figures(results)
        with writing(out):
            (out / FILES).mkdir(exist_ok=True, parents=True)
        replace(out / PAGE, page(results, judged, drawn, refresh).encode())
        replace(out / TEXT, export.markdown(results, judged, drawn).encode())
        progress.update(task, total=len(drawn))
        for figure in drawn:
            progress.update(task, description=f"writing {figure.id}", advance=1)
            export.save_figure(figure, out / FILES, pictures)
    return Built(out / PAGE, judged, results.tables.problems)


def announce(built: Built, console: Console) -> None:
    """What could not be read, the three most important findings, and where the page is."""
    for problem in built.problems:
        console.print(f"warning: {problem}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    for item in findings(built.judged):
        console.print(export.line(item), markup=False, highlight=False, soft_wrap=True)
    size = built.page.stat().st_size / 1e6
    console.print(
        f"page: {built.page.resolve()} ({size:.1f} MB, opens without network)", highlight=False, soft_wrap=True
    )
