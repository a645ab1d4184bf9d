"""Search for the spectrum, and the singular vectors, for which a promise is kept worst.

A spectrum is a list of levels: (log10 of a singular value, how many have it). A search starts at random levels and the
ones that were hard before, and then changes the worst so far: an evolution of one, restarted now and then. Everything
follows from its seed, so that what it finds can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

BASES = ("haar", "first rows", "last rows", "equal entries")
"""Singular vectors: random; the leading ones in the first or last rows; the leading ones of equal entries, whose
rounding errors add up."""


@dataclass(frozen=True)
class Case:
    """A matrix n x m by its levels, highest first; between levels that are `joined` values are interpolated."""

    n: int
    m: int
    levels: tuple[tuple[float, int], ...]
    joined: bool
    basis: str
    seed: int

    def values(self) -> np.ndarray:
        """n singular values; the last level takes all that remain."""
        logs = [level for level, _ in self.levels]
        counts = [count for _, count in self.levels]
        counts = [*counts[:-1], max(1, self.n - sum(counts[:-1]))]
        each = np.repeat(logs, counts)[: self.n]
        if self.joined and len(logs) > 1:
            edges = np.cumsum([0, *counts])[: len(logs) + 1]
            each = np.interp(np.arange(self.n), edges, [*logs, logs[-1]])
        return 10.0 ** np.sort(each - each.max())[::-1]

    def matrix(self, s: np.ndarray | None = None) -> Tensor:
        """U diag(s) V^T in float64, s being `values()` by default."""
        generator = torch.Generator().manual_seed(self.seed)
        u, v = (torch.randn(side, self.n, generator=generator, dtype=torch.float64) for side in (self.n, self.m))
        if self.basis == "equal entries":
            u[:, 0], v[:, 0] = 1.0, 1.0
        elif self.basis != "haar":
            few = self.levels[0][1]
            fade = torch.linspace(-float(1 + self.seed % 15), 0.0, self.n, dtype=torch.float64).exp()[:, None]
            u[:, :few] *= fade if self.basis == "last rows" else fade.flip(0)
        u, v = torch.linalg.qr(u)[0], torch.linalg.qr(v)[0]
        return (u * torch.from_numpy(self.values() if s is None else s)) @ v.mT


def drawn(generator: np.random.Generator, sides: tuple[int, ...], depth: float) -> Case:
    """A random case, of one to four levels down to 10^-depth."""
    n = int(generator.choice(sides))
    m = int(n * generator.choice([1.0, 1.0, 1.3, 2.0]))
    levels = tuple((-depth * generator.random(), _count(generator, n)) for _ in range(generator.integers(1, 5)))
    if generator.random() < 0.3:  # what was hard before: one or few large ones, or one small
        levels = ((0.0, _count(generator, n)), (-depth * generator.random() ** 0.3, 1))
    basis = str(generator.choice(BASES))
    return Case(n, m, _ordered(levels), bool(generator.random() < 0.3), basis, int(generator.integers(2**31)))


def _count(generator: np.random.Generator, n: int) -> int:
    return int(generator.choice([1, 1, 2, 3, max(1, n // 16), max(1, n // 4), max(1, n // 2), max(1, n - 1)]))


def _ordered(levels: tuple[tuple[float, int], ...]) -> tuple[tuple[float, int], ...]:
    top = max(level for level, _ in levels)
    return tuple(sorted(((float(level - top), count) for level, count in levels), reverse=True))


def changed(case: Case, generator: np.random.Generator, depth: float) -> Case:
    """A case near this one."""
    levels, move = list(case.levels), generator.integers(6)
    k = int(generator.integers(len(levels)))
    level, count = levels[k]
    if move <= 2:
        level = float(np.clip(level + generator.normal() * 10.0 ** generator.uniform(-2.5, 0), -depth, 0.0))
        levels[k] = (level, count)
    elif move == 3:
        levels[k] = (level, _count(generator, case.n))
    elif move == 4 and len(levels) < 5:
        levels.append((-depth * generator.random(), _count(generator, case.n)))
    elif len(levels) > 1:
        del levels[k]
    case = replace(case, levels=_ordered(tuple(levels)))
    if generator.random() < 0.15:
        case = replace(case, joined=not case.joined)
    if generator.random() < 0.25:
        case = replace(case, basis=str(generator.choice(BASES)), seed=int(generator.integers(2**31)))
    return case


def search(
    ratio: Callable[[Case], float], evaluations: int, seed: int, sides: tuple[int, ...], depth: float = 4.0
) -> tuple[float, Case]:
    """(the largest ratio of error to promise that was found, its case); 0 where nothing is promised."""
    generator = np.random.default_rng(seed)
    best, worst = -1.0, drawn(generator, sides, depth)
    here, at = -1.0, worst
    for k in range(evaluations):
        fresh = k < max(3, evaluations // 8) or generator.random() < 0.1
        case = drawn(generator, sides, depth) if fresh else changed(at, generator, depth)
        found = ratio(case)
        found = float("inf") if np.isnan(found) else found
        if found >= here or generator.random() < 0.02:
            here, at = found, case
        if found > best:
            best, worst = found, case
            here, at = found, case
    return best, worst
