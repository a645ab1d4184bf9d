"""Comparable runs: ladders (one oracle family by iterations) and grids (step size x momentum by iterations)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

from inexact_muon_lab.report.load import Results, RunRecord
from inexact_muon_lab.spec.oracle_text import parts
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


@dataclass(frozen=True)
class Series(ABC):
    """Runs of one study and oracle family.

    Attributes:
        pilot: the pilot's seeds, if the study declares one: intervals use its spread.
        heading: the study's title.
        alone: the study has no other family, and a title that may say so.
    """

    study: str
    family: str
    pilot: tuple[int, ...]
    heading: str
    alone: bool

    @property
    @abstractmethod
    def by_count(self) -> Mapping[int, Sequence[RunRecord]]:
        """Runs by iterations, ascending."""

    @cached_property
    def evidence(self) -> str:
        """The study's title and the oracles in words."""
        return f"{self.heading}, {in_words(self.family)}"

    @property
    def title(self) -> str:
        """What charts are called: the study's title, and the oracles if it has several."""
        return self.heading if self.alone else self.evidence

    def interval(self, values: Mapping[int, float], grain: float = 0.0) -> Interval:
        """The interval of values by seed."""
        return interval(values, self.pilot, grain)

    @cached_property
    def runs(self) -> list[RunRecord]:
        return [run for runs in self.by_count.values() for run in runs]

    @cached_property
    def images(self) -> bool:
        """Whether these runs have an accuracy."""
        return self.runs[0].problem == "cnn" or bool([run for run in self.runs if "accuracy" in run.result])

    @cached_property
    def seeds(self) -> list[int]:
        return sorted({run.seed for run in self.runs})

    @cached_property
    def _lost(self) -> dict[int, list[int]]:
        """{iterations: seeds of the runs that diverged or failed}."""
        return {count: [run.seed for run in runs if run.lost] for count, runs in self.by_count.items()}

    def lost_runs(self, *counts: int) -> int:
        """Number of runs at these counts (default: all) that diverged or failed."""
        return sum([len(self._lost[count]) for count in counts or self.by_count])

    def lost(self, *counts: int) -> str:
        """A sentence on the runs at these counts (default: all) that diverged or failed; empty if there are none."""
        lost = {count: seeds for count in counts or self.by_count if (seeds := self._lost[count])}
        said = [f"{len(seeds)} of {len(self.by_count[c])} runs at {iterations(c)}" for c, seeds in lost.items()]
        return f"{', '.join(said)} diverged or failed, which counts against them" if said else ""

    @cached_property
    def counts(self) -> list[int]:
        """Comparable iteration counts: those with an ended run, or all if these are fewer than two."""
        ended = [c for c, runs in self.by_count.items() if not {run.state for run in runs}.isdisjoint(MEASURED)]
        return ended if len(ended) >= 2 else list(self.by_count)


@dataclass(frozen=True)
class Ladder(Series):
    """One family at one step size and momentum, by iterations, with its seeds."""

    lr: float
    momentum: float | None
    rungs: dict[int, tuple[RunRecord, ...]]

    @cached_property
    def by_count(self) -> dict[int, tuple[RunRecord, ...]]:
        return self.rungs

    def values(self, count: int, number: str) -> dict[int, float]:
        """{seed: value} of the runs that have this number: an attribute of RunRecord."""
        by_seed = {run.seed: getattr(run, number) for run in self.rungs.get(count, ())}
        return {seed: value for seed, value in by_seed.items() if value is not None}

    def gain(self, a: int, b: int, number: str) -> Interval:
        """Value at `a` iterations minus that at `b`, by seed; the worst is assumed of seeds that only one arm lost."""
        first, second = self.values(a, number), self.values(b, number)
        lost, surely = set(self._lost[b]) & first.keys(), set(self._lost[a]) & second.keys()
        return self.interval(paired(first, second)).censored(below=bool(lost), above=bool(surely))

    def nearest(self, count: int) -> int:
        """The iteration count of this ladder nearest to `count`; the smaller of two."""
        return min(self.counts, key=lambda rung: abs(rung - count))


