"""Comparable runs: ladders (one oracle family by iterations) and grids (step size x momentum by iterations)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from inexact_muon_lab.report.load import Results, RunRecord
from inexact_muon_lab.statistics import Cell, Interval, interval, paired
from inexact_muon_lab.store.outcome import MEASURED

LOST = ("diverged", "failed")
"""States of runs that ended without a result, which is not missing by chance: it counts against their arm."""


@dataclass(frozen=True)
class Series(ABC):
    """Runs of one study and oracle family."""

    study: str
    family: str
    pilot: tuple[int, ...]
    """The pilot's seeds, if the study declares one: intervals use its spread."""
    heading: str
    """The study's title."""

    @property
    @abstractmethod
    def by_count(self) -> Mapping[int, Sequence[RunRecord]]:
        """Runs by iterations, ascending."""

    @property
    def title(self) -> str:
        """Origin of the evidence in words: the study's title, and the oracles unless the title names them."""
        oracles = in_words(self.family)
        return self.heading if oracles in self.heading else f"{self.heading}, {oracles}"

    def interval(self, values: Mapping[int, float], grain: float = 0.0) -> Interval:
        """The interval of values by seed."""
        return interval(values, self.pilot, grain)

    @property
    def runs(self) -> list[RunRecord]:
        """All runs, by iterations."""
        return [run for runs in self.by_count.values() for run in runs]

    @property
    def images(self) -> bool:
        """Whether these runs have an accuracy."""
        return self.runs[0].problem == "cnn" or any("accuracy" in run.result for run in self.runs)

    def lost_runs(self, *counts: int) -> int:
        """Number of runs at these counts (default: all) that diverged or failed."""
        return sum(run.state in LOST for count in counts or self.by_count for run in self.by_count[count])

    def lost(self, *counts: int) -> str:
        """A sentence on the runs at these counts (default: all) that diverged or failed; empty if there are none."""
        numbers = {count: self.lost_runs(count) for count in counts or self.by_count}
        said = [f"{k} of {len(self.by_count[c])} runs at {iterations(c)}" for c, k in numbers.items() if k]
        return f"{', '.join(said)} diverged or failed, which counts against them" if said else ""

    @property
    def counts(self) -> list[int]:
        """Comparable iteration counts: those with an ended run, or all if these are fewer than two."""
        ended = [count for count, runs in self.by_count.items() if any(r.state in MEASURED for r in runs)]
        return ended if len(ended) >= 2 else list(self.by_count)


@dataclass(frozen=True)
class Ladder(Series):
    """One family at one step size and momentum, by iterations, with its seeds."""

    lr: float
    momentum: float | None
    rungs: dict[int, tuple[RunRecord, ...]]

    @property
    def by_count(self) -> dict[int, tuple[RunRecord, ...]]:
        return self.rungs

    def values(self, count: int, of: Callable[[RunRecord], float | None]) -> dict[int, float]:
        """{seed: value} of the runs that have one."""
        by_seed = {run.seed: of(run) for run in self.rungs.get(count, ())}
        return {seed: value for seed, value in by_seed.items() if value is not None}

    def gain(self, a: int, b: int, of: Callable[[RunRecord], float | None]) -> Interval:
        """Value at `a` iterations minus that at `b`, by seed; the worst is assumed of seeds that only one arm lost."""
        first, second = self.values(a, of), self.values(b, of)
        gain = self.interval(paired(first, second))
        return gain.censored(below=bool(self._lost(b) & first.keys()), above=bool(self._lost(a) & second.keys()))

    def _lost(self, count: int) -> set[int]:
        return {run.seed for run in self.rungs.get(count, ()) if run.state in LOST}

    def nearest(self, count: int) -> int:
        """The iteration count of this ladder nearest to `count`; the smaller of two."""
        return min(self.counts, key=lambda rung: abs(rung - count))


@dataclass(frozen=True)
class Grid(Series):
    """One family over step sizes and momenta: {iterations: {(lr, momentum): runs by seed}}."""

    cells: dict[int, dict[Cell, tuple[RunRecord, ...]]]

    @property
    def by_count(self) -> dict[int, list[RunRecord]]:
        return {count: [run for cell in cells.values() for run in cell] for count, cells in self.cells.items()}

    @property
    def rates(self) -> list[float]:
        """Step sizes, ascending."""
        return sorted({lr for cells in self.cells.values() for lr, _ in cells})

    @property
    def momenta(self) -> list[float]:
        """Momenta, ascending."""
        return sorted({momentum for cells in self.cells.values() for _, momentum in cells})

    @property
    def seeds(self) -> list[int]:
        """All seeds."""
        return sorted({run.seed for run in self.runs})

    def tried(self, count: int) -> set[Cell]:
        """The cells of a count that any seed has."""
        return set(self.cells.get(count, {}))

    def whole(self, seed: int, *counts: int) -> bool:
        """Whether a seed's runs at all cells of these counts have ended: the best of a part may not be that of all."""
        ended = {(c, cell) for c in counts for cell, runs in self.cells[c].items() for run in runs
                 if run.seed == seed and run.state in MEASURED}  # fmt: skip
        return all((count, cell) in ended for count in counts for cell in self.tried(count))

    def table(self, count: int, seed: int, metric: str) -> dict[Cell, float]:
        """{cell: final value} of the finished runs of one seed."""
        return {
            cell: value
            for cell, runs in self.cells.get(count, {}).items()
            for run in runs
            if run.seed == seed and (value := run.value(metric)) is not None
        }


