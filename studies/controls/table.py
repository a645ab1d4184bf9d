"""What moves with lr: tables from the packed evidence of this folder, and the best rates of tuning studies.

`python studies/controls/table.py studies/controls --page docs/which-oracle.md` puts each table between its marks.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import exp, log
from pathlib import Path
from statistics import fmean

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from marks import between, page_file

from inexact_muon_lab.errors import LabError
from inexact_muon_lab.report.arms import Comparison, comparisons
from inexact_muon_lab.report.load import RunRecord, StudyRecord, load
from inexact_muon_lab.spec.arms import DECAY, trained
from inexact_muon_lab.statistics import Interval

COMMAND = "python studies/controls/table.py"


def signed(found: Interval) -> str:
    """A difference with its interval."""
    return f"{found.mean:+.4f} ({found.low:+.4f} to {found.high:+.4f})"


def controls(found: Iterable[Comparison]) -> str:
    """Each arm against the one it is to beat, and against the controls: what is left is the arm's own."""
    lines = [
        "| runs | arm | minus | at its own rates | minus a control that has what moved with it | seeds | verdict |",
        "|---|---|---|---:|---|---:|---|",
    ]
    for one in found:
        given = "; ".join(f"{part.other}: {signed(part.loss)}" for part in one.controls)
        cells = [one.title, one.arm, one.first.other, signed(one.first.loss), given, one.first.loss.n, one.sentence]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def best(runs: list[RunRecord]) -> tuple[float, float, float, str]:
    """(lr, decay, mean loss, edge): the lowest mean loss of a grid, its lr by the parabola through the nearest three.

    Only seeds with the whole grid count. `edge` names the rates that lie at an end of the grid.
    """
    cells: dict[tuple[float, float], dict[int, float]] = defaultdict(dict)
    for run in runs:
        cell = cells[run.lr, float(trained(run.spec).get(DECAY, 0.0))]  # one without a loss is part of the grid, too
        if (loss := run.value("loss")) is not None:
            cell[run.seed] = loss
    seeds = set.intersection(*(set(by_seed) for by_seed in cells.values()))
    means = {cell: fmean(by_seed[s] for s in seeds) for cell, by_seed in cells.items()} if seeds else {}
    if not means:
        raise LabError("no seed has the whole grid")
    lr, decay = min(means, key=lambda cell: means[cell])
    rates = sorted(cell[0] for cell in means if cell[1] == decay)  # grids may be joined from several
    decays = sorted(cell[1] for cell in means if cell[0] == lr)
    edges = [
        name for name, value, grid in (("lr", lr, rates), ("decay", decay, decays)) if value in (grid[0], grid[-1])
    ]
    if "decay" in edges and decay == 0.0:
        edges.remove("decay")  # there is nothing below zero
    near = sorted(rates, key=lambda rate: abs(log(rate / lr)))[:3]
    if "lr" not in edges and len(near) == 3:
        bend, slope, _ = np.polyfit([log(rate / lr) for rate in near], [means[rate, decay] for rate in near], 2)
        lr *= exp(-0.5 * slope / bend) if bend > 0 else 1.0
    return lr, decay, min(means.values()), ", ".join(edges)


def variant(run: RunRecord) -> str:
    """The stages of a run, as its spec names them; empty for plain Muon."""
    stages = {key: getattr(run.spec.optimizer, key, None) for key in ("before", "after", "cautious")}
    words = [f"{key}={value}" for key, value in stages.items() if isinstance(value, str | bool)]
    return ", ".join(words) if run.optimizer == "muon" else run.optimizer


def tuning(study: StudyRecord) -> str:
    """The best lr and decay of every oracle of a tuning study, or of every variant if it has stages."""
    by_oracle: dict[str, list[RunRecord]] = defaultdict(list)
    for run in study.runs:
        by_oracle[variant(run) or run.spec.polar or ""].append(run)
    lines = ["| oracle | best lr | best decay | mean loss | at an end of the grid |", "|---|---:|---:|---:|---|"]
    for oracle, runs in by_oracle.items():
        try:
            lr, decay, loss, edge = best(runs)
        except LabError as error:
            lines.append(f"| `{oracle}` |  |  |  | {error} |")
            continue
        lines.append(f"| `{oracle}` | {lr:.3g} | {decay:.3g} | {loss:.4f} | {edge or 'no'} |")
    return "\n".join([*lines, "", f"{study.title}. Whole seeds: {_whole(study.runs)}."]) + "\n"


def _whole(runs: Sequence[RunRecord]) -> str:
    """Seeds of which every run has ended."""
    waiting = {run.seed for run in runs if run.outcome is None}
    return ", ".join(map(str, sorted({run.seed for run in runs} - waiting))) or "none yet"


def made(*folders: Path) -> dict[str, str]:
    """The parts of the page by name."""
    results = [load(folder) for folder in folders]
    found = [one for part in results for one in comparisons(part)]
    grids = [study for part in results for study in part.studies if study.compare is None]
    parts = {"controls": controls(found)}
    return parts | {"tuning of arms": "\n".join(tuning(study) for study in grids)}


def main() -> None:
    """The command."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("evidence", type=Path, nargs="+")
    parser.add_argument("--page", type=page_file)
    options = parser.parse_args()
    try:
        parts = made(*options.evidence)
    except LabError as error:
        parser.error(str(error))
    if options.page:
        options.page.write_text(between(options.page.read_text(), parts, COMMAND))
    print("\n".join(parts.values()))


if __name__ == "__main__":
    main()
