"""Best rational approximation of s^p on an interval, by Remez's exchange from Zolotarev's function (p = 0)."""

from __future__ import annotations

import numpy as np

from inexact_muon.schedules.extrema import extrema
from inexact_muon.schedules.scalar_map import Array, Rational

STRIDE = 0.05
"""Largest change of p from one exchange to the next, so that Newton's method starts close enough."""
POINTS = 20_000
"""Points of the grid on which extrema are bracketed."""
NEWTON = 12
"""Newton steps of an exchange at most: it starts close, and the next exchange goes on."""


def tilted(zeros: Array, poles: Array, extrema: Array, lower: float, power: float) -> Rational:
    """f(s) = scale * s * prod_j (s^2 + z_j)/(s^2 + c_j) with the smallest max |f(s)/s^power - 1| on [lower, 1].

    The best f has 2r+2 points at which f/s^power is alternately largest and smallest. Newton's method solves for
    log scale, log z_j, log c_j and h such that log(f/s^power) = +-h on given points, which then move to the critical
    points of f/s^power; scale finally centres its image at 1. Where r poles are more than the interval needs, the error
    is below rounding, its critical points are noise, and the last 2r+2 points that were found are kept.

    Args:
        zeros: z_j of the best function for power = 0, from which the power changes step by step.
        poles: c_j of it.
        extrema: its critical points in (lower, 1).
    """
    r = len(poles)
    x = np.concatenate(([lower], extrema, [1.0])) ** 2
    unknowns = np.concatenate(([0.0], np.log(zeros), np.log(poles), [0.0]))
    count = 1 + int(abs(power) / STRIDE)
    for step in range(1, count + 1):
        p = power * step / count
        for _ in range(50):
            before = unknowns[-1]
            unknowns = _levelled(unknowns, x, p)
            z, c = np.exp(unknowns[1 : r + 1]), np.exp(unknowns[r + 1 : -1])
            if len(points := _extrema(z, c, p, lower)) != 2 * r:
                break
            x = np.concatenate(([lower], points, [1.0])) ** 2
            if abs(unknowns[-1] - before) < 1e-13 + 1e-10 * abs(before):
                break
    residues = [np.prod(z - c[j]) / np.prod(np.delete(c, j) - c[j]) for j in range(r)]
    scale = float(np.exp(unknowns[0]) / np.cosh(unknowns[-1]))
    source = f"best approximation of s^{power:g}, type ({2 * r + 1}, {2 * r})"
    # f rises up to the first point, because s^2 sum_j 1/c_j < 1/2 there; a negative power has a maximum below `lower`.
    parts = (c, residues, _extrema(z, c, 0.0, float((2.0 / c).sum() ** -0.5)))
    return Rational(lower, source, scale, *(tuple(map(float, part)) for part in parts))


def _levelled(unknowns: Array, x: Array, p: float) -> Array:
    """Newton's method for log(f/s^p) = +-h at s^2 = x, signs alternating."""
    r = len(x) // 2 - 1
    signs = (-1.0) ** np.arange(len(x))
    for _ in range(NEWTON):
        zeros, poles = np.exp(unknowns[1 : r + 1]), np.exp(unknowns[r + 1 : -1])
        up, down = x[:, None] + zeros, x[:, None] + poles
        value = unknowns[0] + np.log(up).sum(1) - np.log(down).sum(1) + 0.5 * (1.0 - p) * np.log(x)
        slopes = np.column_stack((np.ones_like(x), zeros / up, -poles / down, -signs))
        # Least squares: the rows are equal to rounding if the error is.
        move = np.linalg.lstsq(slopes, signs * unknowns[-1] - value, rcond=None)[0]
        unknowns = unknowns + move
        if np.abs(move).max() < 1e-13:
            break
    return unknowns


def _extrema(zeros: Array, poles: Array, p: float, lower: float) -> Array:
    """The extrema of s^(1-p) prod_j (s^2 + z_j)/(s^2 + c_j) in (lower, 1)."""

    def log_f(s: Array) -> Array:
        x = s[:, None] ** 2
        return (1.0 - p) * np.log(s) + (np.log(x + zeros) - np.log(x + poles)).sum(1)

    return extrema(log_f, lower, 1.0, POINTS)
