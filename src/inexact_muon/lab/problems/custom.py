"""Somebody's own problem: "module:function" that returns a Task."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from inexact_muon._text import nearest
from inexact_muon.lab.errors import LabError
from inexact_muon.lab.problems.task import Task
from inexact_muon.lab.spec.spec import Custom, RunSpec


def build(spec: RunSpec) -> Task:
    """Call the function with seed, batch and the spec's arguments."""
    assert isinstance(spec.problem, Custom)
    made = resolve(spec.problem.target)(seed=spec.seed, batch=spec.batch, **spec.problem.arguments)
    if not isinstance(made, Task):
        wanted = "inexact_muon.lab.problems.Task"
        raise LabError(f"problem.target: {spec.problem.target} must return {wanted}, got {type(made).__name__}")
    return made


def resolve(target: str) -> Callable[..., Any]:
    """The function named by "module:function"; modules in the current folder are found, as with `python -m`."""
    name, colon, function = target.partition(":")
    if not colon or not name or not function:
        raise LabError(f"problem.target must look like module:function, got {target!r}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise LabError(f"problem.target: there is no module {name!r} in {here} or on the Python path") from None
    found = getattr(module, function, None)
    if not callable(found):
        known = [key for key, value in vars(module).items() if callable(value)]
        raise LabError(f"problem.target: {name} has no function {function!r}: {nearest(function, known)}")
    return found
