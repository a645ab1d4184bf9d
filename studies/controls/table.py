"""What moves with lr: tables from the packed evidence of this folder, and the best rates of tuning studies.

`python studies/controls/table.py studies/controls --page docs/which-oracle.md` puts each table between its marks.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import carried
import written_out
from marks import between, page_file

from inexact_muon_lab.errors import LabError
from inexact_muon_lab.report.arms import Comparison, comparisons
from inexact_muon_lab.report.grid_claims import lr_moves_down, region_at_one_loss, region_widens
from inexact_muon_lab.report.ladders import grids
from inexact_muon_lab.report.load import Results, RunRecord, StudyRecord, load
from inexact_muon_lab.spec.arms import DECAY, trained
from inexact_muon_lab.statistics import Cell, Interval, interval, optimum, paired

COMMAND = "python studies/controls/table.py"
AXES = {"lr": "optimizer.lr", "decay": DECAY, "momentum": "optimizer.momentum", "AdamW's lr": "optimizer.adamw_lr"}
"""Rates that a grid may have: name in a table -> field."""
ENOUGH = "controls-enough-fresh"
"""The study of which oracle is enough."""
LEAST_SEEDS = 3
"""Seeds that two arms are compared on when other seeds choose their rates."""
LEAST_RATES = 6
"""Step sizes of a grid whose region of good ones is told."""


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


def enough(study: StudyRecord, found: Iterable[Comparison]) -> str:
    """Oracles against the nearly exact one, tuned for each: enough if the interval lies below the declared margin."""
    lines = ["| oracle | lr | decay | minus three poles | seeds | enough |", "|---|---:|---:|---:|---:|---|"]
    rates = {arm.name: arm.fields for arm in study.compare.arm}
    for one in found:
        loss, fields = one.first.loss, rates[one.arm]
        said = "yes" if loss.high < one.margin else "no" if loss.low > one.margin else "open"
        cells = [one.arm, fields["optimizer.lr"], fields[DECAY], signed(loss), loss.n, said]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


class Best(NamedTuple):
    """The cell of a grid with the lowest mean loss, `lr` by the parabola through the nearest three.

    `rates` has the values of AXES; `edges` names the rates that lie at an end of the grid.
    """

    lr: float
    rates: tuple[float, ...]
    loss: float
    edges: str


def rates_of(run: RunRecord) -> tuple[float, ...]:
    """The values of AXES."""
    fields = trained(run.spec)
    return tuple(float(fields.get(field) or 0.0) for field in AXES.values())


def whole(runs: list[RunRecord]) -> dict[tuple[float, ...], dict[int, float]]:
    """Cell of a grid over any of AXES -> seed -> loss, of the seeds that have the whole grid."""
    cells: dict[tuple[float, ...], dict[int, float]] = defaultdict(dict)
    for run in runs:
        cell = cells[rates_of(run)]  # one without a loss is part of the grid, too
        if (loss := run.value("loss")) is not None:
            cell[run.seed] = loss
    seeds = set.intersection(*(set(by_seed) for by_seed in cells.values()))
    if not seeds:
        raise LabError("no seed has the whole grid")
    return {cell: {s: by_seed[s] for s in sorted(seeds)} for cell, by_seed in cells.items()}


def by_other_seeds(runs: list[RunRecord]) -> dict[int, float]:
    """The loss of each seed in the cell that is best for the other seeds: none takes part in choosing its own rates."""
    cells = whole(runs)
    losses = {}
    for seed in next(iter(cells.values())):
        means = {cell: fmean(loss for s, loss in by_seed.items() if s != seed) for cell, by_seed in cells.items()}
        losses[seed] = cells[min(means, key=lambda each: means[each])][seed]
    return losses


def best(runs: list[RunRecord]) -> Best:
    """The best cell of a grid. Only seeds with the whole grid count."""
    means = {cell: fmean(by_seed.values()) for cell, by_seed in whole(runs).items()}
    cell = min(means, key=lambda each: means[each])
    edges = []
    for axis, name in enumerate(AXES):  # grids may be joined from several: the line through the best cell counts
        line = sorted(c[axis] for c in means if c[:axis] + c[axis + 1 :] == cell[:axis] + cell[axis + 1 :])
        if len(line) > 1 and cell[axis] in (line[0], line[-1]) and cell[axis] > 0.0:  # nothing lies below zero
            edges.append(name)
    return Best(_lowest(means, cell, "lr" in edges), cell, means[cell], ", ".join(edges))


def _lowest(means: dict[tuple[float, ...], float], cell: tuple[float, ...], edge: bool) -> float:
    """lr at the lowest point of the parabola through the best cell and its nearest two; that of the cell at an end."""
    losses = {c[0]: loss for c, loss in means.items() if c[1:] == cell[1:]}
    return cell[0] if edge else bottom(losses, cell[0])[0]


def bottom(losses: Mapping[float, float], at: float) -> tuple[float, float]:
    """(rate, loss) at the lowest point of the parabola in log rate through the rate `at` and its nearest two."""
    nearest = sorted(losses, key=lambda rate: abs(log(rate / at)))[:3]
    if len(nearest) < 3:
        return at, losses[at]
    bend, slope, level = np.polyfit([log(rate / at) for rate in nearest], [losses[rate] for rate in nearest], 2)
    return (at * exp(-0.5 * slope / bend), level - 0.25 * slope**2 / bend) if bend > 0 else (at, losses[at])


def variant(run: RunRecord) -> str:
    """The stages of a run, as its spec names them; empty for plain Muon."""
    stages = {key: getattr(run.spec.optimizer, key, None) for key in ("before", "after", "cautious")}
    words = [f"{key}={value}" for key, value in stages.items() if isinstance(value, str | bool)]
    return ", ".join(words) if run.optimizer == "muon" else run.optimizer


def tuning(study: StudyRecord) -> str:
    """The best rates of every oracle and variant of a tuning study: those that it has more than one of, and lr."""
    arms: dict[str, list[RunRecord]] = defaultdict(list)
    for run in study.runs:
        arms[", ".join(filter(None, (variant(run), run.spec.polar)))].append(run)
    grid = list(zip(*map(rates_of, study.runs), strict=True))
    tuned = [(axis, name) for axis, name in enumerate(AXES) if axis and len(set(grid[axis])) > 1]
    names = ["oracle", "best lr", *(f"best {name}" for _, name in tuned), "mean loss", "at an end of the grid"]
    lines = [f"| {' | '.join(names)} |", f"|---|{'---:|' * (len(tuned) + 2)}---|"]
    for oracle, runs in arms.items():
        try:
            one = best(runs)
            cells = [f"{one.lr:.3g}", *(f"{one.rates[axis]:.3g}" for axis, _ in tuned), f"{one.loss:.4f}"]
            lines.append(f"| `{oracle}` | {' | '.join(cells)} | {one.edges or 'no'} |")
        except LabError as error:
            lines.append(f"| `{oracle}` | {' | ' * (len(tuned) + 2)}{error} |")
    return "\n".join([*lines, "", f"{study.title}. Whole seeds: {_whole(study.runs)}.{_paired(arms)}"]) + "\n"


def _paired(arms: Mapping[str, list[RunRecord]]) -> str:
    """Of a study of two arms on three seeds or more: their difference at rates that other seeds choose."""
    if len(arms) != 2 or any(len({run.seed for run in runs if run.outcome}) < LEAST_SEEDS for runs in arms.values()):
        return ""
    first, second = (by_other_seeds(runs) for runs in arms.values())
    if len(first.keys() & second.keys()) < LEAST_SEEDS:
        return ""
    less = signed(interval(paired(second, first)))
    return f" The second minus the first, each at the rates that the other seeds choose: {less}."


def iterations(results: Results) -> list[str]:
    """Rows of few against many iterations, over a wide range of step sizes that no decay is tied to."""
    lines = []
    for grid in grids(results, momenta=1):
        few, many = (grid.counts[0], grid.counts[-1])
        if few == many or len(grid.momenta) > 1 or len(grid.rates) < LEAST_RATES or grid.runs[0].tied:
            continue
        lowest = {n: {s: optimum(grid.table(n, s, "loss")).value for s in grid.seeds} for n in (few, many)}
        more = grid.interval({s: lowest[few][s] - lowest[many][s] for s in grid.seeds})
        moved, own, common = (judge(grid) for judge in (lr_moves_down, region_widens, region_at_one_loss))
        ratio = [2.0**log2 for log2 in (moved.interval.mean, moved.interval.low, moved.interval.high)]
        rows = [
            (f"best lr at {few} iterations over that at {many}", "{:.2f} ({:.2f} to {:.2f})".format(*ratio)),
            (f"loss at {few} minus at {many}, each at its own lr", signed(more)),
            (f"share of step sizes within 5 % of its own best, {many} minus {few}", signed(own.interval)),
            (f"share within 5 % of the lower best of both, {many} minus {few}", signed(common.interval)),
        ]
        lines += [f"| {what} | {value} |" for what, value in rows]
    return lines


class Bottom(NamedTuple):
    """Where a seed is best over alpha = 1 - momentum, lr at its best for every alpha; edge: at an end of either."""

    alpha: float
    lr: float
    loss: float
    edge: bool


def best_alpha(cells: Mapping[Cell, float]) -> Bottom:
    """The lowest point over alpha of the lowest losses over lr, parabolas through three points each."""
    lines: dict[float, dict[float, float]] = defaultdict(dict)
    for (lr, momentum), loss in cells.items():
        lines[1.0 - momentum][lr] = loss
    lowest = {alpha: min(line, key=lambda lr: line[lr]) for alpha, line in lines.items()}
    profile = {alpha: bottom(lines[alpha], lr) for alpha, lr in lowest.items()}
    losses = {alpha: loss for alpha, (_, loss) in profile.items()}
    cell = min(losses, key=lambda alpha: losses[alpha])
    edge = cell in (min(lines), max(lines)) or lowest[cell] in (min(lines[cell]), max(lines[cell]))
    alpha, loss = bottom(losses, cell)
    return Bottom(alpha, profile[cell][0], loss, edge)


def momenta(results: Results) -> list[str]:
    """Rows of few against many iterations, over momentum and step size, where no decay is tied to the step size."""
    lines = []
    for grid in grids(results):
        few, many = grid.counts[0], grid.counts[-1]
        if few == many or grid.runs[0].tied:
            continue
        seeds = [seed for seed in grid.seeds if grid.whole(seed, few, many)]
        pairs = {s: [best_alpha(grid.table(n, s, "loss")) for n in (few, many)] for s in seeds}
        edges = sum(a.edge or b.edge for a, b in pairs.values())
        moved = grid.interval({s: log(a.alpha / b.alpha) for s, (a, b) in pairs.items()})
        more = grid.interval({s: a.loss - b.loss for s, (a, b) in pairs.items()})
        ratio = "{:.2f} ({:.2f} to {:.2f})".format(*map(exp, (moved.mean, moved.low, moved.high)))
        of = f"{edges} of {len(seeds)} seeds at an end of the grid" if edges else f"{len(seeds)} seeds"
        lines += [
            f"| best alpha at {few} iterations over that at {many}, lr at its best for every alpha | {ratio}; {of} |",
            f"| loss at {few} minus at {many}, each at its own lr and momentum | {signed(more)} |",
        ]
        for count in (few, many):
            best = [pair[count == many] for pair in pairs.values()]
            alpha, lr = (exp(fmean(map(log, values))) for values in zip(*(one[:2] for one in best), strict=True))
            lines.append(f"| best momentum and its best lr at {count} iterations | {1.0 - alpha:.2f} and {lr:.3f} |")
    return lines


def _whole(runs: Sequence[RunRecord]) -> str:
    """Seeds of which every run has ended."""
    waiting = {run.seed for run in runs if run.outcome is None}
    return ", ".join(map(str, sorted({run.seed for run in runs} - waiting))) or "none yet"


def made(*folders: Path) -> dict[str, str]:
    """The parts of the page by name; those of single studies only if they are there."""
    results = [load(folder) for folder in folders]
    arms = [one for part in results for one in comparisons(part)]
    studies = [study for part in results for study in part.studies]
    parts = {
        "controls": controls(one for one in arms if one.study != ENOUGH),
        "tuning of arms": "\n".join(tuning(study) for study in studies if study.compare is None),
    }
    for study in studies:
        if study.name == ENOUGH:
            parts["enough, tuned"] = enough(study, [one for one in arms if one.study == ENOUGH])
    if regions := [row for part in results for row in (*iterations(part), *momenta(part))]:
        parts["iterations without decay"] = "\n".join(["| what | value |", "|---|---:|", *regions]) + "\n"
    if any(study.name in carried.SOURCES for study in studies):
        parts["lr without decay moving"] = carried.table(studies, best)
    for folder in folders:
        if (folder / written_out.FILE.name).exists():
            parts["written out"] = written_out.table(folder / written_out.FILE.name)
    return parts


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
