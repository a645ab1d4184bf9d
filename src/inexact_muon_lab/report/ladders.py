"""Comparable runs of one oracle family: ladders (by iterations) and grids (step size x momentum by iterations)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

from inexact_muon_lab.report.load import Results, RunRecord
from inexact_muon_lab.spec.oracle_text import OracleText, parts
from inexact_muon_lab.statistics import Cell, Interval, interval, paired
from inexact_muon_lab.store.outcome import MEASURED

NAMES = {"newton-schulz": "Newton-Schulz", "cans": "CANS", "exact-svd": "Exact"}
NAMES |= {"torch-muon": "torch.optim.Muon", "adamw": "AdamW", "sgd": "SGD", "sign-sgd": "SignSGD"}
"""Oracles and optimizers whose names are not their texts with capitals."""


def in_words(family: str) -> str:
    """ "polar-express(degree=9)" as "Polar Express (degree=9)"."""
    name, bracket, options = family.partition("(")
    words = NAMES.get(name, name.replace("-", " ").title())
    return words + (f" ({options}" if bracket else "")


def iterations(count: int) -> str:
    """ "1 iteration", "5 iterations"."""
    return f"{count} iteration{'' if count == 1 else 's'}"


def oracle_in_words(text: str) -> str:
    """ "polar-express(steps=5)" as "Polar Express, 5 iterations"."""
    oracle = parts(text)
    words = in_words(oracle.label)
    return words if oracle.iterations is None else f"{words}, {iterations(oracle.iterations)}"


@dataclass
class Series:
    """Runs of one study, setting and oracle family: a ladder has one step size and momentum, a grid several.

    Attributes:
        pilot: the pilot's seeds, if the study declares one: intervals use its spread.
        heading: the study's title.
        alone: the study has no other family, and a title that may say so.
        cells: {iterations: {(step size, momentum): runs by seed}}, iterations ascending.
        by_count: {iterations: runs}.
        images: these runs have an accuracy.
        counts: comparable iteration counts: those with an ended run, or all if these are fewer than two.
        rates: step sizes, ascending, as are the momenta.
        evidence: the study's title and the oracles in words.
        title: what charts are called: the study's title, and the oracles if it has several.
    """

    study: str
    family: str
    pilot: tuple[int, ...]
    heading: str
    alone: bool
    cells: dict[int, dict[Cell, list[RunRecord]]]

    def __post_init__(self) -> None:
        self.evidence = f"{self.heading}, {in_words(self.family)}"
        self.title = self.heading if self.alone else self.evidence
        places = {cell for cells in self.cells.values() for cell in cells}
        self.rates, self.momenta = sorted({lr for lr, _ in places}), sorted({momentum for _, momentum in places})
        self.by_count = {count: [run for runs in cells.values() for run in runs] for count, cells in self.cells.items()}
        self.runs = [run for runs in self.by_count.values() for run in runs]
        self.seeds = sorted({run.seed for run in self.runs})
        self.images = bool([run for run in self.runs if run.problem == "cnn" or "accuracy" in run.result])
        ended = [c for c, runs in self.by_count.items() if not {run.state for run in runs}.isdisjoint(MEASURED)]
        self.counts = ended if len(ended) >= 2 else list(self.by_count)
        # {iterations: seeds of the runs that diverged or failed}
        self._lost = {count: [run.seed for run in runs if run.lost] for count, runs in self.by_count.items()}
        # {(iterations, seed): runs that have ended}
        self._of_seed: dict[tuple[int, int], list[RunRecord]] = defaultdict(list)
        for count, runs in self.by_count.items():
            for run in runs:
                if run.state in MEASURED:
                    self._of_seed[count, run.seed].append(run)

    @property
    def ends(self) -> tuple[int, int]:
        """The fewest and the most iterations: the crudest oracle and the most precise one."""
        return self.counts[0], self.counts[-1]

    def nearest(self, count: int) -> int:
        """The iteration count nearest to `count`; the smaller of two."""
        return min(self.counts, key=lambda known: abs(known - count))

    def interval(self, values: Mapping[int, float], grain: float = 0.0) -> Interval:
        """The interval of values by seed."""
        return interval(values, self.pilot, grain)

    def values(self, count: int, number: str) -> dict[int, float]:
        """{seed: value} of the runs of a ladder that have this number: an attribute of RunRecord."""
        runs = self.by_count.get(count, ())
        return {run.seed: value for run in runs if (value := getattr(run, number)) is not None}

    def gain(self, a: int, b: int, number: str) -> Interval:
        """Value at `a` iterations minus that at `b`, by seed; the worst is assumed of seeds that only one arm lost."""
        first, second = self.values(a, number), self.values(b, number)
        lost, surely = set(self._lost[b]) & first.keys(), set(self._lost[a]) & second.keys()
        return self.interval(paired(first, second)).censored(below=bool(lost), above=bool(surely))

    def table(self, count: int, seed: int, number: str) -> dict[Cell, float]:
        """{cell: value} of the runs of one seed that have this number: an attribute of RunRecord."""
        runs = self._of_seed.get((count, seed), ())
        return {run.cell: value for run in runs if (value := getattr(run, number)) is not None}

    def whole(self, seed: int, *counts: int) -> bool:
        """Whether a seed's runs at all cells of these counts have ended: the best of a part may not be that of all."""
        ended = [{run.cell for run in self._of_seed.get((count, seed), ())} for count in counts]
        return ended == [self.cells[count].keys() for count in counts]

    def lost_runs(self, *counts: int) -> int:
        """Number of runs at these counts (default: all) that diverged or failed."""
        return sum([len(self._lost[count]) for count in counts or self.by_count])

    def lost(self, *counts: int) -> str:
        """A sentence on the runs at these counts (default: all) that diverged or failed; empty if there are none."""
        lost = {count: seeds for count in counts or self.by_count if (seeds := self._lost[count])}
        said = [f"{len(seeds)} of {len(self.by_count[c])} runs at {iterations(c)}" for c, seeds in lost.items()]
        return f"{', '.join(said)} diverged or failed, which counts against them" if said else ""


