"""Losses of a study by oracle, step size and seed: best step sizes, and losses compared at them seed by seed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import exp, log, prod
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from inexact_muon_lab.report.load import RunRecord, StudyRecord

FEWEST = 2
"""Seeds of an oracle that is judged: the step size of one is chosen by the others."""
THREE_POLES = "zolotarev(poles=3)"
"""What times are relative to."""
RATES = 3
"""Step sizes of an oracle that is judged: those of a parabola."""


class Setting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was declared of a study, a table [[setting]] of declared.toml.

    Attributes:
        margin: as a share of the reference's mean loss.
        matched: the step size at which all oracles are compared too.
        tuned_by: the study that gave each oracle the one step size it has in this; by default the study itself does,
            without the seed that is judged.
        beside: another study whose runs compare with these, seed by seed.
    """

    study: str
    label: str
    reference: str
    margin: float
    matched: float | None = None
    tuned_by: str = ""
    beside: str = ""


def declared(path: Path) -> list[Setting]:
    """The settings of declared.toml, in its order."""
    return msgspec.convert(tomllib.loads(path.read_text()), dict[str, list[Setting]])["setting"]


@dataclass(frozen=True)
class Grid:
    """Finished runs of one study, all of one momentum."""

    losses: dict[str, dict[float, dict[int, float]]]
    """Oracle -> lr -> seed -> validation loss at the end."""
    flops: dict[str, float]
    """Oracle -> flops of all its calls in one run."""
    runs: int
    seconds: float
    five: float = 0.0
    """Flops of five Polar Express steps in such a run; 0 if no study has one."""
    kind: str = ""
    """Size, text and optimizer of the runs."""

    def seeds(self, oracle: str) -> list[int]:
        """Those with every step size of the oracle."""
        by_lr = list(self.losses.get(oracle, {}).values())
        return sorted(set.intersection(*(set(by) for by in by_lr))) if by_lr else []

    @cached_property
    def tunable(self) -> list[str]:
        """Oracles with step sizes enough for a best one, on any seeds."""
        return [oracle for oracle, by_lr in self.losses.items() if len(by_lr) >= RATES]

    @cached_property
    def judged(self) -> list[str]:
        """Oracles with seeds and step sizes enough, in the order of the study."""
        return [oracle for oracle in self.tunable if len(self.seeds(oracle)) >= FEWEST]

    def best(self, oracle: str, seeds: Iterable[int]) -> Lowest:
        """The lowest point of the parabola in log lr through the mean losses of these seeds."""
        return lowest(self.means(oracle, seeds))

    def means(self, oracle: str, seeds: Iterable[int] | None = None) -> dict[float, float]:
        """Step size -> mean loss over these seeds (or all), of the model loss = seed + step size by least squares.

        Where every seed has every step size that is the plain mean; where one has not, its other runs still tell the
        difference between theirs.
        """
        chosen = None if seeds is None else set(seeds)
        cells = {
            lr: {s: v for s, v in by.items() if chosen is None or s in chosen} for lr, by in self.losses[oracle].items()
        }
        points = [(lr, s, v) for lr, by in cells.items() for s, v in by.items()]
        rates, names = sorted({lr for lr, _, _ in points}), sorted({s for _, s, _ in points})
        terms = np.array([[lr == r for r in rates] + [s == n for n in names] for lr, s, _ in points], dtype=np.float64)
        found = np.linalg.lstsq(terms, np.array([v for _, _, v in points]), rcond=None)[0]
        level = float(found[len(rates) :].mean())
        return {lr: float(found[k]) + level for k, lr in enumerate(rates)}

    def by_seed(self, oracle: str) -> dict[int, Lowest]:
        """The best step size of each seed by itself."""
        return {seed: self.best(oracle, [seed]) for seed in self.seeds(oracle)}

    def own(self, oracle: str) -> dict[int, float]:
        """Each seed's loss at the step size that the other seeds choose."""
        seeds = self.seeds(oracle)
        others = {seed: [s for s in seeds if s != seed] for seed in seeds}
        return {seed: self.at(oracle, seed, self.best(oracle, rest).lr) for seed, rest in others.items()}

    def at(self, oracle: str, seed: int, lr: float) -> float:
        """A seed's loss at a step size, between its runs by the parabola through the nearest three."""
        return between({rate: by[seed] for rate, by in self.losses[oracle].items() if seed in by}, lr)

    def matched(self, oracle: str, lr: float) -> dict[int, float]:
        """Each seed's loss at a step size of the grid; nothing if the oracle has no run there."""
        return dict(self.losses.get(oracle, {}).get(lr, {}))


