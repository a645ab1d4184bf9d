"""Arrows only go down, files and functions stay small, torch stays out of what does not need it."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"
CORE = {
    "_lazy": (),
    "_text": ("_lazy",),
    "defaults": (),
    "dtensors": (),
    "sheet": ("_text",),
    "schedules": ("_lazy", "_text"),
    "strategies": ("_text", "schedules"),
    "polar": ("_lazy", "_text", "schedules"),
    "lmo": ("_lazy", "_text", "polar", "schedules"),
    "views": ("_lazy", "_text"),
    "wrappers": (),
    "routing": ("views", "wrappers"),
    "inexactness": ("lmo", "polar", "schedules"),
    "parallel": ("dtensors", "lmo", "polar", "strategies", "views"),
    "optim": (
        *("_lazy", "_text", "defaults", "dtensors", "inexactness", "lmo", "parallel", "polar", "routing", "schedules"),
        *("sheet", "strategies", "views", "wrappers"),
    ),
    "testing": (),
    "integrations": ("optim",),
}
"""What each part of `inexact_muon` may import of it; nothing of the lab, but for NAMES_OF_THE_LAB."""

LAB = {
    "errors": (),
    "extras": ("errors",),
    "experiments": (),
    "statistics": (),
    "terminal": (),
    "testing": (),
    "theory": ("extras",),
    "checkpoints": (),
    "spec": ("errors",),
    "data": ("errors", "extras", "spec"),
    "problems": ("data", "errors", "spec"),
    "store": ("errors", "spec"),
    "tune": ("checkpoints", "extras", "store", "theory"),
    "train": ("data", "errors", "problems", "spec", "store"),
    "sweep": ("data", "errors", "extras", "problems", "spec", "store", "terminal", "train"),
    "bounds": ("experiments", "problems", "theory"),
    "bench": ("terminal", "tune"),
    "plan": ("data", "errors", "extras", "problems", "spec", "terminal"),
    "report": ("errors", "extras", "spec", "statistics", "store", "sweep", "tune"),
    "decide": ("errors", "report", "spec", "statistics", "store", "sweep", "terminal"),
    "cli": (
        *("bench", "bounds", "checkpoints", "data", "decide", "errors", "extras", "plan", "report", "spec"),
        *("store", "sweep", "terminal", "theory", "train", "tune"),
    ),
    "__main__": ("cli",),
}
"""What each part of the lab may import of the lab. All of it may import `inexact_muon`."""

NAMES_OF_THE_LAB = (
    *("__init__.py", "__main__.py", "lab/problems.py", "lmo/__init__.py", "optim/__init__.py", "optim/groups.py"),
    *("polar/__init__.py", "testing.py", "theory.py", "tune.py"),
)
"""Files of `inexact_muon` that pass on what is typed under its name; they import the lab when it is asked for."""

INSIDE_FUNCTIONS = (
    *("__init__.py", "optim/__init__.py", "optim/groups.py", "optim/presets.py"),
    *("polar/auto.py", "polar/kernel.py", "optim/core.py", "optim/stepplan.py", "optim/telemetry.py"),
    *("__main__.py", "cli/oracles.py", "cli/runs.py"),
    *("checkpoints/momenta.py", "bench/page.py", "plan/files.py"),
)
"""Files with imports inside functions: the command line, lazy names, what only printing needs, the extras; the
optimizer, which imports `parallel` once there is a process group and `routing` for a model; and the kernel, which
needs Triton."""

TORCH_FREE = (
    *("_lazy", "_text", "defaults", "report", "schedules", "sheet", "statistics", "strategies", "terminal", "theory"),
    *("cli/statements.py",),
)
FILES = sorted(SOURCE.rglob("*.py"))


def inside(path: Path) -> str:
    """The path in its package."""
    return "/".join(path.relative_to(SOURCE).parts[1:])


def part(path: Path) -> str:
    return path.relative_to(SOURCE).parts[1].removesuffix(".py")


def imports(tree: ast.AST) -> list[tuple[ast.AST, str]]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module in ("inexact_muon", "inexact_muon_lab"):
                found += [(node, f"{node.module}.{alias.name}") for alias in node.names]
            else:
                found.append((node, node.module))
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_down(path: Path) -> None:
    package, own = path.relative_to(SOURCE).parts[0], part(path)
    layers = CORE if package == "inexact_muon" else LAB
    if own == "__init__" or (package == "inexact_muon" and inside(path) in ("lab/__init__.py",)):
        return
    passes_on = package == "inexact_muon" and inside(path) in NAMES_OF_THE_LAB
    assert own in layers or passes_on, f"{own} is a new part: give it a row in CORE or LAB"
    for _, name in imports(ast.parse(path.read_text())):
        if name.startswith(f"{package}."):
            target = name.split(".")[1]
            assert target == own or target in layers[own], f"{own} must not import {target}"
        if package == "inexact_muon" and name.startswith("inexact_muon_lab"):
            assert passes_on, f"{inside(path)} must not import the lab"
        if own in TORCH_FREE:
            assert name.split(".")[0] != "torch"


def modules() -> dict[str, Path]:
    """Dotted name -> file; a package is its __init__."""
    names = {path: ".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in FILES}
    return {name.removesuffix(".__init__"): path for path, name in names.items()}


def imported(path: Path, known: dict[str, Path]) -> set[str]:
    """Modules that a file imports anywhere, also for type checkers alone."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            found |= {name if name in known else node.module for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & set(known)


def test_no_loops_between_modules() -> None:
    known = modules()
    graph = TopologicalSorter({name: imported(path, known) - {name} for name, path in known.items()})
    graph.prepare()  # raises CycleError with the names of a loop


def test_one_name_one_class() -> None:
    places: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_hidden_imports(path: Path) -> None:
    tree = ast.parse(path.read_text())
    top = {id(node) for node in tree.body}
    guarded = {id(n) for node in tree.body if isinstance(node, ast.If) for n in ast.walk(node)}
    hidden = [name for node, name in imports(tree) if id(node) not in top | guarded]
    assert not hidden or inside(path) in INSIDE_FUNCTIONS, hidden


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_sizes(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= 300
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            docstring = len((ast.get_docstring(node, clean=False) or "").splitlines())
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno + 1 - docstring <= 60, node.name


WITHOUT_TORCH = (
    *("inexact_muon", "inexact_muon.schedules", "inexact_muon_lab.cli", "inexact_muon_lab.theory"),
    *("inexact_muon_lab.cli.statements", "inexact_muon_lab.sweep.listing", "inexact_muon_lab.tune.rules"),
    *("inexact_muon_lab.plan.files", "inexact_muon_lab.report.command"),
)


def test_these_start_without_torch() -> None:
    """One process: the first module that loads it is named."""
    code = f"import sys, importlib\nfor m in {WITHOUT_TORCH}:\n importlib.import_module(m)"
    code += "\n if 'torch' in sys.modules: sys.exit(m)"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_optimizer_of_parameters_needs_no_routing() -> None:
    """Only `for_model` reads a model; the count is printed, for -s."""
    code = """
import inexact_muon, sys
def loaded(part): return [name for name in sys.modules if name.startswith(part)]
inexact_muon.Muon
print(len(loaded("inexact_muon")), loaded("inexact_muon.routing"))
import torch
inexact_muon.Muon.for_model(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)), 0.1)
print(len(loaded("inexact_muon.routing")) > 1)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, capture_output=True, text=True)
    print(done.stdout)
    first, second = done.stdout.splitlines()
    assert first.endswith(" []")
    assert second == "True"
