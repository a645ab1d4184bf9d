"""The values of expressions."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from inexact_muon.routing.reading.computed import computed, truth
from inexact_muon.routing.reading.frames import Closure, Frame, TooLong
from inexact_muon.routing.reading.rearranging import taken
from inexact_muon.routing.reading.tracking import Tracking, named_role
from inexact_muon.routing.reading.values import Method, Value, attribute, carried, joined, listed, of, plain, record

BUDGET = 400_000
"""Most expressions of a model."""

SIZES = ("shape", "dtype", "device", "ndim", "layout", "size", "dim", "numel")
"""Attributes of a tensor that carry nothing of its values."""

GROWING = ("append", "extend", "insert", "add", "update")
"""Methods that put their arguments into a container."""


class Expressions(Tracking, ABC):
    """Evaluates expressions; what a call does is defined by the subclass.

    Attributes:
        stored: values assigned to attributes, by the owner's id and the name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stored: dict[tuple[int, str], Value] = {}
        self._count = 0

    @abstractmethod
    def apply(self, x: Any, args: Sequence[Value], named: Mapping[str, Value]) -> Value:
        """x(*args, **named)"""

    @abstractmethod
    def pass_on(self, args: Sequence[Value], name: str = "", named: Mapping[str, Value] | None = None) -> Value:
        """The result of an unknown function of this name."""

    def value(self, node: ast.AST, frame: Frame) -> Value:
        """The value of an expression.

        Raises:
            TooLong: the model has too many expressions.
        """
        self._count += 1
        if self._count > BUDGET:
            raise TooLong
        match node:
            case ast.Constant():
                return of(node.value)
            case ast.Name():
                return frame.lookup(node.id)
            case ast.Attribute():
                return self._attribute(self.value(node.value, frame), node.attr)
            case ast.Subscript():
                value, index = self.value(node.value, frame), self.value(node.slice, frame)
                keys = plain(index.items or [index])
                return self.rearranged(value, lambda rows: taken(rows, keys)) or replace(value, rows=None).at(index)
            case ast.Slice():
                ends = [of(None) if end is None else self.value(end, frame) for end in (node.lower, node.upper)]
                known = node.step is None and all(end.known for end in ends)
                return of(slice(*(end.objects[0] for end in ends))) if known else Value()
            case ast.Call():
                return self._call(node, frame)
            case ast.Tuple() | ast.List() | ast.Set():
                return listed(self._spread(node.elts, frame))
            case ast.Dict():
                return self._dict(node, frame)
            case ast.Lambda():
                return Value(objects=(Closure(node, frame),))
            case ast.NamedExpr():
                value = self.value(node.value, frame)
                self.assign(node.target, value, frame)
                return value
            case _:
                return self._operator(node, frame)

    def _operator(self, node: ast.AST, frame: Frame) -> Value:
        match node:
            case ast.BinOp():
                sides = self.value(node.left, frame), self.value(node.right, frame)
                if isinstance(node.op, ast.Add) and _concatenated(sides):
                    return listed([*(sides[0].items or ()), *(sides[1].items or ())])
                known = computed(node.op, *sides)
                return known or (self.pass_on if isinstance(node.op, ast.MatMult) else self.elementwise)(sides)
            case ast.UnaryOp():
                side = self.value(node.operand, frame)
                return computed(node.op, side) or self.elementwise([side])
            case ast.Compare(ops=[op], comparators=[other]):
                return computed(op, self.value(node.left, frame), self.value(other, frame)) or Value()
            case ast.BoolOp():
                return self._bool(node, frame)
            case ast.IfExp():
                held = truth(self.value(node.test, frame))
                parts = [node.body, node.orelse] if held is None else [node.body if held else node.orelse]
                return joined([self.value(part, frame) for part in parts])
            case ast.JoinedStr():
                words = [self.value(part, frame) for part in node.values]
                return of("".join(str(w.objects[0]) for w in words)) if all(w.known for w in words) else Value()
            case ast.FormattedValue():
                return self.value(node.value, frame) if node.format_spec is None else Value()
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp():
                return listed(self._comprehension(node.elt, node.generators, frame.copy()))
            case ast.DictComp():
                return carried(self._comprehension(node.value, node.generators, frame.copy()))
            case ast.Yield(value=ast.expr() as part):
                frame.returned.append(listed([self.value(part, frame)]))
                return Value()
            case ast.YieldFrom():
                frame.returned.append(self.value(node.value, frame))
                return Value()
        return carried([self.value(part, frame) for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)])

    def _bool(self, node: ast.BoolOp, frame: Frame) -> Value:
        """`a and b` and `a or b`, up to the operand that decides."""
        decisive, values = isinstance(node.op, ast.Or), []
        for part in node.values:
            values.append(self.value(part, frame))
            held = truth(values[-1])
            if held is decisive:
                return joined(values) if decisive else values[-1]
            if held is not None and part is not node.values[-1]:
                values.pop()
        return joined(values)

    def _comprehension(self, part: ast.expr, loops: Sequence[ast.comprehension], frame: Frame) -> list[Value]:
        if not loops:
            return [self.value(part, frame)]
        results = []
        for element in self.elements(self.value(loops[0].iter, frame)):
            self.assign(loops[0].target, element, frame)
            results += self._comprehension(part, loops[1:], frame)
        return results

    @staticmethod
    def elements(value: Value) -> list[Value]:
        """What a loop visits; if that is not known, the value itself, twice."""
        elements = value.elements()
        return [value.at(Value())] * 2 if elements is None else elements

    def _spread(self, nodes: Sequence[ast.expr], frame: Frame) -> list[Value]:
        """Elements or arguments, with *starred ones in their place."""
        values: list[Value] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                value = self.value(node.value, frame)
                values += value.elements() or ([value] if value.sources else [])
            else:
                values.append(self.value(node, frame))
        return values

    def _dict(self, node: ast.Dict, frame: Frame) -> Value:
        fields: dict[str, Value] = {}
        others = []
        for key, part in zip(node.keys, node.values, strict=True):
            value, name = self.value(part, frame), None if key is None else self.value(key, frame)
            if name is not None and name.known:
                fields[str(name.objects[0])] = value
            else:
                fields |= value.fields
                others.append(value)
        return record(fields, others)

    def _attribute(self, value: Value, name: str) -> Value:
        if name in value.fields:
            return value.fields[name]
        if name == "shape" and value.rows is not None:
            return listed(Value() if axis is None else of(axis.size) for axis in value.rows.closed().dims)
        if name in SIZES and (value.sources or value.weights):
            return Value()
        if name in ("T", "mT") and (turned := self.rearranged(value, lambda rows: rows.transposed(-1, -2))) is not None:
            return turned
        results = [Value(value.sources)] if value.sources else []
        for x in value.objects:
            if (id(x), name) in self.stored:
                results.append(self.stored[id(x), name])
                continue
            if name == "training" and isinstance(x, nn.Module):
                continue  # both are followed
            try:
                member = attribute(x, name)
            except AttributeError:
                continue
            getter = isinstance(member, property) and not isinstance(x, type)
            results.append(self.apply(Method(x, member.fget), (), {}) if getter else of(member))
        return joined(results) if results else Value(objects=tuple(value.weights))

    def _call(self, node: ast.Call, frame: Frame) -> Value:
        args, named = self._spread(node.args, frame), {}
        for keyword in node.keywords:
            value = self.value(keyword.value, frame)
            if keyword.arg is not None:
                named[keyword.arg] = value
            else:
                named |= value.fields or ({"**": value} if value.sources else {})
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not args:
            owner, cls = next(iter(frame.names.values()), Value()), frame.lookup("__class__")
            inside = owner.objects and cls.objects and isinstance(owner.objects[0], cls.objects[0])
            return Value(objects=(super(cls.objects[0], owner.objects[0]),)) if inside else Value()
        receiver = self.value(node.func.value, frame) if isinstance(node.func, ast.Attribute) else Value()
        if not isinstance(node.func, ast.Attribute):
            callee = self.value(node.func, frame)
        else:
            if node.func.attr == "size" and receiver.rows is not None:
                shape = self._attribute(receiver, "shape")
                return shape.at(args[0]) if args else shape
            callee = self._attribute(receiver, node.func.attr)
            if node.func.attr in SIZES or (callee.objects and not callee.weights):
                receiver = Value()
            if (node.func.attr in GROWING or node.func.attr.endswith("_")) and not callee.objects:
                self._grow(node.func.value, [*args, *named.values()], frame)
        if callee.objects == (None,):  # a layer that this model does not have
            return Value()
        known = [x for x in callee.objects if x is not None and not isinstance(x, nn.Parameter)]
        if not known:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            return self.pass_on([receiver, *args], name, {**named, "": Value(callee.sources)})
        results = [self.apply(x, args, named) for x in known]
        return joined([*results, Value(callee.sources)]) if callee.sources else joined(results)

    def _grow(self, target: ast.expr, values: Sequence[Value], frame: Frame) -> None:
        """list.append(value), x.copy_(value), x[0].copy_(value)."""
        while isinstance(target, ast.Subscript):
            target = target.value
        if isinstance(target, ast.Name):
            old = frame.lookup(target.id)
            known = old.items is not None and len(values) == 1
            frame.names[target.id] = listed([*(old.items or ()), *values]) if known else carried([old, *values])

    def assign(self, target: ast.expr, value: Value, frame: Frame) -> None:
        """target = value"""
        match target:
            case ast.Name():
                frame.names[target.id] = named_role(value, target.id)
            case ast.Tuple() | ast.List():
                parts = value.elements() or []
                star = next((i for i, part in enumerate(target.elts) if isinstance(part, ast.Starred)), None)
                if star is not None and len(parts) >= len(target.elts) - 1:
                    end = len(parts) - len(target.elts) + star + 1
                    parts = [*parts[:star], listed(parts[star:end]), *parts[end:]]
                if len(parts) != len(target.elts):
                    parts = [value.at(Value())] * len(target.elts)
                for part, element in zip(target.elts, parts, strict=True):
                    self.assign(part, element, frame)
            case ast.Starred():
                self.assign(target.value, value, frame)
            case ast.Attribute():
                owner = self.value(target.value, frame)
                for x in owner.objects:
                    self.stored[id(x), target.attr] = value
                if not owner.objects and isinstance(target.value, ast.Name):
                    frame.names[target.value.id] = record({**owner.fields, target.attr: value}, [owner])
            case ast.Subscript():
                if isinstance(target.value, ast.Name):
                    frame.names[target.value.id] = self._entered(target, value, frame)

    def _entered(self, target: ast.Subscript, value: Value, frame: Frame) -> Value:
        """A container after container[key] = value."""
        assert isinstance(target.value, ast.Name)
        old, key = frame.lookup(target.value.id), self.value(target.slice, frame)
        if key.known and isinstance(key.objects[0], str):
            return record({**old.fields, key.objects[0]: value}, [old])
        return carried([old, value])


def _concatenated(sides: Sequence[Value]) -> bool:
    """Whether two tuples are added, one of which may be unknown, such as the shape of a tensor."""
    return any(side.items is not None for side in sides) and all(
        side.items is not None or not (side.sources or side.objects) for side in sides
    )
