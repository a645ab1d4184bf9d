"""The report command: read the stores of a folder, judge, plot, write."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from inexact_muon_lab.errors import writing
from inexact_muon_lab.report import export, load
from inexact_muon_lab.report.advice import advice
from inexact_muon_lab.report.claims import SENTENCES, WITHDRAWN, Judged, findings, judge, overall, tally
from inexact_muon_lab.report.figures import figures
from inexact_muon_lab.report.open_costs import command, costs, cut
from inexact_muon_lab.report.page import SIGNS, Shown, page
from inexact_muon_lab.statistics import CONFIRMED, REFUTED
from inexact_muon_lab.store.files import replace

PAGE, TEXT, FILES = "report.html", "report.md", "report"


@dataclass(frozen=True)
class Built:
    """Files written, and problems."""

    page: Path
    judged: list[Judged]
    counted: frozenset[str]
    """The claims that are counted."""
    problems: tuple[str, ...]
    unfinished: tuple[str, ...] = ()
    """Interrupted runs, and what undecided claims would need."""
    advice: tuple[str, ...] = ()
    command_line: str = ""
    comparisons: tuple[str, ...] = ()
    """One sentence for each declared comparison of arms."""


def build(
    folder: Path, console: Console | None = None, refresh: int = 0, pictures: bool = True, out: Path | None = None
) -> Built:
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
        judged = judge(results)
        all_figures = figures(results, reference)
        reference_judged = judge(reference, WITHDRAWN) if reference else []
        shown = Shown(results, judged, all_figures, reference, reference_judged, command(folder))
        with writing(out):
            (out / FILES).mkdir(exist_ok=True, parents=True)
        replace(out / PAGE, page(shown, refresh).encode())
        replace(out / TEXT, export.markdown(shown).encode())
        progress.update(task, total=len(all_figures))
        for figure in all_figures:
            progress.update(task, description=f"writing {figure.id}", advance=1)
            export.save_figure(figure, out / FILES, pictures)
    prices = costs(results, judged).items()
    unfinished = (*cut(results), *(f"{SENTENCES[name]}: {price}" for name, price in prices))
    compared = tuple(f"{one.title}, {one.arm} against {one.first.other}: {one.sentence}" for one in shown.comparisons)
    advised, counted = tuple(advice(results)), frozenset(shown.counted)
    return Built(out / PAGE, judged, counted, tuple(shown.problems), unfinished, advised, shown.command_line, compared)


def announce(built: Built, console: Console) -> None:
    """Print problems, verdicts, advice, the cost of open claims, and the path of the page."""
    for problem in built.problems:
        console.print(f"warning: {problem}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    counts, judged = tally(built.judged, built.counted), [j for j in built.judged if j.claim.id in built.counted]
    board = ", ".join(f"{counts[verdict]} {verdict}" for verdict in SIGNS)
    lines = [*map(export.line, findings(judged)), f"{len(built.counted)} claims: {board}", *_decided(judged)]
    lines += [*built.comparisons, *built.advice[:1]]
    lines += [f"{len(built.advice) - 1} more of these are on the page"] if len(built.advice) > 1 else []
    lines += built.unfinished
    lines += [f"to go on: {built.command_line} --budget 10m"] if built.command_line and built.unfinished else []
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    size = built.page.stat().st_size / 1e6
    console.print(
        f"page: {built.page.resolve()} ({size:.1f} MB, opens without network)", highlight=False, soft_wrap=True
    )


def _decided(judged: list[Judged]) -> list[str]:
    """The confirmed and the refuted claims, by name."""
    sentences = {item.claim.id: item.claim.sentence for item in judged}
    verdicts = overall(judged)
    lines = []
    for verdict in (CONFIRMED, REFUTED):
        decided = [sentences[name] for name, one in verdicts.items() if one == verdict]
        lines += [f"{verdict}: {'; '.join(decided)}"] if decided else []
    return lines
