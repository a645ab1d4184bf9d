"""Recommends an oracle and step size from the runs of a study."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import inf

from inexact_muon_lab.report.load import Results, RunRecord
from inexact_muon_lab.statistics import CONFIRMED, Cell, interval, paired
from inexact_muon_lab.store.outcome import MEASURED

MARGIN = 0.0025
"""An oracle is as good as the best one if its loss is higher by less than this share."""


@dataclass
class Tuned:
    """An oracle at its best step size and momentum, by mean loss over the seeds that all cells share.

    Attributes:
        edges: which of lr and momentum is the first or last that was tried.
        tied: weight decay is tied to lr.
    """

    oracle: str
    iterations: float
    at: Cell
    losses: dict[int, float]
    edges: tuple[str, ...]
    tied: bool

    def __post_init__(self) -> None:
        self.loss = interval(self.losses)
        self.words = f"{self.oracle} at lr {self.at[0]:.3g}, momentum {self.at[1]:g}"


def advice(results: Results) -> list[str]:
    """One sentence for each problem on which at least two oracles were trained, the best founded first.

    That is: no edge of what was tried, then most seeds.
    """
    groups: dict[tuple[str, str], dict[str, list[RunRecord]]] = defaultdict(lambda: defaultdict(list))
    for run in results.runs:
        if run.oracle is not None and run.state in MEASURED:
            groups[run.study, run.setting][str(run.spec.polar)].append(run)
    titles = {study.name: study.title for study in results.studies}
    choices = []
    for (study, _), by_oracle in groups.items():
        oracles = [tuned for text, runs in by_oracle.items() if (tuned := _tuned(text, runs)) is not None]
        if len(oracles) >= 2:
            best = min(oracles, key=lambda t: t.loss.mean)
            margin = MARGIN * abs(best.loss.mean)
            differences = [(t, interval(paired(t.losses, best.losses))) for t in oracles]
            same = [t for t, worse in differences if worse.no_worse(margin).verdict() == CONFIRMED]
            cheapest = min([best, *same], key=lambda t: (t.iterations, t.loss.mean))
            choices.append((titles[study], oracles, best, cheapest))
    choices.sort(key=lambda item: (bool(item[3].edges), -item[3].loss.n))
    return [_sentence(*choice) for choice in choices]


def _tuned(oracle: str, runs: list[RunRecord]) -> Tuned | None:
    """Its best cell among those of which no run diverged, by the seeds that all of these have."""
    cells: dict[Cell, dict[int, float | None]] = defaultdict(dict)
    for run in runs:
        cells[run.cell][run.seed] = run.loss
    stable = {
        cell: {seed: loss for seed, loss in by_seed.items() if loss is not None}
        for cell, by_seed in cells.items()
        if None not in by_seed.values()
    }
    shared = set.intersection(*(set(by_seed) for by_seed in stable.values())) if stable else set()
    if not shared:
        return None
    at = min(stable, key=lambda cell: sum(stable[cell][seed] for seed in shared))
    ends = ((name, sorted({cell[k] for cell in cells}), at[k]) for k, name in enumerate(("lr", "momentum")))
    edges = tuple(name for name, axis, value in ends if len(axis) > 1 and value in (axis[0], axis[-1]))
    return Tuned(oracle, runs[0].iterations or inf, at, stable[at], edges, runs[0].tied)


def _sentence(study: str, oracles: list[Tuned], best: Tuned, chosen: Tuned) -> str:
    """What to use on this problem, its loss, why, and what is open because an optimum is at an end of its grid."""
    half = chosen.loss.high - chosen.loss.mean
    seeds = f"{chosen.loss.n} seed{'' if chosen.loss.n == 1 else 's'}"
    loss = f"loss {chosen.loss.mean:.4g}{f' ± {half:.2g}' if half < inf else ''}, {seeds}"
    why = f"the best of {len(oracles)} oracles, and no cheaper one is sure to be within {MARGIN:.2%} of its loss"
    if chosen is not best:
        why = f"the cheapest of {len(oracles)} oracles sure to be within {MARGIN:.2%} of the best loss ({best.words})"
    be = "are" if len(chosen.edges) > 1 else "is"
    edges = f"; its {' and '.join(chosen.edges)} {be} the first or last that was tried, so look beyond"
    others = [t.oracle for t in oracles if t.edges and t is not chosen]
    names = ", ".join(others) if len(others) < 3 else f"{len(others)} of the others"
    unknown = f"; open for {names}: best at an end of what was tried" if others else ""
    moved = chosen.tied and len({t.at[0] for t in oracles}) > 1
    decay = "; weight decay is tied to lr, so that oracles at other lr differ in decay, too" if moved else ""
    return f"{study}: use {chosen.words} ({loss}): {why}{edges if chosen.edges else ''}{unknown}{decay}"
