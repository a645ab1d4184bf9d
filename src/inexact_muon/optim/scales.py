"""Factors that multiply the step by the shape of the matrix, one function per published convention.

A side of zero counts as one: nothing moves, and nothing divides by it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt


def none(out: int, into: int) -> float:
    """1."""
    return 1.0


def original(out: int, into: int) -> float:
    """sqrt(max(1, out/in)): KellerJordan's Muon and torch's default."""
    return sqrt(max(1.0, out / max(1, into)))


def match_rms_adamw(out: int, into: int) -> float:
    """0.2 sqrt(max(out, in)): entries of the update have the RMS of AdamW's (Moonlight, arXiv 2502.16982)."""
    return 0.2 * sqrt(max(out, into))


def spectral(out: int, into: int) -> float:
    """sqrt(out/in): unit RMS -> RMS operator norm, the same at every width (Scion, muP)."""
    return sqrt(out / max(1, into))


SCALES: dict[str, Callable[[int, int], float]] = {
    function.__name__: function for function in (none, original, match_rms_adamw, spectral)
}
"""By the name that a parameter group carries."""
