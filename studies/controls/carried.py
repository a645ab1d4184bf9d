"""How the best lr moves from one oracle to another when decay does not move with it, and what `descent` asks for.

Best lr are those of the tuning studies, all at one decay; spectra were recorded in another run (studies/cotuning).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from math import log
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cotuning"))
import carry

from inexact_muon_lab.report.load import RunRecord, StudyRecord
from inexact_muon_lab.statistics import interval
from inexact_muon_lab.tune import spectra

SPECTRA = Path(__file__).resolve().parents[1] / "cotuning/gpt-carried.npz"
POLES, FIVE = "zolotarev(poles=3)", "polar-express(steps=5, normalise=frobenius)"
SOURCES = {
    "controls-enough": ("controls-enough", POLES, 0.0019),
    "controls-tilts": ("controls-tilts", POLES, 0.0019),
    "controls-powers": ("controls-tilts", POLES, 0.0019),
    "controls-region": ("controls-region", FIVE, 0.0),
}
"""Study -> (study of the source, source, decay of both)."""


class Lowest(NamedTuple):
    """The best lr of an oracle at one decay; `edges` names rates at an end of the grid."""

    lr: float
    edges: str


class Moved(NamedTuple):
    """Best lr of a target over that of the source, and what a rule asks for."""

    study: str
    source: str
    target: str
    ratio: float
    asked: float


def moves(best: dict[tuple[str, str], Lowest], layers: carry.Layers) -> Iterator[Moved]:
    """Every oracle whose best lr, and that of its source, lie inside of their grids."""
    for (study, target), lowest in best.items():
        home, source, _ = SOURCES[study]
        start = best.get((home, source))
        if start is None or target == source or start.edges or lowest.edges:
            continue
        asked = carry.carried(source, target, layers)["descent"].lr
        yield Moved(study, source, target, lowest.lr / start.lr, asked)


def at_decay(runs: Sequence[RunRecord], decay: float) -> list[RunRecord]:
    """The runs with this decay; all of a study that has none."""
    return [run for run in runs if getattr(run.spec.optimizer, "decay", 0.0) == decay or decay == 0.0]


def table(studies: Sequence[StudyRecord], best_of: Callable[[list[RunRecord]], Any]) -> str:
    """One row for each target, then the mean errors over targets."""
    best: dict[tuple[str, str], Lowest] = {}
    for study in studies:
        if study.name in SOURCES:
            decay = SOURCES[study.name][2]
            for oracle in dict.fromkeys(run.spec.polar for run in study.runs):
                runs = at_decay([run for run in study.runs if run.spec.polar == oracle], decay)
                one = best_of(runs)
                best[study.name, oracle] = Lowest(one.lr, one.edges)
    rows = list(moves(best, spectra.load(SPECTRA)))
    lines = ["| from | to | study | best lr, over | `descent` asks for |", "|---|---|---|---:|---:|"]
    lines += [f"| `{r.source}` | `{r.target}` | {r.study} | {r.ratio:.2f} | {r.asked:.2f} |" for r in rows]
    keep = [abs(log(r.ratio)) for r in rows]
    descent = [abs(log(r.ratio / r.asked)) for r in rows]
    less = interval([b - a for a, b in zip(keep, descent, strict=True)])
    errors = f"keeping {sum(keep) / len(keep):.3f}, `descent` {sum(descent) / len(descent):.3f}"
    said = f"{less.mean:+.3f} ({less.low:+.3f} to {less.high:+.3f})"
    return "\n".join([*lines, "", f"Mean |log| error: {errors}; difference {said} over {less.n} targets."]) + "\n"
