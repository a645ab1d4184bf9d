"""Read the stores of a folder, judge, plot, write the page, and say what came out."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from inexact_muon_lab.errors import writing
from inexact_muon_lab.report import export, load
from inexact_muon_lab.report.claims import SENTENCES, WITHDRAWN, findings, judge, overall, tally
from inexact_muon_lab.report.figures import figures
from inexact_muon_lab.report.open_costs import command
from inexact_muon_lab.report.page import page
from inexact_muon_lab.report.shown import Shown
from inexact_muon_lab.statistics import CONFIRMED, REFUTED
from inexact_muon_lab.store.files import replace

PAGE, TEXT, FILES = "report.html", "report.md", "report"


def build(
    folder: Path, console: Console | None = None, refresh: int = 0, pictures: bool = True, out: Path | None = None
) -> Shown:
    """Write report.html, report.md and report/ID.{csv,svg,png}.

    Args:
        refresh: seconds after which the page reloads itself; 0 for never.
        pictures: also write SVG and PNG, which take longest.
        out: output folder; default: the folder itself.
    """
    out = out or folder
    silent = console is None or not console.is_terminal
    with Progress(console=console or Console(quiet=True), transient=True, disable=silent) as progress:
        task = progress.add_task("reading the runs", total=None)
        results, reference = load.load(folder), load.reference(folder)
        reference_judged = judge(reference, WITHDRAWN) if reference else []
        drawn, line = figures(results, reference), command(folder)
        shown = Shown(results, judge(results), drawn, reference, reference_judged, line, out / PAGE)
        with writing(out):
            (out / FILES).mkdir(exist_ok=True, parents=True)
        replace(shown.page, page(shown, refresh).encode())
        replace(out / TEXT, export.markdown(shown).encode())
        progress.update(task, total=len(shown.figures))
        for figure in shown.figures:
            progress.update(task, description=f"writing {figure.id}", advance=1)
            export.save_figure(figure, out / FILES, pictures)
    return shown


def announce(built: Shown, console: Console) -> None:
    """Print problems, verdicts, advice, the cost of open claims, and the path of the page."""
    for problem in built.problems:
        console.print(f"warning: {problem}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    judged = [item for item in built.judged if item.claim.id in built.counted]
    board = ", ".join(f"{count} {verdict}" for verdict, count in tally(judged, built.counted).items())
    lines = [*map(export.line, findings(judged)), f"{len(built.counted)} claims: {board}"]
    for verdict in (CONFIRMED, REFUTED):
        decided = [SENTENCES[name] for name, one in overall(judged).items() if one == verdict]
        lines += [f"{verdict}: {'; '.join(decided)}"] if decided else []
    lines += [f"{one.title}, {one.arm} against {one.first.other}: {one.sentence}" for one in built.arms]
    lines += built.advice[:1]
    lines += [f"{len(built.advice) - 1} more of these are on the page"] if len(built.advice) > 1 else []
    lines += built.unfinished
    lines += [f"to go on: {built.command_line} --budget 10m"] if built.command_line and built.unfinished else []
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    size = built.page.stat().st_size / 1e6
    path = f"page: {built.page.resolve()} ({size:.1f} MB, opens without network)"
    console.print(path, highlight=False, soft_wrap=True)
