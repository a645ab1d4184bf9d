"""Carries the pair tuned at one oracle to the others, by every rule, and writes the study that tries them.

`python studies/cotuning/carry.py runs/cotuning-gpt --out studies/cotuning/gpt-carried.toml` reads a finished grid of
step size and momentum (`gpt.toml`, `cnn.toml`). The tuned pair is the lowest point of a quadratic in log lr and log
alpha through the neighbourhood of the grid's best for the source oracle. The source is then trained once more, at the
best of the grid, and the spectra of its momentum half-way are what the rules see: nothing of any target's runs. Factors
within two per cent of 1 are 1.
"""

from __future__ import annotations

import sys
import tempfile
from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import numpy as np

from inexact_muon import polar
from inexact_muon.schedules.judgement import normaliser
from inexact_muon_lab.spec.spec import RunSpec
from inexact_muon_lab.statistics import GridOptimum, optimum
from inexact_muon_lab.store import store
from inexact_muon_lab.train.trainer import Training
from inexact_muon_lab.train.world import join
from inexact_muon_lab.tune import rules, spectra

SOURCE = "polar-express(steps=5, normalise=frobenius)"
SAME = 0.02

Layers = Sequence[spectra.Layer]
Pair = tuple[float, float]
"""(lr, alpha)."""


@dataclass(frozen=True)
class Grid:
    """A finished study over oracle, lr and momentum: losses by seed of each (oracle, lr, alpha)."""

    specs: tuple[RunSpec, ...]
    losses: dict[tuple[str, float, float], dict[int, float]]

    @property
    def oracles(self) -> list[str]:
        """In the order of the study."""
        return list(dict.fromkeys(oracle for oracle, _, _ in self.losses))

    def best(self, oracle: str) -> tuple[Pair, dict[int, float]]:
        """The pair of least mean loss, and its losses by seed; diverged runs lose."""
        here = {(lr, alpha): by for (o, lr, alpha), by in self.losses.items() if o == oracle}
        pair = min(here, key=lambda p: fmean(here[p].values()))
        return pair, here[pair]

    def fitted(self, oracle: str) -> GridOptimum:
        """The optimum of the mean losses: best cell, the quadratic's lowest point around it, whether on an edge."""
        table = {(lr, 1.0 - a): fmean(by.values()) for (o, lr, a), by in self.losses.items() if o == oracle}
        found = optimum(table)
        assert found is not None
        return found

    def tuned(self, oracle: str) -> Pair:
        """The fitted pair, in three digits.

        The best point of a coarse grid is off by up to half a step, and a rule that moves the same way would win.
        """
        found = self.fitted(oracle)
        return float(f"{found.lr:.3g}"), float(f"{found.alpha:.3g}")

    def on_edge(self, oracle: str) -> bool:
        """Whether the best pair has no neighbour on some side."""
        return self.fitted(oracle).edge or self.fitted(oracle).alpha_edge


def read(folder: Path) -> Grid:
    """The grid of a store; an oracle of which runs are missing is left out, and named."""
    losses: dict[tuple[str, float, float], dict[int, float]] = defaultdict(dict)
    found, missing = store.runs(folder), set()
    for run in found:
        options: Any = run.spec.optimizer
        if run.outcome is None or run.state not in ("finished", "diverged"):
            missing.add(options.polar)
            continue
        loss = run.outcome.result.get("loss")
        losses[_pair(run.spec)][run.spec.seed] = float("inf") if loss is None else loss
    for oracle in sorted(missing):
        print(f"{folder}: {oracle} is left out, its runs have not all ended", file=sys.stderr)
    kept = {key: by for key, by in losses.items() if key[0] not in missing}
    return Grid(tuple(run.spec for run in found), kept)


