"""Which oracle and which step size: tables and a picture from the packed evidence of this folder.

`python studies/maps/table.py studies/maps studies/reference --out docs/figures --page docs/which-oracle.md` reads
packed evidence or stores, writes maps.json, maps.md and maps.svg, and puts each table between the marks of the page.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
sys.path.insert(0, str(Path(__file__).parent))
from compare import WORDS, Row, rows
from defaults import KINDS, matrix
from defaults import verdicts as by_kind
from drawing import figure
from functionals import NUMBERS, ranks
from grids import Grid, Setting, by_momentum, declared, grid
from marks import between, page_file
from properties import properties
from shifts import PAPER, Shift, shifts
from transfer import DESCENT, FIVE, KEEP, against_keeping, third_of_keeping, tried

from inexact_muon_lab.errors import LabError
from inexact_muon_lab.report.load import RunRecord, StudyRecord, load
from inexact_muon_lab.statistics import Interval
from inexact_muon_lab.tune import spectra

HERE = Path(__file__).parent
SPECTRA = HERE.parent / "cotuning/gpt-carried.npz"
EARLIER = HERE.parents[1] / "docs/figures/held-out.json"
"""Losses of other oracles at one step size each, from before: studies/precision/held_out.py."""
WHERE = {"own": "each at its own lr", "matched": "all at one lr"}
ON_PAGE = (
    "which oracle is enough",
    "one property at a time",
    "fixed norms",
    "two and five iterations",
    "rules",
    "what orders losses",
    "effort",
)
"""Parts of the page; maps.md has the others, too."""
LEAST_RANKED = 8
"""A setting with fewer oracles has no rank correlations."""


def oracles(setting: Setting, found: list[Row]) -> str:
    """The oracles of a setting."""
    matched = "" if setting.matched is None else f" at lr {setting.matched:g} |"
    lines = [
        f"| oracle | best lr | over the reference's | loss more, at its own lr |{matched} verdict | flops |",
        "|---|---:|---:|---:|" + "---:|" * bool(matched) + "---|---:|",
    ]
    for row in found:
        shift = "" if row.shift is None else ratio(row.shift)
        first = f"{row.loss:.4f}" if row.oracle == setting.reference else str(row.own or "")
        best = "" if row.lr is None else f"{row.lr:.3g}{' (edge)' if row.edge else ''}"
        cells = [f"`{row.oracle}`", best, shift, first]
        cells += [str(row.matched or "")] * bool(matched)
        lines.append(f"| {' | '.join([*cells, row.verdict, '' if row.flops is None else f'{row.flops:.2f}'])} |")
    seeds = sorted({row.seeds for row in found})
    margin = f"{setting.margin:.1%}".replace(".0%", "%")
    lines += ["", f"{setting.label}; {' or '.join(map(str, seeds))} seeds; margin {margin} of the reference's loss."]
    return "\n".join(lines) + "\n"


def verdicts(settings: list[Setting], found: dict[str, list[Row]]) -> str:
    """Which oracles have which verdict, a line a setting."""
    lines = []
    for setting in settings:
        by_word = {word: [f"`{r.oracle}`" for r in found[setting.study] if r.verdict == word] for word in WORDS}
        said = "; ".join(f"{word}: {', '.join(names)}" for word, names in by_word.items() if names)
        lines += [f"- {setting.label}. {said[0].upper()}{said[1:]}."] if said else []
    return "\n".join(lines) + "\n"


def ratio(span: Any) -> str:
    """A ratio with its interval."""
    return f"{span.mean:.2f}" + ("" if span.low is None else f" ({span.low:.2f} to {span.high:.2f})")


def orders(settings: list[Setting], found: dict[str, list[Row]], layers: list[spectra.Layer]) -> str:
    """Rank correlation of each number of a map with losses: of these studies and of one that was there before."""
    columns: dict[str, dict[str, float]] = {}
    for setting in settings:
        for where in ("own", "matched"):
            mine = {row.oracle: getattr(row, where) for row in found[setting.study]}
            losses = {oracle: more.mean for oracle, more in mine.items() if more} | {setting.reference: 0.0}
            if len(losses) >= LEAST_RANKED:
                columns[f"{setting.label}, {WHERE[where]}"] = losses
    for k, losses in enumerate(json.loads(EARLIER.read_text()).values()):
        columns[f"earlier {k + 1}"] = {o: sum(by) / len(by) for o, by in losses.items() if o != "exact-svd"}
    table = {name: ranks(losses, layers) for name, losses in columns.items()}
    lines = [f"| number of the map | {' | '.join(table)} |", "|---" + "|---:" * len(table) + "|"]
    lines += [f"| {name} | {' | '.join(f'{column[name]:.2f}' for column in table.values())} |" for name in NUMBERS]
    sizes = ", ".join(f"{len(losses)}" for losses in columns.values())
    return "\n".join([*lines, "", f"Rank correlation with the loss, over {sizes} oracles."]) + "\n"


def moves(bodies: dict[str, Grid], layers: list[spectra.Layer]) -> str:
    """Rules of transfer against keeping the step size, over the targets of all grids, and by size."""
    found = {name: tried(made, layers) for name, made in bodies.items()}
    every = {name: [replace(one, target=f"{name}: {one.target}") for one in some] for name, some in found.items()}
    sizes = {size: [one for name, some in every.items() if bodies[name].kind.startswith(size) for one in some]
             for size in ("2 layers", "4 layers")}  # fmt: skip
    both = [one for some in sizes.values() for one in some]
    lines = [
        f"| rule | {' | '.join(f'error of log lr, {size} | minus keeping' for size in sizes)} | regret | more |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name in dict.fromkeys(one.rule for one in both):
        cells = []
        for some in sizes.values():
            more = against_keeping(some, name)[0]
            cells += [
                f"{fmean(one.error for one in some if one.rule == name):.3f}",
                "" if name == KEEP else signed(more),
            ]
        more = against_keeping(both, name)[1]
        regret = fmean(one.regret for one in both if one.rule == name)
        lines.append(f"| {' | '.join([name, *cells, f'{regret:.4f}', '' if name == KEEP else signed(more)])} |")
    count = {size: len({one.target for one in some}) for size, some in sizes.items()}
    lines += [
        "",
        f"Targets: {', '.join(f'{size} {number}' for size, number in count.items())}. Intervals are over targets.",
        f"A third of the regret of keeping minus that of {DESCENT}: {signed(third_of_keeping(both, DESCENT))}.",
    ]
    return "\n".join(lines) + "\n"


def signed(span: Interval) -> str:
    """A difference with its interval."""
    return f"{span.mean:+.4f} ({span.low:+.4f} to {span.high:+.4f})"


def iterations(moved: list[Shift]) -> str:
    """The best step size of two iterations over that of five."""
    lines = [
        "| study | layers | momentum | seeds | best lr of 2 | of 5 | ratio | loss more, 2 than 5, each at its own lr |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for one in moved:
        found = f"open: {one.edges} of {one.seeds} seeds at an end of the grid" if one.edges else ratio(one.ratio)
        cells = [one.study, one.layers, one.momentum, one.seeds, *(f"{lr:.3g}" for lr in one.lrs), found]
        lines.append(f"| {' | '.join(map(str, cells))} | {one.own} |")
    return "\n".join([*lines, "", f"The paper's heat maps (124M parameters): {PAPER:.2f}."]) + "\n"


def effort(studies: Iterable[StudyRecord]) -> str:
    """What was spent."""
    every = [run for study in studies for run in study.runs if run.outcome]
    ended = {run.id: run for run in every}.values()  # some studies share runs
    hours = sum(sum(run.seconds.values()) for run in ended) / 3600
    number = len({run.study for run in every})
    return f"{len(ended)} runs in {number} studies, {hours:.0f} hours of one core on busy machines.\n"


def written(page: str, parts: dict[str, str]) -> str:
    """The page with its parts between their marks."""
    shown = {name: parts[name] for name in ON_PAGE if name in parts}
    return between(page, shown, "python studies/maps/table.py")


def fixed_norms(moved: list[Shift], rows: list[Row]) -> str:
    """Best step sizes with weights and updates of fixed norm, over those of a nearly exact oracle."""
    shift = next(one for one in moved if "hyperball" in one.study)
    tilt = next(row for row in rows if "power" in row.oracle)
    return (
        "| from | to | best lr, over | loss more, each at its own lr |\n|---|---|---:|---:|\n"
        f"| five Polar Express steps | two | {ratio(shift.ratio)} | {shift.own} |\n"
        f"| three poles | with s^-0.2 | {ratio(tilt.shift)} | {tilt.own} |\n\n{shift.seeds} seeds.\n"
    )


def beside(settings: list[Setting], studies: Iterable[StudyRecord]) -> dict[str, Grid]:
    """Grids of studies that no setting has, by momentum."""
    taken = {name for s in settings for name in (s.study, s.beside)}
    others = by_momentum(study for study in studies if study.name not in taken)
    return {f"{name}, momentum {momentum:g}": grid(runs) for (name, momentum), runs in others.items()}


def size(run: RunRecord) -> tuple[str, int]:
    """What the flops of a run depend on beside its oracle: the model and the steps."""
    return repr(run.spec.problem), run.spec.steps


def counted(runs: Iterable[RunRecord]) -> dict[tuple[str, int], float]:
    """Flops of five Polar Express steps by the size of a run, from whichever study has such runs."""
    five = [run for run in runs if run.problem == "nanogpt" and run.spec.optimizer.polar in FIVE]
    return {size(run): run.result.get("oracle_flops") or 0.0 for run in five}


def made(*folders: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """What maps.json holds, and the parts of the page by name."""
    studies = {study.name: study for folder in folders for study in load(folder).studies}
    settings = [s for s in declared(HERE / "declared.toml") if s.study in studies]
    runs = {
        s.study: [r for name in (s.study, s.beside) if name in studies for r in studies[name].runs] for s in settings
    }
    whole = counted(run for study in studies.values() for run in study.runs)
    grids = {name: grid(found, whole.get(size(found[0]), 0.0)) for name, found in runs.items()}
    found = {s.study: rows(s, grids) for s in settings}
    settings = [s for s in settings if found[s.study]]
    layers = spectra.load(SPECTRA)
    bodies = {s.label: grids[s.study] for s in settings if not s.tuned_by} | beside(settings, studies.values())
    bodies = {name: one for name, one in bodies.items() if "hyperball" not in one.kind}  # there lr is another quantity
    parts = {f"oracles of {s.study}": oracles(s, found[s.study]) for s in settings}
    parts |= {"what orders losses": orders(settings, found, layers), "rules": moves(bodies, layers)}
    parts["verdicts"] = verdicts(settings, found)
    every = by_kind(settings, found, grids)
    parts["which oracle is enough"] = matrix(every)
    parts["one property at a time"] = properties(settings, found)
    parts["effort"] = effort(studies.values())
    moved = shifts(studies.values())
    parts["two and five iterations"] = iterations([one for one in moved if "hyperball" not in one.study])
    if "maps-tiny-hyperball" in found:
        parts["fixed norms"] = fixed_norms(moved, found["maps-tiny-hyperball"])
    table = {s.study: {"label": s.label, "rows": [asdict(row) for row in found[s.study]]} for s in settings}
    kinds = {
        kind: {"label": kind, "rows": [asdict(one.cells[kind]) for one in every if kind in one.cells]} for kind in KINDS
    }
    enough = {one.oracle: one.passes for one in every}
    return {"settings": table, "kinds": kinds, "enough": enough, "shifts": [asdict(one) for one in moved]}, parts


def main() -> None:
    """The command."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("evidence", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--page", type=page_file)
    given = parser.parse_args()
    try:
        table, parts = made(*given.evidence)
    except LabError as error:
        parser.error(str(error))
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "maps.json").write_text(json.dumps(table, indent=1) + "\n")
    text = "\n".join(f"## {name.capitalize()}\n\n{part}" for name, part in parts.items())
    (given.out / "maps.md").write_text(text)
    figure(table["kinds"]).save(given.out / "maps.svg")
    if given.page:
        given.page.write_text(written(given.page.read_text(), parts))
    print(text)


if __name__ == "__main__":
    main()
