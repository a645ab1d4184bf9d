"""Which lr the AdamW part of `Muon.for_model` should have: paired differences of validation losses.

`python studies/defaults/table.py` reads the packed runs beside it, writes docs/figures/defaults.json and .md, and puts
the tables between the marks of docs/choose-lr.md. `... runs/defaults-cnn --out tables` reads other stores or packs and
leaves the page alone. Differences are taken seed by seed; +- is the half-width of the 95% t interval of their mean.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from marks import between

from inexact_muon_lab.errors import LabError
from inexact_muon_lab.report.load import load
from inexact_muon_lab.spec.spec import NanoGPT, RunSpec
from inexact_muon_lab.statistics import interval, paired

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKS = [HERE / f"{name}.pack" for name in ("gpt-96", "gpt-192", "cnn")]
BETAS, DECAY = [0.9, 0.95], 0.1
"""Held while adamw_lr varies; cells that differ in one of them have a table of their own."""


@dataclass(frozen=True)
class Cell:
    """Runs that differ in the seed only."""

    model: str
    details: str
    lr: float
    adamw_lr: float
    betas: list[float]
    weight_decay: float
    losses: dict[str, float]
    """Seed -> validation loss at the end."""

    @property
    def setting(self) -> tuple[str, float]:
        """Which cells are compared: one model, one lr of the matrices."""
        return self.model, self.lr

    @property
    def plain(self) -> bool:
        """Whether nothing but adamw_lr was changed."""
        return self.betas == BETAS and self.weight_decay == DECAY


def read(place: Path) -> list[Cell]:
    """The cells of a store or pack, in the order of its study."""
    found: dict[str, dict[str, Any]] = {}
    for run in (run for study in load(place).studies for run in study.runs):
        loss = run.value("loss")
        if run.state != "finished" or loss is None:
            raise SystemExit(f"{place}: run {run.id} is {run.state}; finish the sweep first")
        options: Any = run.spec.optimizer
        cell = {
            **describe(run.spec),
            **{name: getattr(options, name) for name in ("lr", "adamw_lr", "weight_decay")},
            "betas": list(options.betas),
        }
        losses = found.setdefault(json.dumps(cell), {**cell, "losses": {}})["losses"]
        losses[str(run.spec.seed)] = loss
    return [Cell(**fields) for fields in found.values()]


def describe(spec: RunSpec) -> dict[str, str]:
    """The model of a run, in short and in full."""
    problem = spec.problem
    if isinstance(problem, NanoGPT):
        name = f"GPT, width {problem.width}"
        what = f"bytes of the standard library, {problem.layers} layers, context {problem.context}"
    else:
        name, what = "conv net", "digits, batch normalisation and biases"
    return {"model": name, "details": f"{what}, batch {spec.batch}, {spec.steps} steps"}


def difference(a: Cell, b: Cell) -> tuple[float, float]:
    """Mean of loss(a) - loss(b) over the seeds, and the half-width of its 95% interval."""
    found = interval(paired(a.losses, b.losses))
    return found.mean, found.high - found.mean


def settings(cells: list[Cell]) -> dict[tuple[str, float], dict[float, Cell]]:
    """Setting -> adamw_lr -> cell, of the plain cells."""
    table: dict[tuple[str, float], dict[float, Cell]] = {}
    for cell in cells:
        if cell.plain:
            table.setdefault(cell.setting, {})[cell.adamw_lr] = cell
    return table


def recommended(cells: list[Cell]) -> float:
    """The adamw_lr, of those tried in every setting, whose largest mean loss above a setting's best is smallest."""
    table = settings(cells)
    everywhere = set.intersection(*(set(row) for row in table.values()))

    def regret(rate: float) -> float:
        return max(fmean(row[rate].losses.values()) - best(row) for row in table.values())

    return min(sorted(everywhere), key=regret)


def best(row: dict[float, Cell]) -> float:
    """The smallest mean loss of a setting."""
    return min(fmean(cell.losses.values()) for cell in row.values())


def markdown(cells: list[Cell]) -> str:
    """Both tables and what they mean."""
    chosen, table = recommended(cells), settings(cells)
    rates = sorted({cell.adamw_lr for cell in cells})
    lines = [
        f"| model | lr | {' | '.join(f'{rate:g}' for rate in rates)} |",
        "|---|---:" + "|---:" * len(rates) + "|",
    ]
    for (model, lr), row in table.items():
        lines.append(f"| {model} | {lr:g} | {' | '.join(entry(row, rate, chosen) for rate in rates)} |")
    lines += [
        "",
        f"Columns are AdamW's lr. {chosen:g}: mean validation loss. Others: how much more, seed by seed, +- 95%.",
        "",
        "| model | lr | AdamW's lr | change | loss more than without the change |",
        "|---|---:|---:|---|---:|",
    ]
    for cell in cells:
        if not cell.plain:
            mean, half = difference(cell, table[cell.setting][cell.adamw_lr])
            change = f"weight_decay {cell.weight_decay:g}" if cell.betas == BETAS else f"beta2 {cell.betas[1]:g}"
            start = f"| {cell.model} | {cell.lr:g} | {cell.adamw_lr:g} | {change}"
            lines.append(f"{start} | {mean:+.3f} +- {half:.3f} |")
    return "\n".join([*lines, "", *about(cells)]) + "\n"


def entry(row: dict[float, Cell], rate: float, chosen: float) -> str:
    """A cell of the first table."""
    if rate not in row:
        return ""
    if rate == chosen:
        return f"{fmean(row[rate].losses.values()):.3f}"
    mean, half = difference(row[rate], row[chosen])
    return f"{mean:+.3f} +- {half:.3f}"


def about(cells: list[Cell]) -> list[str]:
    """What was trained, one line for each model."""
    first = f"beta2 is {BETAS[1]:g} and weight_decay {DECAY:g} unless it says so."
    lines = {c.model: f"- {c.model}: {c.details}, {len(c.losses)} seeds." for c in cells}
    return [first, "", *lines.values()]


def written(page: str, made: str) -> str:
    """The page with the tables between its marks."""
    return between(page, {"defaults": made}, "python studies/defaults/table.py")


def main() -> None:
    """The command."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("places", type=Path, nargs="*", help="stores or packs; default: the packs beside this script")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/figures")
    given = parser.parse_args()
    try:
        cells = [cell for place in given.places or PACKS for cell in read(place)]
    except LabError as error:
        parser.error(str(error))
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "defaults.json").write_text(json.dumps([asdict(cell) for cell in cells], indent=1) + "\n")
    made = markdown(cells)
    (given.out / "defaults.md").write_text(made)
    if not given.places:
        page = ROOT / "docs/choose-lr.md"
        page.write_text(written(page.read_text(), made))
    print(made)


if __name__ == "__main__":
    main()
