"""What is computed with plain values: numbers of layers, names of attributes, conditions on options."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from inexact_muon.routing.reading.values import PLAIN, Value, attribute, carried, joined, listed, of

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


def computed(kind: ast.AST, *operands: Value) -> Value | None:
    """The result of an operator on plain values; None if it is not known."""
    if isinstance(kind, ast.Is | ast.IsNot):
        same = _is_none(operands)
        return None if same is None else of(same == isinstance(kind, ast.Is))
    apply = OPERATORS.get(type(kind))
    if apply is None or not all(value.known for value in operands):
        return None
    try:
        result = apply(*(value.objects[0] for value in operands))
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        return None
    return of(result) if isinstance(result, PLAIN) and len(str(result)) < 1000 else None


def _is_none(operands: Sequence[Value]) -> bool | None:
    """Whether a value is None, if that is what is compared and known."""
    a, b = operands
    if b.objects != (None,) or len(a.objects) != 1 or a.sources:
        return None
    return a.objects[0] is None


def truth(value: Value) -> bool | None:
    """Whether a condition holds; None if it is not known."""
    if value.known:
        return bool(value.objects[0])
    module = len(value.objects) == 1 and isinstance(value.objects[0], nn.Module)
    return True if module and not isinstance(value.objects[0], nn.ModuleList | nn.ModuleDict) else None


def _range(args: Sequence[Value]) -> Value:
    known = all(value.known and isinstance(value.objects[0], int) for value in args)
    return of(range(*(value.objects[0] for value in args))) if known and 0 < len(args) < 4 else Value()


def _len(args: Sequence[Value]) -> Value:
    elements = args[0].elements() if args and not args[0].sources else None
    return of(len(elements)) if elements is not None else Value()


def _zip(args: Sequence[Value]) -> Value:
    columns = [value.elements() for value in args]
    length = min((len(c) for c in columns if c is not None), default=None)
    if length is None:
        return listed([listed(args)])
    rows = zip(*([value] * length if c is None else c for value, c in zip(args, columns, strict=True)), strict=False)
    return listed(listed(row) for row in rows)


def _enumerate(args: Sequence[Value]) -> Value:
    elements = args[0].elements() if args else None
    return _zip([Value(), *args[:1]]) if elements is None else listed(map(_pair, enumerate(elements)))


def _pair(pair: tuple[int, Value]) -> Value:
    return listed([of(pair[0]), pair[1]])


def _reversed(args: Sequence[Value]) -> Value:
    elements = args[0].elements() if args else None
    return joined(args) if elements is None else listed(reversed(elements))


def _list(args: Sequence[Value]) -> Value:
    elements = args[0].elements() if args else []
    return joined(args) if elements is None else listed(elements)


def _getattr(args: Sequence[Value]) -> Value:
    if len(args) < 2 or not args[1].known:
        return carried(args)
    values = []
    for x in args[0].objects:
        try:
            values.append(of(attribute(x, str(args[1].objects[0]))))
        except AttributeError:
            values += args[2:]
    return joined(values) if values else carried(args)


def _hasattr(args: Sequence[Value]) -> Value:
    if len(args) != 2 or not args[1].known or len(args[0].objects) != 1 or args[0].sources:
        return Value()
    try:
        attribute(args[0].objects[0], str(args[1].objects[0]))
    except AttributeError:
        return of(False)
    return of(True)


def _isinstance(args: Sequence[Value]) -> Value:
    if len(args) != 2 or args[0].sources or len(args[0].objects) != 1:
        return Value()
    kinds = tuple(x for x in args[1].objects if isinstance(x, type))
    return of(isinstance(args[0].objects[0], kinds)) if kinds else Value()


BUILTINS: dict[Any, Callable[[Sequence[Value]], Value]] = {
    range: _range,
    len: _len,
    zip: _zip,
    enumerate: _enumerate,
    reversed: _reversed,
    list: _list,
    tuple: _list,
    getattr: _getattr,
    hasattr: _hasattr,
    isinstance: _isinstance,
    iter: _list,
}
"""Builtin functions whose result is known."""
