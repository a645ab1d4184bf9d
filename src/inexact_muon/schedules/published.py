"""Published coefficients with their sources. Other numbers of steps than the published ones raise an error."""

from __future__ import annotations

from math import isfinite

from inexact_muon.schedules.design import MOST_STEPS, check_steps
from inexact_muon.schedules.scalar_map import Schedule

MOST_NUMBERS = 32
"""Maximum number of coefficients in a step of `polynomial`: degree 63."""

JORDAN = (3.4445, -4.7750, 2.0315)

YOU: dict[int, tuple[tuple[float, ...], ...]] = {
    5: (
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ),
    6: tuple(
        (a / 1024, b / 1024, c / 1024)
        for a, b, c in (
            (3955, -8306, 5008),
            (3735, -6681, 3463),
            (3799, -6499, 3211),
            (4019, -6385, 2906),
            (2677, -3029, 1162),
            (2172, -1833, 682),
        )
    ),
}

CESISTA: dict[int, tuple[tuple[float, ...], ...]] = {
    5: (
        (4.0249, -6.4216, 2.6016),
        (3.9924, -6.2874, 2.5399),
        (3.3319, -4.8337, 1.9453),
        (2.8797, -3.6304, 1.6253),
        (2.9954, -3.6247, 1.6126),
    ),
}


def jordan(steps: int = 5) -> Schedule:
    """K. Jordan's quintic at every step: also torch.optim.Muon, Scion, and the paper's "Newton-Schulz" on CIFAR-10."""
    check_steps(steps)
    return Schedule(0.0, "K. Jordan, KellerJordan/Muon, 2024", (JORDAN,) * steps)


def you(steps: int = 5) -> Schedule:
    """J. You's lists: 5 steps (modded-nanogpt, dion) or 6 (modula, in units of 1/1024)."""
    return Schedule(0.0, "J. You, 2025", _pick("You", YOU, steps))


def cesista(steps: int = 5) -> Schedule:
    """F. Cesista's list of 5 steps."""
    return Schedule(0.0, "F. L. Cesista, 2025", _pick("Cesista", CESISTA, steps))


def polynomial(coefficients: tuple[tuple[float, ...], ...]) -> Schedule:
    """User-defined coefficients: one tuple of coefficients of s, s^3, s^5, ... per step."""
    count = len(coefficients) if isinstance(coefficients, tuple | list) else 0
    if count > MOST_STEPS:
        raise ValueError(f"polynomial: coefficients must have at most {MOST_STEPS} steps, got {count}")
    try:
        rows = tuple(tuple(float(c) for c in step) for step in coefficients)
    except TypeError:
        raise TypeError("polynomial: coefficients must be one sequence of numbers per step") from None
    if not rows or any(len(step) < 2 for step in rows):
        raise ValueError("polynomial: coefficients must have at least one step, and each step at least two numbers")
    if max(map(len, rows)) > MOST_NUMBERS:
        raise ValueError(
            f"polynomial: a step has at most {MOST_NUMBERS} coefficients, got {max(map(len, rows))}: compose steps"
        )
    if not all(isfinite(c) for step in rows for c in step):
        raise ValueError("polynomial: coefficients must be finite")
    if not all(map(any, rows)):
        raise ValueError("polynomial: each step must have a coefficient that is not zero")
    return Schedule(0.0, "given by the user", rows)


def _pick(name: str, lists: dict[int, tuple[tuple[float, ...], ...]], steps: int) -> tuple[tuple[float, ...], ...]:
    check_steps(steps)
    if steps not in lists:
        have = " or ".join(map(str, lists))
        raise ValueError(
            f"{name}'s coefficients have {have} steps, got steps={steps}: use PolarExpress or Cans for others"
        )
    return lists[steps]
