"""Design of schedules: classical Newton-Schulz, and CANS and Polar Express for any interval."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from inexact_muon.schedules.blend import blend
from inexact_muon.schedules.remez import minimax, taylor
from inexact_muon.schedules.scalar_map import Schedule, polynomial_image

CUSHION = 0.02407327424182761
"""The ratio l/u at which the best quintic maps [l, u] to an interval of ratio 1/10 (its E is 9/11)."""

MOST_STEPS = 64
"""Maximum number of steps. Newton-Schulz of degree 3, the slowest composition, raises 1e-9 to 1 in 56 steps."""


def newton_schulz(steps: int = 5, degree: int = 5) -> Schedule:
    """The Taylor polynomial of this degree, repeated: order (degree+1)/2, slope 1.5 to 2.5 per step."""
    check_steps(steps)
    if degree not in (3, 5, 7, 9):
        raise ValueError(f"newton-schulz: degree must be 3, 5, 7 or 9, got {degree}")
    return Schedule(0.0, f"Taylor, degree {degree}", (taylor(degree),) * steps)


def polar_express(
    steps: int = 5,
    lower: float = 1e-3,
    degree: int | Sequence[int] = 5,
    safety: float = 1.01,
    cushion: float = CUSHION,
    *,
    power: float = 0.0,
) -> Schedule:
    """Greedy minimax composition with a cushion and a safety factor (arXiv 2505.16932).

    On the interval [l, u] the step is the minimax polynomial of [max(l, cushion*u), u], scaled so that the image of
    [l, u] is centred at 1; that image is the interval of the next step. Every step but the last is p(s/safety), because
    rounding may raise a singular value above u, where a minimax polynomial diverges. The intervals include the safety
    factor, so they are exact for any number of steps.

    Args:
        degree: one odd degree for all steps or one per step.
        power: approximate s^power instead of 1, by a weighted sum of the iterates (`blend`).
    """
    schedule = _compose(_degrees(steps, degree), lower, safety, cushion, "Polar Express, arXiv 2505.16932")
    return blend(schedule, check_power(power)) if power else schedule


def cans(steps: int = 5, lower: float = 1e-3, degree: int | Sequence[int] = 5) -> Schedule:
    """Greedy minimax composition without cushion and safety factor: CANS, arXiv 2506.10935.

    It has the smallest delta on [lower, 1] of all compositions with these degrees, but no tolerance above 1.
    """
    return _compose(_degrees(steps, degree), lower, 1.0, 0.0, "CANS, arXiv 2506.10935")


@lru_cache(maxsize=1024)
def _compose(degrees: tuple[int, ...], lower: float, safety: float, cushion: float, source: str) -> Schedule:
    if not 0.0 < lower < 1.0:
        raise ValueError(f"lower must lie in (0, 1), got {lower}")
    if not 1.0 <= safety <= 1.5:
        raise ValueError(f"safety must lie in [1, 1.5], got {safety}")
    if not 0.0 <= cushion < 1.0:
        raise ValueError(f"cushion must lie in [0, 1), got {cushion}")
    low, high = lower, 1.0
    steps: list[tuple[float, ...]] = []
    for t, degree in enumerate(degrees):
        step, _ = minimax(degree, max(low, cushion * high), high)
        centre = 0.5 * sum(polynomial_image(step, low, high))
        factor = safety if t < len(degrees) - 1 else 1.0
        step = tuple(c / centre / factor ** (2 * k + 1) for k, c in enumerate(step))
        low, high = polynomial_image(step, low, high)
        high = max(high, 2.0 - low)  # for the image of [l, safety*u]
        steps.append(step)
    return Schedule(lower, source, tuple(steps), safety)


def check_power(power: float) -> float:
    """Return the power of a tilted map; raise unless it is a number between -0.5 and 0.5."""
    if isinstance(power, bool) or not isinstance(power, int | float) or not abs(power) <= 0.5:
        raise ValueError(f"power must lie in [-0.5, 0.5], got {power!r}")
    return float(power)


def check_steps(steps: int) -> None:
    """Raise unless `steps` is an integer between 1 and `MOST_STEPS`."""
    if isinstance(steps, bool) or not isinstance(steps, int):
        raise TypeError(f"steps must be an integer, got {steps!r}")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    if steps > MOST_STEPS:
        raise ValueError(f"steps must be at most {MOST_STEPS}, got {steps}: more would not reduce the error")


def _degrees(steps: int, degree: int | Sequence[int]) -> tuple[int, ...]:
    check_steps(steps)
    degrees = (degree,) * steps if isinstance(degree, int) else tuple(degree)
    if len(degrees) != steps:
        raise ValueError(
            f"degree has {len(degrees)} degrees for steps={steps}: give one for all steps, or one per step"
        )
    return degrees
