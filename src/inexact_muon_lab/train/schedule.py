"""Step size schedule, as a factor of every group's lr; a function of the step only."""

from __future__ import annotations

from math import cos, pi

from inexact_muon_lab.spec.spec import ScheduleSpec


def factor(schedule: ScheduleSpec, step: int, steps: int) -> float:
    """The factor of a step, counted from 0.

    (step + 1)/warmup during warm-up; in the last `cooldown * steps` steps from 1 to `floor` (reached after the last
    step), linearly or along half a cosine; else 1.
    """
    if step < schedule.warmup:
        return (step + 1) / schedule.warmup
    length = schedule.cooldown * steps
    remaining = steps - step
    if remaining >= length:
        return 1.0
    height = remaining / length
    if schedule.shape == "cosine":
        height = (1.0 - cos(pi * height)) / 2.0
    return schedule.floor + (1.0 - schedule.floor) * height
