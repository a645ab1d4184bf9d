"""Calls: variables, arguments, and the source of a function."""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import inspect
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inexact_muon.routing.reading.values import Value, joined, listed, of, record

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Unreadable(Exception):
    """A function has no source."""


@dataclass
class Frame:
    """One call: its variables, what it returns, and the function, for names from outside."""

    names: dict[str, Value]
    function: Any
    outer: Frame | None = None
    returned: list[Value] = field(default_factory=list)

    def lookup(self, name: str) -> Value:
        """A variable, a global or a builtin; an empty value if there is none."""
        if name in self.names:
            return self.names[name]
        if self.outer is not None:
            return self.outer.lookup(name)
        for table in (closed(self.function), self.function.__globals__, vars(builtins)):
            if name in table:
                return of(table[name])
        return Value()

    def copy(self) -> Frame:
        """A copy for one branch of a condition; what it returns is shared."""
        return Frame(dict(self.names), self.function, self.outer, self.returned)

    def merge(self, branches: Sequence[Frame]) -> None:
        """Continue after any of these branches."""
        names = dict.fromkeys(name for branch in branches for name in branch.names)
        self.names = {name: joined([b.names[name] for b in branches if name in b.names]) for name in names}


def closed(function: Any) -> dict[str, Any]:
    """Variables of enclosing functions that a function sees, as far as they are assigned."""
    names = dict[str, Any]()
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # of a cell without a value
            names[name] = cell.cell_contents
    return names


@dataclass(frozen=True, eq=False)
class Closure:
    """A function that is defined while another runs, and the call whose variables it sees."""

    node: Function
    frame: Frame


@dataclass(frozen=True, eq=False)
class Partial:
    """A function with some of its arguments: functools.partial."""

    callee: Value
    args: tuple[Value, ...]
    named: Mapping[str, Value]


@functools.lru_cache(maxsize=4096)
def source(function: Any) -> Function:
    """The syntax tree of a function.

    Raises:
        Unreadable: there is no source.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError):
        raise Unreadable(str(function)) from None
    kinds = (ast.Lambda,) if function.__name__ == "<lambda>" else (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    if not nodes or (len(nodes) > 1 and ast.Lambda in kinds):  # which of several lambdas in a line is not known
        raise Unreadable(str(function))
    return nodes[0]


def bound(signature: ast.arguments, args: Sequence[Value], named: Mapping[str, Value]) -> dict[str, Value]:
    """The arguments of a call by name; those that are missing keep their default if it is a constant."""
    names = [a.arg for a in (*signature.posonlyargs, *signature.args)]
    parameters = [*names, *(a.arg for a in signature.kwonlyargs)]
    defaults = [*[None] * (len(names) - len(signature.defaults)), *signature.defaults, *signature.kw_defaults]
    constants = [default.value if isinstance(default, ast.Constant) else None for default in defaults]
    values = {name: Value() if x is None else of(x) for name, x in zip(parameters, constants, strict=True)}
    values.update(zip(names, args, strict=False))
    values.update((name, value) for name, value in named.items() if name in parameters)
    if signature.vararg is not None:
        values[signature.vararg.arg] = listed(args[len(names) :])
    if signature.kwarg is not None:
        values[signature.kwarg.arg] = record({name: value for name, value in named.items() if name not in parameters})
    return values