class Lowest(NamedTuple):
    """A step size; `edge`: the parabola falls beyond the end of the grid, or has no lowest point."""

    lr: float
    edge: bool


def lowest(points: Mapping[float, float]) -> Lowest:
    """The vertex of the parabola in log lr through the best point and its two nearest, not outside of the grid.

    `statistics.optimum` stays at a best point that has no neighbour on one side; grids of three step sizes have two
    such points, and the vertex still lies between them.
    """
    best = min(points, key=lambda lr: points[lr])
    near = sorted(points, key=lambda lr: abs(log(lr / best)))[:3]
    if len(near) < RATES:
        return Lowest(best, True)
    bend, slope, _ = np.polyfit([log(lr / best) for lr in near], [points[lr] for lr in near], 2)
    if bend <= 0.0:
        return Lowest(best, True)
    vertex = best * exp(-0.5 * slope / bend)
    inside = min(max(vertex, min(points)), max(points))
    return Lowest(inside, inside != vertex)


def between(points: Mapping[float, float], lr: float) -> float:
    """The value at lr of the polynomial in log lr through the nearest three points."""
    if lr in points:
        return points[lr]
    near = sorted(points, key=lambda x: abs(log(x / lr)))[:3]
    if len(near) < RATES:
        raise ValueError(f"three step sizes are needed to say what happens at {lr:g}, got {len(near)}")
    return sum(points[a] * prod(log(lr / b) / log(a / b) for b in near if b != a) for a in near)


def by_momentum(studies: Iterable[StudyRecord]) -> dict[tuple[str, float], list[RunRecord]]:
    """The runs of each study by momentum, without those that are only a part of what another study has."""
    found: dict[tuple[str, float], list[RunRecord]] = {}
    for study in studies:
        for momentum in sorted({float(run.momentum or 0.0) for run in study.runs}):
            found[study.name, momentum] = [run for run in study.runs if run.momentum == momentum]
    ids = {key: {run.id for run in runs} for key, runs in found.items()}
    return {key: runs for key, runs in found.items() if not any(ids[key] < other for other in ids.values())}


def grid(runs: Iterable[RunRecord], five: float = 0.0) -> Grid:
    """The grid of runs of one momentum; those that have not finished are not in it."""
    losses: dict[str, dict[float, dict[int, float]]] = {}
    flops: dict[str, float] = {}
    ended = [run for run in runs if run.value("loss") is not None]
    for run in ended:
        options: Any = run.spec.optimizer
        losses.setdefault(options.polar, {}).setdefault(options.lr, {})[run.seed] = run.result["loss"] or 0.0
        flops[options.polar] = run.result.get("oracle_flops") or 0.0
    if len({run.momentum for run in ended}) > 1 or len({run.setting for run in ended}) > 1:
        raise ValueError(f"{ended[0].study}: runs of several momenta or settings do not make one grid")
    spent = sum(sum(run.seconds.values()) for run in ended)
    return Grid(losses, flops, len(ended), spent, five, kind(ended[0]) if ended else "")


def kind(run: RunRecord) -> str:
    """Size and text of a run, and its optimizer unless it is Muon."""
    if run.problem != "nanogpt":
        return "conv net, CIFAR-10" if run.problem == "cnn" else run.problem
    text = "enwik8" if hasattr(run.spec.data, "path") else "Python's library"
    return f"{run.spec.problem.layers} layers, {text}" + ("" if run.optimizer == "muon" else f", {run.optimizer}")