def watch(spec: RunSpec) -> list[spectra.Layer]:
    """The spectra of momentum half-way through a run."""
    with tempfile.TemporaryDirectory() as folder, join("cpu", spec.batch, spec.accumulate) as world:
        training = Training(spec, Path(folder), world)
        for _ in range(spec.steps // 2):
            training.advance(lambda: False)
        path = spectra.record(training.optimizer, Path(folder) / "spectra.npz")
        training.close()
        return spectra.load(path)


# rules: those of the package, and candidates that need more of a spectrum than gap and overshoot ---------------------


def answers(oracle: str, layers: Layers) -> list[np.ndarray]:
    """f(sigma/c) of each layer."""
    method = polar.parse(oracle)
    return [method.scalar(layer.values / normaliser(layer.values, method.normaliser)) for layer in layers]


def rms(oracle: str, layers: Layers) -> float:
    """The Frobenius size of the update."""
    return float(np.sqrt(sum(float((f * f).sum()) for f in answers(oracle, layers))))


def quadratic(power: float) -> Callable[[str, Layers], float]:
    """sum w f^2 / sum sigma f with w = sigma^power: the inverse of the best step if curvature goes as sigma^power."""

    def inverse_step(oracle: str, layers: Layers) -> float:
        found = answers(oracle, layers)
        bend = sum(float((la.values / la.values[0]) ** power @ (f * f)) for la, f in zip(layers, found, strict=True))
        drop = sum(float(la.values @ f) for la, f in zip(layers, found, strict=True))
        return bend / drop

    return inverse_step


CANDIDATES: dict[str, Callable[[str, Layers], float]] = {
    "rms": rms,
    "flat curvature": quadratic(0.0),
    "curvature as sigma": quadratic(1.0),
}
"""Name -> a number of an oracle; lr goes as its inverse, alpha stays."""


def carried(source: str, target: str, layers: Layers) -> dict[str, rules.Factors]:
    """(lr factor, alpha factor) of every rule."""
    a, b = (spectra.judge_layers(polar.parse(oracle), layers) for oracle in (source, target))
    found = {"keep": rules.Factors(1.0, 1.0), **{name: rule(a, b) for name, rule in rules.RULES.items()}}
    for name, size in CANDIDATES.items():
        found[name] = rules.Factors(size(source, layers) / size(target, layers), 1.0)
    return found


def moved(tuned: Pair, factors: rules.Factors) -> Pair:
    """The new pair; alpha at most 1, and a change of less than two per cent is none."""
    lr, alpha = (f if not isclose(f, 1.0, rel_tol=SAME) else 1.0 for f in factors)
    return float(f"{tuned[0] * lr:.3g}"), float(f"{min(1.0, tuned[1] * alpha):.3g}")


def study(grid: Grid, name: str, tuned: Pair, layers: Layers) -> str:
    """The text of the study file."""
    first = grid.specs[0]
    base = msgspec.to_builtins(first)
    for field in ("seed", "device"):
        base.pop(field)
    options = base.pop("optimizer")
    rows = []
    for target in grid.oracles:
        asked: dict[Pair, list[str]] = defaultdict(list)
        for rule, factors in carried(SOURCE, target, layers).items():
            asked[moved(tuned, factors)].append(rule)
        for (lr, alpha), names in asked.items():
            entry = {**options, "polar": target, "lr": lr, "momentum": round(1.0 - alpha, 6)}
            rows.append(f"    {_toml(entry)},  # {', '.join(names)}")
    seeds = sorted({spec.seed for spec in grid.specs})
    lines = [
        f"# Written by carry.py: the pair tuned at {SOURCE}, lr {tuned[0]:g} and alpha {tuned[1]:g}, carried over.",
        f'name = "{name}"',
        f'title = "Step size and momentum carried from {SOURCE}"',
        'figure = "not in the paper: co-tuning"',
        f"seeds = {seeds}",
        "",
        "[base]",
        *(f"{key} = {_toml(value)}" for key, value in base.items()),
        "",
        "[[grid]]",
        "optimizer = [",
        *rows,
        "]",
    ]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(v)}" for key, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def main() -> None:
    """The command."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    grid = read(given.store)
    best, losses = grid.best(SOURCE)
    tuned = grid.tuned(SOURCE)
    print(f"tuned at {SOURCE}: lr {tuned[0]:g}, alpha {tuned[1]:g}, near {best} of the grid", file=sys.stderr)
    spec = next(s for s in grid.specs if _pair(s) == (SOURCE, *best) and s.seed == min(losses))
    layers = watch(spec)
    spectra.save(layers, given.out.with_suffix(".npz"))
    given.out.write_text(study(grid, given.out.stem, tuned, layers))


def _pair(spec: RunSpec) -> tuple[str, float, float]:
    options: Any = spec.optimizer
    return options.polar, options.lr, round(1.0 - options.momentum, 6)


if __name__ == "__main__":
    main()