@dataclass(frozen=True)
class Grid(Series):
    """One family over step sizes and momenta: {iterations: {(lr, momentum): runs by seed}}."""

    cells: dict[int, dict[Cell, tuple[RunRecord, ...]]]

    @cached_property
    def by_count(self) -> dict[int, list[RunRecord]]:
        return {count: [run for cell in cells.values() for run in cell] for count, cells in self.cells.items()}

    @cached_property
    def rates(self) -> list[float]:
        """Step sizes, ascending."""
        return sorted({lr for cells in self.cells.values() for lr, _ in cells})

    @cached_property
    def momenta(self) -> list[float]:
        """Momenta, ascending."""
        return sorted({momentum for cells in self.cells.values() for _, momentum in cells})

    @cached_property
    def _ended(self) -> dict[tuple[int, int], set[Cell]]:
        """{(iterations, seed): cells whose run has ended}."""
        ended: dict[tuple[int, int], set[Cell]] = defaultdict(set)
        for count, cells in self.cells.items():
            for cell, runs in cells.items():
                for run in runs:
                    if run.state in MEASURED:
                        ended[count, run.seed].add(cell)
        return ended

    def whole(self, seed: int, *counts: int) -> bool:
        """Whether a seed's runs at all cells of these counts have ended: the best of a part may not be that of all."""
        return all(self._ended.get((count, seed)) == self.cells[count].keys() for count in counts)

    @cached_property
    def _tables(self) -> dict[tuple[int, int, str], dict[Cell, float]]:
        tables: dict[tuple[int, int, str], dict[Cell, float]] = defaultdict(dict)
        for count, cells in self.cells.items():
            for cell, runs in cells.items():
                for run in runs:
                    for metric, value in (("loss", run.loss), ("accuracy", run.accuracy)):
                        if value is not None:
                            tables[count, run.seed, metric][cell] = value
        return tables

    def table(self, count: int, seed: int, metric: str) -> dict[Cell, float]:
        """{cell: final value} of the finished runs of one seed."""
        return self._tables.get((count, seed, metric), {})


Family = tuple[str, str, tuple[int, ...], str, bool]
"""Study, family, pilot, heading and `alone` of a series."""


def ladders(results: Results) -> list[Ladder]:
    """For each study, setting and family with at least two iteration counts: its most complete step size and momentum.

    Longest ladder first, language before images. Most complete: most counts, then most finished runs, then the lowest
    mean loss over all of them, which favours no count.
    """
    series = []
    for family, runs in _families(results):
        by_cell: dict[tuple[float, float | None], list[tuple[int, RunRecord]]] = defaultdict(list)
        for count, run in runs:
            by_cell[run.lr, run.momentum].append((count, run))
        (lr, momentum), chosen = max(by_cell.items(), key=_completeness)
        rungs: dict[int, list[RunRecord]] = defaultdict(list)
        for count, run in chosen:
            rungs[count].append(run)
        if len(rungs) >= 2:
            ordered = {count: tuple(sorted(rungs[count], key=attrgetter("seed"))) for count in sorted(rungs)}
            series.append(Ladder(*family, lr, momentum, ordered))
    return sorted(series, key=lambda s: (-len(s.rungs), s.images, s.study, s.family))


def _completeness(cell: tuple[object, list[tuple[int, RunRecord]]]) -> tuple[int, int, float]:
    """Counts, finished runs, and minus their mean loss."""
    runs = cell[1]
    losses = [run.loss for _, run in runs if run.loss is not None]
    return len({count for count, _ in runs}), len(losses), -sum(losses) / max(1, len(losses))


def grids(results: Results, momenta: int = 2) -> list[Grid]:
    """For each study, setting and family: its grid, if at least two step sizes and `momenta` were tried.

    One momentum makes a grid of the counts with at least three step sizes: those of a parabola.
    """
    series = []
    for family, runs in _families(results):
        cells: dict[int, dict[Cell, list[RunRecord]]] = defaultdict(lambda: defaultdict(list))
        for count, run in runs:
            if run.momentum is not None:
                cells[count][run.lr, run.momentum].append(run)
        line = len({momentum for by_cell in cells.values() for _, momentum in by_cell}) == 1
        least = 3 if line else 1
        filled = {c: {cell: tuple(r) for cell, r in cells[c].items()} for c in sorted(cells) if len(cells[c]) >= least}
        grid = Grid(*family, filled)
        if filled and len(grid.rates) >= 2 and len(grid.momenta) >= momenta:
            series.append(grid)
    return series


def _families(results: Results) -> list[tuple[Family, list[tuple[int, RunRecord]]]]:
    """(iterations, run) of each study, setting and family.

    The family's name is its label, and names the normaliser if others of the study have another.
    """
    listed = []
    for study in results.studies:
        distinct = dict.fromkeys(run.oracle for run in study.runs)
        oracles = {oracle: oracle.full for oracle in distinct if oracle is not None and oracle.iterations is not None}
        names: dict[str, dict[str, None]] = defaultdict(dict)
        for oracle, full in oracles.items():
            names[oracle.label][full] = None
        labels = {full: label if len(names[label]) == 1 else full for label in names for full in names[label]}
        groups: dict[tuple[str, str], list[tuple[int, RunRecord]]] = defaultdict(list)
        for run in study.runs:
            if run.oracle in oracles and run.oracle.iterations is not None:
                groups[run.setting, oracles[run.oracle]].append((run.oracle.iterations, run))
        pilot = study.declared.pilot if study.declared else ()
        alone = len(labels) == 1 and study.title != study.name
        listed += [((study.name, labels[full], pilot, study.title, alone), runs) for (_, full), runs in groups.items()]
    return listed