def ladders(results: Results) -> list[Series]:
    """For each study, setting and family with at least two iteration counts: its most complete step size and momentum.

    Longest ladder first, language before images. Most complete: most counts, then most finished runs, then the lowest
    mean loss over all of them, which favours no count.
    """
    series = []
    for family, runs in _families(results):
        by_cell: dict[Cell, list[RunRecord]] = defaultdict(list)
        for run in runs:
            by_cell[run.cell].append(run)
        chosen = max(by_cell.values(), key=_completeness)
        ladder = family(_cells(sorted(chosen, key=attrgetter("seed"))))
        if len(ladder.cells) >= 2:
            series.append(ladder)
    return sorted(series, key=lambda s: (-len(s.cells), s.images, s.study, s.family))


def _completeness(runs: list[RunRecord]) -> tuple[int, int, float]:
    """Counts, finished runs, and minus their mean loss."""
    losses = [run.loss for run in runs if run.loss is not None]
    return len({run.iterations for run in runs}), len(losses), -sum(losses) / max(1, len(losses))


def grids(results: Results, momenta: int = 2) -> list[Series]:
    """For each study, setting and family: its grid, if at least two step sizes and `momenta` were tried.

    One momentum makes a grid of the counts with at least three step sizes: those of a parabola.
    """
    series = []
    for family, runs in _families(results):
        cells = _cells(runs)
        if len({momentum for by_cell in cells.values() for _, momentum in by_cell}) == 1:
            cells = {count: by_cell for count, by_cell in cells.items() if len(by_cell) >= 3}
        grid = family(cells)
        if len(grid.rates) >= 2 and len(grid.momenta) >= momenta:
            series.append(grid)
    return series


def _cells(runs: Iterable[RunRecord]) -> dict[int, dict[Cell, list[RunRecord]]]:
    """{iterations: {(step size, momentum): runs}}, iterations ascending."""
    cells: dict[int, dict[Cell, list[RunRecord]]] = {}
    for run in runs:
        cells.setdefault(run.iterations, {}).setdefault(run.cell, []).append(run)
    return dict(sorted(cells.items()))


def _families(results: Results) -> list[tuple[partial[Series], list[RunRecord]]]:
    """The runs of each study, setting and family of oracles that count iterations, with a series that lacks its cells.

    The family's name is its label, and names the normaliser if others of the study have another.
    """
    listed = []
    for study in results.studies:
        by_label: dict[str, dict[OracleText | None, str]] = defaultdict(dict)
        for oracle in {run.oracle for run in study.runs}:
            if oracle is not None and oracle.iterations is not None:
                by_label[oracle.label][oracle] = oracle.full
        names: dict[OracleText | None, str] = {}
        for label, texts in by_label.items():
            names |= dict.fromkeys(texts, label) if len(set(texts.values())) == 1 else texts
        groups: dict[tuple[str, str], list[RunRecord]] = defaultdict(list)
        for run in study.runs:
            if run.oracle in names:
                groups[run.setting, names[run.oracle]].append(run)
        pilot = study.declared.pilot if study.declared else ()
        alone = len(set(names.values())) == 1 and study.title != study.name
        listed += [
            (partial(Series, study.name, name, pilot, study.title, alone), runs) for (_, name), runs in groups.items()
        ]
    return listed
