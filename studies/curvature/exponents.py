"""Exponents of slope and curvature along singular directions, and the power that is best for one step.

Slopes y_i of a matrix are taken to be kappa s_i^t on average, with a kappa of its own for each matrix and one exponent
t for several. t solves

    sum over matrices of sum_i y_i log s_i = sum over matrices of Y F'(t),   F'(t) = sum_i s_i^t log s_i / sum_i s_i^t,

Y = sum_i y_i: the likelihood equation of a Poisson model, with the F of Theorem G (docs/theory.md). Single y_i may be
zero or negative, as noise makes them: no logarithm of one is taken. A matrix whose Y is not positive has no exponent
and is left out. Curvatures likewise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inexact_muon_lab.statistics import interval

Array = NDArray[np.float64]
Matrices = Sequence[dict[str, Any]]
RESAMPLED = 300
"""Bootstrap samples of the directions of each matrix."""
NEWTON = 30


@dataclass(frozen=True)
class Span:
    """A value with its 95 % interval over seeds (Student's t) and over directions (bootstrap); None where unknown."""

    mean: float
    seeds: tuple[float, float] | None
    directions: tuple[float, float] | None = None


@dataclass(frozen=True)
class Row:
    """What was fitted to some matrices of a model: r, q and p* = r - q, and the best power of steps that were tried.

    Attributes:
        kind: of the layers, or "all".
        step: of the points, or "all".
        direct: the power at which the measured (slope)^2/curvature along U S^p V^T is largest; for "all" kinds along
            a step of all matrices.
        at_end: seeds for which it is an end of the powers that were tried.
        gain: that of p = -0.2 over that of p = 0.
        diagonal: the sum of the curvatures along single directions over that along their sum, the polar factor.
    """

    model: str
    batch: int
    input: str
    kind: str
    step: int | str
    r: Span
    q: Span
    best: Span
    direct: Span | None
    at_end: int
    gain: Span | None
    diagonal: Span
    n: int


def arrays(matrices: Matrices, key: str) -> tuple[Array, Array, Array]:
    """log s, weights and values as (matrices, directions), the shorter ones filled up with weight zero."""
    longest = max(len(m["s"]) for m in matrices)
    logs, weights, values = np.zeros((3, len(matrices), longest))
    for k, m in enumerate(matrices):
        n = len(m["s"])
        logs[k, :n], weights[k, :n], values[k, :n] = np.log(m["s"]), m["stand_for"], m[key]
    return logs, weights, values


def exponents(logs: Array, weights: Array, values: Array) -> Array:
    """t for each set of weights (sets, matrices, directions), by Newton's method; nan where no matrix has one."""
    total = (weights * values).sum(-1)
    spread = (weights > 0).sum(-1) > 1
    used = (total > 0.0) & spread
    share = np.where(used, total, 0.0)
    wanted = np.where(used, (weights * values * logs).sum(-1), 0.0).sum(-1)
    t = np.ones(len(weights))
    for _ in range(NEWTON):
        powers = weights * np.exp(t[:, None, None] * logs)
        sums = np.where(used, powers.sum(-1), 1.0)
        mean = (powers * logs).sum(-1) / sums
        variance = (powers * logs**2).sum(-1) / sums - mean**2
        slope = (share * variance).sum(-1)
        move = (wanted - (share * mean).sum(-1)) / np.where(slope > 0.0, slope, np.nan)
        t = t + np.clip(move, -0.5, 0.5)
        if np.nanmax(np.abs(move), initial=0.0) < 1e-10:
            break
    return t


def exponent(matrices: Matrices, key: str) -> float:
    """t of these matrices."""
    logs, weights, values = arrays(matrices, key)
    return float(exponents(logs, weights[None], values)[0])


def resampled(matrices: Matrices, rng: np.random.Generator) -> tuple[Array, Array]:
    """r and q of bootstrap samples of the directions of each matrix."""
    logs, weights, slopes = arrays(matrices, "slope")
    counts = np.zeros((RESAMPLED, *weights.shape))
    for k, m in enumerate(matrices):
        n = len(m["s"])
        counts[:, k, :n] = rng.multinomial(n, np.full(n, 1.0 / n), RESAMPLED)
    curvatures = arrays(matrices, "curvature")[2]
    return exponents(logs, counts * weights, slopes), exponents(logs, counts * weights, curvatures)


def top(powers: Sequence[float], slope: Array, curvature: Array) -> float:
    """The power with the largest slope^2/curvature; nan if one of them is not positive.

    Between the powers that were tried by the polynomial through the logarithms at all of them; not outside of them.
    """
    if min(slope.min(), curvature.min()) <= 0.0:
        return float("nan")
    through = np.polyfit(powers, 2.0 * np.log(slope) - np.log(curvature), len(powers) - 1)
    grid = np.linspace(powers[0], powers[-1], 801)
    return float(grid[np.polyval(through, grid).argmax()])


def spanned(values: Iterable[float], directions: Array | None = None) -> Span | None:
    """Mean and intervals of one value a seed; None if a seed has none."""
    found = [float(value) for value in values]
    if not np.isfinite(found).all():
        return None
    t = interval(found)
    ends = None if directions is None else tuple(np.nanquantile(directions, (0.025, 0.975)).round(4).tolist())
    return Span(round(t.mean, 4), (round(t.low, 4), round(t.high, 4)) if len(found) > 1 else None, ends)


def joint(points: Sequence[dict[str, Any]], kind: str) -> tuple[Array, Array]:
    """Slope and curvature by power, means over points of a seed: of steps of all matrices, or of those of a kind."""
    if kind == "all":
        parts = [(point["power_slope"], point["power_curvature"]) for point in points]
        return tuple(np.mean(part, axis=0) for part in zip(*parts, strict=True))  # type: ignore[return-value]
    chosen = [m for point in points for m in point["matrices"] if m["kind"] == kind]
    return tuple(np.mean([m[key] for m in chosen], axis=0) for key in ("power_slope", "power_curvature"))  # type: ignore[return-value]


def row(points: Sequence[dict[str, Any]], powers: Sequence[float], kind: str, step: int | str) -> Row:
    """Of points of one model, batch and input."""
    zero, tilt = powers.index(0.0), powers.index(-0.2)
    by_seed: dict[int, list[dict[str, Any]]] = {}
    for point in points:
        by_seed.setdefault(point["seed"], []).append(point)
    mine = {s: [m for p in some for m in p["matrices"] if kind in ("all", m["kind"])] for s, some in by_seed.items()}
    r, q = ([exponent(some, key) for some in mine.values()] for key in ("slope", "curvature"))
    rs, qs = resampled([m for some in mine.values() for m in some], np.random.default_rng(0))
    steps = [joint(some, kind) for some in by_seed.values()]
    shares = [
        sum(np.dot(m["stand_for"], m["curvature"]) * m["length"] ** 2 for m in some)
        / sum(m["power_curvature"][zero] for m in some)
        for some in mine.values()
    ]
    gains = [a[tilt] ** 2 / b[tilt] / (a[zero] ** 2 / b[zero]) if b.min() > 0 else np.nan for a, b in steps]
    spans = spanned(r, rs), spanned(q, qs), spanned(np.subtract(r, q), rs - qs)
    tops = [top(powers, *one) for one in steps]
    first = points[0]
    where = (first["model"], first["batch"], first["input"], kind, step)
    at_end = sum(p in (powers[0], powers[-1]) for p in tops)
    return Row(*where, *spans, spanned(tops), at_end, spanned(gains), spanned(shares), len(by_seed))  # type: ignore[arg-type]


def rows(measured: dict[str, Any]) -> list[Row]:
    """By kind of layer over all points, and by point over all layers, for each model, batch and input."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for point in measured["points"]:
        groups.setdefault((point["model"], point["batch"], point["input"]), []).append(point)
    powers, found = measured["powers"], []
    for points in groups.values():
        kinds = dict.fromkeys(m["kind"] for m in points[0]["matrices"])
        found += [row(points, powers, kind, "all") for kind in (*kinds, "all")]
        for step in sorted({p["step"] for p in points}):
            found.append(row([p for p in points if p["step"] == step], powers, "all", step))
    return found
