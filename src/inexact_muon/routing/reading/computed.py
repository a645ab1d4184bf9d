"""What is computed with plain values: numbers of layers, names of attributes, conditions on options."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from inexact_muon.routing.reading.values import LONG, PLAIN, Value, attribute, carried, joined, listed, of

OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Not: operator.not_,
    ast.USub: operator.neg,
}

LISTS = (list, tuple, iter, reversed)
BUILTINS = (range, len, zip, enumerate, getattr, hasattr, isinstance, *LISTS)
"""Builtin functions whose result is known."""


def computed(kind: ast.AST, *operands: Value) -> Value | None:
    """The result of an operator on plain values; None if it is not known."""
    if isinstance(kind, ast.Is | ast.IsNot):
        a, b = operands  # known if an object is compared with None
        known = b.objects == (None,) and a.single
        return of((a.objects[0] is None) == isinstance(kind, ast.Is)) if known else None
    if isinstance(kind, ast.Mult) and any(value.items for value in operands):
        return _repeated(*operands) or _repeated(*operands[::-1])
    apply = OPERATORS.get(type(kind))
    if apply is None or not all(value.known for value in operands):
        return None
    try:
        result = apply(*(value.objects[0] for value in operands))
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        return None
    return of(result) if isinstance(result, PLAIN) and len(str(result)) < 1000 else None


def _repeated(items: Value, times: Value) -> Value | None:
    """A list times a number."""
    number = times.objects[0] if times.known else None
    if not isinstance(number, int) or items.items is None or not 0 < number * len(items.items) < LONG:
        return None
    return listed(items.items * number)


def truth(value: Value) -> bool | None:
    """Whether a condition holds; None if it is not known."""
    if value.known:
        return bool(value.objects[0])
    module = len(value.objects) == 1 and isinstance(value.objects[0], nn.Module)
    return True if module and not isinstance(value.objects[0], nn.ModuleList | nn.ModuleDict) else None


def built_in(function: Any, args: Sequence[Value]) -> Value:
    """The result of one of `BUILTINS`."""
    if function in (getattr, hasattr, isinstance):
        return _of_object(function, args)
    lists = [value.elements() for value in args]
    if function is range:
        known = all(value.known and isinstance(value.objects[0], int) for value in args)
        return of(range(*(value.objects[0] for value in args))) if known and 0 < len(args) < 4 else Value()
    if function is len:
        return Value() if not args or lists[0] is None or args[0].sources else of(len(lists[0]))
    if function is enumerate and args:
        counts = Value() if lists[0] is None else listed(map(of, range(len(lists[0]))))
        return built_in(zip, [counts, args[0]])
    if function is zip:  # what is not known is the same in each row
        length = min((len(column) for column in lists if column is not None), default=1)
        columns = [[args[i]] * length if column is None else column for i, column in enumerate(lists)]
        return listed(map(listed, zip(*columns, strict=False)))
    if args and lists[0] is None:
        return joined(args)
    elements = (lists[0] if args else None) or []
    return listed(reversed(elements) if function is reversed else elements)


def _of_object(function: Any, args: Sequence[Value]) -> Value:
    """getattr, hasattr and isinstance"""
    if function is isinstance:
        kinds = tuple(x for x in args[-1].objects if isinstance(x, type)) if len(args) == 2 else ()
        return of(isinstance(args[0].objects[0], kinds)) if kinds and args[0].single else Value()
    if len(args) < 2 or not args[1].known:
        return carried(args)
    values, default = list[Value](), args[2:] if function is getattr else [of(False)]
    for x in args[0].objects:
        try:
            value = of(attribute(x, str(args[1].objects[0])))
        except AttributeError:
            values += default
        else:
            values.append(value if function is getattr else of(True))
    if function is hasattr:
        return values[0] if args[0].single else Value()
    return joined(values) if values else carried(args)
