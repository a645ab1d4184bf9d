"""Parameters, tolerance and list of the checks."""

from collections.abc import Callable
from types import ModuleType

import pytest

RUNS = [
    # D0, L, K, rho_sigma, gamma, alpha, delta
    (2.0, 3.0, 50, 0.7, 0.1, 0.3, 0.5),
    (0.3, 11.0, 400, 5.0, 0.003, 0.05, 0.0),
    (40.0, 0.2, 7, 1e-3, 1.5, 1.0, 0.9),
    (1.0, 1.0, 1000, 1.0, 0.01, 0.7, 0.1),
]
PAIRS = [(0.5, 1.5), (0.0, 1.0), (-0.1, 1.2), (0.3, 0.8), (0.9, 2.5)]
CHECKS: list[Callable[[ModuleType], None]] = []


def check(function: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    CHECKS.append(function)
    return function


def same(a: object, b: object, rel: float = 1e-12) -> None:
    assert a == pytest.approx(b, rel=rel, abs=0.0)


def wave(k: int, low: float, high: float) -> list[float]:
    """A sequence between low and high without a pattern."""
    return [low + (high - low) * ((7 * i * i + 3 * i) % 17) / 17.0 for i in range(k)]
