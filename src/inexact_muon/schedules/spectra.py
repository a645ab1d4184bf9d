"""Named spectra with largest singular value 1, to evaluate and test oracles. Deterministic."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from inexact_muon.schedules.scalar_map import Array


def gaussian(n: int) -> Array:
    """Quantiles of the quarter-circle law, the spectrum of a square Gaussian matrix; the smallest is about 1/n."""
    x = np.linspace(0.0, 1.0, 20001)
    angle = np.arcsin(x)
    cumulative = (2.0 / np.pi) * (angle + np.sin(angle) * np.cos(angle))
    return np.interp((np.arange(n, 0, -1) - 0.5) / n, cumulative, x)


def log_uniform(n: int, smallest: float = 1e-3) -> Array:
    """Evenly spaced in the logarithm between 1 and `smallest`."""
    return np.geomspace(1.0, smallest, n) if n > 1 else np.ones(1)


def power_law(n: int, exponent: float = 1.0) -> Array:
    """sigma_j = j^-exponent."""
    return np.arange(1.0, n + 1.0) ** -exponent


SPECTRA: dict[str, Callable[[int], Array]] = {
    "gaussian": gaussian,
    "log-uniform": log_uniform,
    "power-law": power_law,
}
"""The three spectra of every table."""
