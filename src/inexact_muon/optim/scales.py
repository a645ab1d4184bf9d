"""Shape factors of the step, one function per published convention.

A side of zero counts as one, to avoid a division by zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import sqrt

from inexact_muon._text import nearest


def none(fan_out: int, fan_in: int) -> float:
    """1."""
    return 1.0


def original(fan_out: int, fan_in: int) -> float:
    """sqrt(max(1, out/in)): KellerJordan's Muon and torch's default."""
    return sqrt(max(1.0, fan_out / max(1, fan_in)))


def match_rms_adamw(fan_out: int, fan_in: int) -> float:
    """0.2 sqrt(max(out, in)): entries of the update have the RMS of AdamW's (Moonlight, arXiv 2502.16982)."""
    return 0.2 * sqrt(max(fan_out, fan_in))


def spectral(fan_out: int, fan_in: int) -> float:
    """sqrt(out/in): unit RMS -> RMS operator norm, the same at every width (Scion, muP)."""
    return sqrt(fan_out / max(1, fan_in))


SCALES: dict[str, Callable[[int, int], float]] = {
    function.__name__: function for function in (none, original, match_rms_adamw, spectral)
}
"""Name in a parameter group -> function."""

SPECTRAL = (
    'scale "spectral" is sqrt(out/in) here and in dion; Emerging-Optimizers and Megatron call that unit_rms_norm, and '
    'their "spectral" is sqrt(max(out, in)), which is "match_rms_adamw" here with five times the lr'
)
ELSEWHERE = {
    "shape_scaling": "original",
    "unit_rms_norm": "spectral",
    "spectral_norm": "spectral",
    "rms_norm": "match_rms_adamw",
}
"""Names of Emerging-Optimizers, Megatron and dion -> ours."""


def conventions(names: Iterable[str]) -> tuple[str, ...]:
    """What names in use mean elsewhere, where that differs."""
    return (f"{SPECTRAL}.",) if "spectral" in names else ()


def unknown_scale(name: str) -> str:
    """An error message: the name here of one from elsewhere, the known names, and the one that differs."""
    ours = f"{name!r} of other libraries is {ELSEWHERE[name]!r} here; " if name in ELSEWHERE else ""
    return f"unknown scale {name!r}: {ours}{nearest(name, SCALES)}; {SPECTRAL}"
