"""Copies of `theory` in which one number or one operator differs."""

import ast
import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType

PACKAGE = "inexact_muon_lab.theory"
FOLDER = Path(__file__).parents[2] / "src" / "inexact_muon_lab" / "theory"
SWAPS: dict[type, type] = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}


@dataclass(frozen=True)
class Mutant:
    """`file` with the `index`-th number or operator changed; `where` names the function and shows both."""

    file: str
    index: int
    where: str
    code: CodeType


def sources() -> dict[str, str]:
    """Every module by name, each after those it imports; the package itself last."""
    texts = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.py"))}
    needs = {}
    for name, text in texts.items():
        found = set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
                tail = (node.module or "").removeprefix(PACKAGE).removeprefix(".")
                found |= {tail} if tail else {alias.name for alias in node.names}
        needs[name] = found
    order: list[str] = []
    while len(order) < len(texts):
        order += [name for name in texts if name not in order and needs[name] <= set(order)]
    return {name: texts[name] for name in order}


def load(codes: dict[str, CodeType]) -> ModuleType:
    """A fresh copy of the package made of these codes; the real one stays in place."""
    importlib.import_module(PACKAGE)
    kept = {name: module for name, module in sys.modules.items() if name == PACKAGE or name.startswith(PACKAGE + ".")}
    package = ModuleType(PACKAGE)
    package.__path__ = [str(FOLDER)]
    try:
        for name in kept:
            del sys.modules[name]
        sys.modules[PACKAGE] = package
        for name, code in codes.items():
            if name == "__init__":
                exec(code, vars(package))
                continue
            module = ModuleType(f"{PACKAGE}.{name}")
            sys.modules[module.__name__] = module
            setattr(package, name, module)
            exec(code, vars(module))
    finally:
        for name in [n for n in sys.modules if n == PACKAGE or n.startswith(PACKAGE + ".")]:
            del sys.modules[name]
        sys.modules.update(kept)
    return package


def mutants(name: str, text: str) -> Iterator[Mutant]:
    """Each number times 1.1 (0 becomes 0.1), each + - * / swapped with its opposite."""
    count = len(list(_sites(ast.parse(text))))
    for index in range(count):
        tree = ast.parse(text)
        function, node = list(_sites(tree))[index]
        before = ast.unparse(node)
        if isinstance(node, ast.Constant):
            node.value = node.value * 1.1 if node.value else 0.1  # type: ignore[operator]
        else:
            assert isinstance(node, ast.BinOp)
            node.op = SWAPS[type(node.op)]()
        where = f"{name}.{function}: {before} -> {ast.unparse(node)}"
        yield Mutant(name, index, where, compile(tree, f"{name}.py", "exec"))


def _sites(tree: ast.Module) -> Iterator[tuple[str, ast.Constant | ast.BinOp]]:
    """Numbers and arithmetic of the module, with the function they are in; docstrings and messages hold none."""
    for top in tree.body:
        label = getattr(top, "name", None) or "module"
        if isinstance(top, ast.ImportFrom | ast.Import) or (isinstance(top, ast.ClassDef) and label == "Statement"):
            continue
        annotations = {id(n) for f in ast.walk(top) for a in _annotations(f) for n in ast.walk(a)}
        for node in ast.walk(top):
            if id(node) in annotations:
                continue
            if (isinstance(node, ast.Constant) and type(node.value) in (int, float)) or (
                isinstance(node, ast.BinOp) and type(node.op) in SWAPS
            ):
                yield label, node


def _annotations(node: ast.AST) -> list[ast.AST]:
    found = [getattr(node, "annotation", None), getattr(node, "returns", None)]
    return [a for a in found if isinstance(a, ast.AST)]
