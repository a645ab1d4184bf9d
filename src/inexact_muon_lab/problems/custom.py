"""Somebody's own problem: "module:function" that returns a Task."""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module, invalidate_caches
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import resolve_name
from itertools import accumulate
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
    module, files = import_module(name), _files(name)
    total = hashlib.sha256()
    for part, file in sorted(files.items()):
        total.update(f"{part} ".encode() + hashlib.sha256(file.read_bytes()).digest())
    code = total.hexdigest()
    if _imported.get(name, code) != code:
        for old in files:
            sys.modules.pop(old, None)
        invalidate_caches()
        module = import_module(name)
    _imported[name] = code
    return module


def _files(name: str) -> dict[str, Path]:
    """Files of an imported module and of the modules in its folder (or its package's) that it imports, recursively.

    Beside an installed module stand all others, such as torch: there those of its package alone.
    """
    file = Path(getattr(sys.modules[name], "__file__", None) or "")
    if not file.is_file():
        return {}
    root = file.parents[name.count(".") + (file.stem == "__init__")]
    package = name.partition(".")[0] if root.name in ("site-packages", "dist-packages") else ""
    files: dict[str, Path] = {}
    waiting = [name]
    while waiting:
        module = waiting.pop()
        base = root.joinpath(*module.split("."))
        suffixed = (base.with_name(base.name + suffix) for suffix in (".py", *EXTENSION_SUFFIXES))
        path = next(filter(Path.is_file, (base / "__init__.py", *suffixed)), None)
        if path is None or module in files or package not in ("", module.partition(".")[0]):
            continue
        files[module] = path
        if path.suffix == ".py":
            outer = module if path.stem == "__init__" else module.rpartition(".")[0]
            waiting += [part for one in _imports(path, outer) for part in accumulate(one.split("."), "{}.{}".format)]
        waiting += accumulate(module.split(".")[:-1], "{}.{}".format)
    return files


def _imports(path: Path, package: str) -> Iterator[str]:
    """Names that a file may import, also inside of functions; modulefinder fails at packages without `__init__`."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (package or not node.level):
            with suppress(ImportError):  # beyond the outermost package
                base = resolve_name("." * node.level + (node.module or ""), package)
                yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            words = (one.value for one in node.args if isinstance(one, ast.Constant))
            yield from (word for word in words if isinstance(word, str))