def in_words(family: str) -> str:
    """ "polar-express(degree=9)" as "Polar Express (degree=9)"."""
    name, bracket, options = family.partition("(")
    return name.replace("-", " ").title() + (f" ({options}" if bracket else "")


def iterations(count: int) -> str:
    """ "1 iteration", "5 iterations"."""
    return f"{count} iteration{'' if count == 1 else 's'}"


def ladders(results: Results) -> list[Ladder]:
    """For each study, setting and family with at least two iteration counts: its most complete step size and momentum.

    Longest ladder first, language before images. Most complete: most counts, then most finished runs, then the lowest
    mean loss over all of them, which favours no count.
    """
    series = []
    about = _about(results)
    for (study, _, family), runs in _families(results).items():
        by_cell: dict[tuple[float, float | None], list[RunRecord]] = defaultdict(list)
        for run in runs:
            by_cell[run.lr, run.momentum].append(run)
        (lr, momentum), chosen = max(by_cell.items(), key=lambda item: _filled(item[1]))
        rungs: dict[int, list[RunRecord]] = defaultdict(list)
        for run in chosen:
            rungs[_count(run)].append(run)
        if len(rungs) >= 2:
            ordered = {count: tuple(sorted(rungs[count], key=lambda run: run.seed)) for count in sorted(rungs)}
            series.append(Ladder(study, family, *about[study], lr, momentum, ordered))
    return sorted(series, key=lambda s: (-len(s.rungs), s.images, s.study, s.family))


def grids(results: Results, momenta: int = 2) -> list[Grid]:
    """For each study, setting and family: its grid, if at least two step sizes and `momenta` were tried.

    One momentum makes a grid of the counts with at least three step sizes: those of a parabola.
    """
    series = []
    about = _about(results)
    for (study, _, family), runs in _families(results).items():
        cells: dict[int, dict[Cell, list[RunRecord]]] = defaultdict(lambda: defaultdict(list))
        for run in runs:
            if run.momentum is not None:
                cells[_count(run)][run.lr, run.momentum].append(run)
        line = len({momentum for by_cell in cells.values() for _, momentum in by_cell}) == 1
        least = 3 if line else 1
        filled = {c: {cell: tuple(r) for cell, r in cells[c].items()} for c in sorted(cells) if len(cells[c]) >= least}
        grid = Grid(study, family, *about[study], filled)
        if filled and len(grid.rates) >= 2 and len(grid.momenta) >= momenta:
            series.append(grid)
    return series


def _about(results: Results) -> dict[str, tuple[tuple[int, ...], str]]:
    """{study: (seeds of its pilot, title)}."""
    return {s.name: (s.declared.pilot if s.declared else (), s.title) for s in results.studies}


def _families(results: Results) -> dict[tuple[str, str, str], list[RunRecord]]:
    """Runs by study, setting and family; its label names the normaliser if others of the study have another."""
    families: dict[tuple[str, str, str], list[RunRecord]] = defaultdict(list)
    names: dict[tuple[str, str], set[str]] = defaultdict(set)
    for run in results.runs:
        if run.oracle is not None and run.oracle.iterations is not None:
            families[run.study, run.setting, run.oracle.full].append(run)
            names[run.study, run.oracle.label].add(run.oracle.full)
    labels = {name: label for (study, label), full in names.items() if len(full) == 1 for name in [(study, *full)]}
    return {
        (study, setting, labels.get((study, full), full)): runs for (study, setting, full), runs in families.items()
    }


def _count(run: RunRecord) -> int:
    assert run.oracle is not None
    assert run.oracle.iterations is not None
    return run.oracle.iterations


def _filled(runs: list[RunRecord]) -> tuple[int, int, float]:
    losses = [loss for run in runs if (loss := run.value("loss")) is not None]
    return len({_count(run) for run in runs}), len(losses), -sum(losses) / max(1, len(losses))
