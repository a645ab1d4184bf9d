"""The step size over time, as a factor on every group's own; a function of the step alone."""

from __future__ import annotations

from math import cos, pi

from inexact_muon.lab.spec.spec import ScheduleSpec


def factor(schedule: ScheduleSpec, step: int, steps: int) -> float:
    """The factor of a step, counted from 0.

    (step + 1)/warmup while warming up; in the last `cooldown * steps` steps from 1 to `floor`, which the step after
    the last would reach, along a line or half a cosine; else 1.
    """
    if step < schedule.warmup:
        return (step + 1) / schedule.warmup
    length = schedule.cooldown * steps
    left = steps - step
    if left >= length:
        return 1.0
    height = left / length
    if schedule.shape == "cosine":
        height = (1.0 - cos(pi * height)) / 2.0
    return schedule.floor + (1.0 - schedule.floor) * height
