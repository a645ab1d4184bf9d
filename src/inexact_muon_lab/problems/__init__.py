"""Problems: each builds a Task from a run spec; those of `matrix` and `blocks` have proved constants."""

from __future__ import annotations

from collections.abc import Callable

from inexact_muon_lab.problems import cnn, custom, matrix, nanogpt
from inexact_muon_lab.problems.task import Task as Task
from inexact_muon_lab.spec.spec import Cnn, Custom, Matrix, NanoGPT, RunSpec

PROBLEMS: dict[type, Callable[[RunSpec], Task]] = {
    NanoGPT: nanogpt.build,
    Cnn: cnn.build,
    Matrix: matrix.build,
    Custom: custom.build,
}
"""Section of a spec -> builder of its task. A new problem needs a row here, a section in `spec` and a file."""


def build(spec: RunSpec) -> Task:
    """The task of a run: model with initial weights, data, loss."""
    return PROBLEMS[type(spec.problem)](spec)
