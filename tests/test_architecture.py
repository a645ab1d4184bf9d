"""Arrows only go down, files and functions stay small, torch stays out of what does not need it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "inexact_muon"
LAYERS = {
    "defaults": (),
    "schedules": (),
    "statistics": (),
    "terminal": (),
    "process": (),
    "theory": ("schedules",),
    "statements": ("schedules", "theory", "terminal"),
    "strategies": ("schedules",),
    "polar": ("schedules",),
    "lmo": ("polar", "schedules"),
    "views": ("schedules",),
    "estimate": ("polar", "schedules"),
    "inexactness": ("estimate", "lmo", "polar", "schedules"),
    "tune": ("inexactness", "lmo", "polar", "schedules", "theory", "views"),
    "dtensors": (),
    "parallel": ("dtensors", "lmo", "polar", "schedules", "strategies", "views"),
    "optim": (
        "defaults",
        "dtensors",
        "estimate",
        "inexactness",
        "lmo",
        "parallel",
        "polar",
        "schedules",
        "strategies",
        "theory",
        "tune",
        "views",
        "terminal",
    ),
    "lab": ("defaults", "inexactness", "lmo", "optim", "polar", "schedules", "theory", "tune", "terminal"),
    "catalogue": ("inexactness", "polar", "schedules"),
    "tables": ("inexactness", "polar", "schedules", "tune", "terminal"),
    "testing": ("lmo", "polar", "schedules"),
    "integrations": ("optim",),
    "bench": ("optim", "inexactness", "lmo", "polar", "schedules", "terminal", "tune"),
    "plan": ("lab", "schedules", "strategies", "terminal"),
    "report": ("lab", "schedules", "statistics", "tune"),
    "decide": ("lab", "report", "schedules", "statistics", "terminal"),
    "demo": ("catalogue", "decide", "lab", "report", "terminal"),
    "__main__": ("cli",),
    "cli_evidence": ("decide", "lab", "terminal"),
    "cli": (
        "bench",
        "catalogue",
        "cli_evidence",
        "demo",
        "lab",
        "plan",
        "polar",
        "process",
        "report",
        "schedules",
        "statements",
        "tables",
        "terminal",
    ),
}
"""What each part may import. `cli` may do so inside functions, the package itself lazily."""

INSIDE_FUNCTIONS = (
    *("cli.py", "cli_evidence.py", "__init__.py", "__main__.py", "catalogue.py", "statements.py", "checkpoints.py"),
    *("page.py", "explanation.py", "core.py", "kernel.py"),
    *("zolotarev.py", "probe.py", "stochastic.py", "measured_stochastic.py"),
)
"""Files with imports inside functions: the command line, lazy names, what only printing needs, the extras; the
optimizer, which imports `parallel` once there is a process group; the kernel, which needs Triton; and what computes
with scipy, which training with another oracle does not need."""

TORCH_FREE = ("defaults", "plan", "report", "schedules", "statements", "statistics", "strategies", "terminal", "theory")
HEAVY = ("rich", "scipy", "msgspec", "tyro")
FILES = sorted(SOURCE.rglob("*.py"))


def part(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(tree: ast.AST) -> list[tuple[ast.AST, str]]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "inexact_muon":
                found += [(node, f"inexact_muon.{alias.name}") for alias in node.names]
            else:
                found.append((node, node.module))
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_down(path: Path) -> None:
    if path == SOURCE / "__init__.py":
        return
    own = part(path)
    assert own in LAYERS, f"{own} is a new part: give it a row in LAYERS"
    for _, name in imports(ast.parse(path.read_text())):
        if name.startswith("inexact_muon."):
            target = name.split(".")[1]
            assert target == own or target in LAYERS[own], f"{own} must not import {target}"
        if own in TORCH_FREE:
            assert name.split(".")[0] != "torch"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_hidden_imports(path: Path) -> None:
    tree = ast.parse(path.read_text())
    top = {id(node) for node in tree.body}
    guarded = {id(n) for node in tree.body if isinstance(node, ast.If) for n in ast.walk(node)}
    hidden = [name for node, name in imports(tree) if id(node) not in top | guarded]
    assert not hidden or path.name in INSIDE_FUNCTIONS, hidden


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_sizes(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            docstring = len((ast.get_docstring(node, clean=False) or "").splitlines())
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno + 1 - docstring <= 60, node.name


@pytest.mark.parametrize(
    "module",
    [
        "inexact_muon",
        "inexact_muon.schedules",
        "inexact_muon.cli",
        "inexact_muon.theory",
        "inexact_muon.statements",
        "inexact_muon.lab.listing",
        "inexact_muon.tune.rules",
        "inexact_muon.plan.files",
        "inexact_muon.plan.page",
        "inexact_muon.report.command",
    ],
)
def test_starts_without_torch(module: str) -> None:
    code = f"import {module}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", ["Muon", "Scion", "EF21Muon", "explain", "measure", "transfer"])
def test_the_optimizers_load_torch_and_numpy_alone(name: str) -> None:
    """scipy comes with Zolotarev's functions and the smoothness probe, rich with tables, the rest with commands."""
    code = f"import inexact_muon, sys; inexact_muon.{name}; sys.exit(str([m for m in {HEAVY} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.stderr == "[]\n"


def test_a_step_of_polynomials_needs_no_scipy() -> None:
    code = f"""
import sys, torch
from inexact_muon import Muon
weight = torch.nn.Parameter(torch.ones(4, 6))
optimizer = Muon([weight], lr=0.1, polar="polar-express:5")
weight.grad = torch.ones(4, 6)
optimizer.step()
sys.exit(str([m for m in {HEAVY} if m in sys.modules]))
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.stderr == "[]\n"
