"""Somebody's own problem: "module:function" that returns a Task."""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Callable, Iterator
from importlib import import_module, invalidate_caches
from pathlib import Path
from types import ModuleType
from typing import Any

from inexact_muon._text import nearest
from inexact_muon_lab.errors import LabError
from inexact_muon_lab.problems.task import Task
from inexact_muon_lab.spec.spec import Custom, RunSpec


def build(spec: RunSpec) -> Task:
    """Call the function with seed, batch and the spec's arguments."""
    assert isinstance(spec.problem, Custom)
    task = resolve(spec.problem.target)(seed=spec.seed, batch=spec.batch, **spec.problem.arguments)
    if not isinstance(task, Task):
        kind = "inexact_muon_lab.problems.Task"
        raise LabError(f"problem.target: {spec.problem.target} must return {kind}, got {type(task).__name__}")
    return task


def resolve(target: str) -> Callable[..., Any]:
    """The function named by "module:function"; modules in the current folder are found, as with `python -m`."""
    name, colon, function = target.partition(":")
    if not colon or not name or not function:
        raise LabError(f"problem.target must look like module:function, got {target!r}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = _current(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise LabError(f"problem.target: there is no module {name!r} in {here} or on the Python path") from None
    target_function = getattr(module, function, None)
    if not callable(target_function):
        known = [key for key, value in vars(module).items() if callable(value)]
        raise LabError(f"problem.target: {name} has no function {function!r}: {nearest(function, known)}")
    return target_function


def fingerprint(target: str) -> str:
    """SHA-256 of the code of a problem: its module's file, and those of the modules beside it that it imports."""
    resolve(target)
    return _imported[target.partition(":")[0]]


_imported: dict[str, str] = {}
"""Module -> fingerprint of its code when it was imported."""


def _current(name: str) -> ModuleType:
    """The module, imported again if its code has changed since."""
    module = import_module(name)
    if _imported.get(name, _hash(name)) != _hash(name):
        for old in _files(name):
            sys.modules.pop(old, None)
        invalidate_caches()
        module = import_module(name)
    _imported[name] = _hash(name)
    return module


def _hash(name: str) -> str:
    total = hashlib.sha256()
    for module, file in sorted(_files(name).items()):
        total.update(f"{module} ".encode() + hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()


def _files(name: str) -> dict[str, Path]:
    """Files of an imported module and, recursively, of modules in its folder (or its package's) that it imports."""
    files: dict[str, Path] = {}
    queue = [name]
    while queue:
        file = getattr(sys.modules.get(one := queue.pop()), "__file__", None)
        if one in files or file is None or not Path(file).is_file():
            continue
        path = files[one] = Path(file)
        root = files[name].parents[name.count(".") + (files[name].stem == "__init__")]
        if path.suffix == ".py" and root in path.parents:
            queue += _imports(path.read_bytes(), one if path.stem == "__init__" else one.rpartition(".")[0])
    root = files[name].parents[name.count(".") + (files[name].stem == "__init__")] if name in files else Path()
    return {one: path for one, path in files.items() if one == name or root in path.parents}


def _imports(source: bytes, package: str) -> Iterator[str]:
    """Names of modules that a source imports, also `from x import y` where y may be one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            outer = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join(filter(None, (*outer, node.module)))
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
