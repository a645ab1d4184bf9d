"""The values of expressions, and the rows of weights that they hold."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from inexact_muon.routing.reading.computed import computed, truth
from inexact_muon.routing.reading.frames import Closure, Frame
from inexact_muon.routing.reading.rows import WeightRows, rearranged, taken
from inexact_muon.routing.reading.values import Method, Value, attribute, carried, joined, listed, of, plain, record

BUDGET = 400_000
"""Most expressions of a model."""

SIZES = ("shape", "dtype", "device", "ndim", "layout", "size", "dim", "numel")
"""Attributes of a tensor that carry nothing of its values."""

GROWING = ("append", "extend", "insert", "add", "update")
"""Methods that put their arguments into a container."""

UNTRACKED = (ValueError, TypeError, ArithmeticError, LookupError)
"""What rearranging rows raises, also where arguments are not what a function of torch of this name takes."""


class TooLong(Exception):
    """A model has more expressions than are read."""


class Expressions(ABC):
    """Evaluates expressions; what calls and assignments do is defined by subclasses.

    Attributes:
        stored: values assigned to attributes, by the owner's id and the name.
        uses: rows of weights, as they are when a function takes them that does more than rearrange them.
    """

    def __init__(self) -> None:
        self.stored: dict[tuple[int, str], Value] = {}
        self.uses: list[WeightRows] = []
        self._count = 0

    @abstractmethod
    def apply(self, x: Any, args: Sequence[Value], named: Mapping[str, Value]) -> Value:
        """x(*args, **named)"""

    @abstractmethod
    def pass_on(self, args: Sequence[Value], name: str = "", named: Mapping[str, Value] | None = None) -> Value:
        """The result of an unknown function of this name."""

    @abstractmethod
    def assign(self, target: ast.expr, value: Value, frame: Frame) -> None:
        """target = value"""

    @abstractmethod
    def grow(self, target: ast.expr, values: Sequence[Value], frame: Frame) -> None:
        """list.append(value), x.copy_(value), x[0].copy_(value)."""

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
                return self.rearranged(value, "", plain(index.items or [index])) or replace(value, rows=None).at(index)
            case ast.Call():
                return self._call(node, frame)
            case ast.Tuple() | ast.List() | ast.Set():
                return listed(self._spread(node.elts, frame))
            case ast.Lambda():
                return Value(objects=(Closure(node, frame),))
            case ast.NamedExpr():
                value = self.value(node.value, frame)
                self.assign(node.target, value, frame)
                return value
            case ast.BinOp(left, operator, right):
                sides = self.value(left, frame), self.value(right, frame)
                if isinstance(operator, ast.Add) and _concatenated(sides):
                    return listed([*(sides[0].items or ()), *(sides[1].items or ())])
                known = computed(operator, *sides)
                return known or (self.pass_on if isinstance(operator, ast.MatMult) else self.elementwise)(sides)
            case ast.UnaryOp():
                side = self.value(node.operand, frame)
                return computed(node.op, side) or self.elementwise([side])
            case ast.Compare(left, [operator], [right]):
                return computed(operator, self.value(left, frame), self.value(right, frame)) or Value()
            case ast.BoolOp():
                return self._bool(node, frame)
            case ast.IfExp():
                held = truth(self.value(node.test, frame))
                parts = [node.body, node.orelse] if held is None else [node.body if held else node.orelse]
                return joined([self.value(part, frame) for part in parts])
        return self._rare(node, frame)

    def _rare(self, node: ast.AST, frame: Frame) -> Value:
        match node:
            case ast.Slice():
                ends = [of(None) if end is None else self.value(end, frame) for end in (node.lower, node.upper)]
                known = node.step is None and all(end.known for end in ends)
                return of(slice(*(end.objects[0] for end in ends))) if known else Value()
            case ast.Dict():
                return self._dict(node, frame)
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
            return listed(Value() if side == 1 else of(side) for side in value.rows.index.shape)
        if name in SIZES and (value.sources or value.weights):
            return Value()
        if name in ("T", "mT") and (transposed := self.rearranged(value, "transpose", [-1, -2])) is not None:
            return transposed
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
        match node.func:
            case ast.Name("super") if not args:
                owner, cls = next(iter(frame.names.values()), Value()), frame.lookup("__class__")
                inside = owner.objects and cls.objects and isinstance(owner.objects[0], cls.objects[0])
                return Value(objects=(super(cls.objects[0], owner.objects[0]),)) if inside else Value()
            case ast.Attribute(target, name):
                receiver = self.value(target, frame)
            case _:
                return self._called(self.value(node.func, frame), Value(), "", args, named)
        if name == "size" and receiver.rows is not None:
            shape = self._attribute(receiver, "shape")
            return shape.at(args[0]) if args else shape
        callee = self._attribute(receiver, name)
        if name in SIZES or (callee.objects and not callee.weights):
            receiver = Value()
        if (name in GROWING or name.endswith("_")) and not callee.objects:
            self.grow(target, [*args, *named.values()], frame)
        return self._called(callee, receiver, name, args, named)

    def _called(self, callee: Value, receiver: Value, name: str, args: list[Value], named: dict[str, Value]) -> Value:
        """callee(*args), or receiver.name(*args) if it is not known what that is."""
        if callee.objects == (None,):  # a layer that this model does not have
            return Value()
        known = [x for x in callee.objects if x is not None and not isinstance(x, nn.Parameter)]
        if not known:
            return self.pass_on([receiver, *args], name, {**named, "": Value(callee.sources)})
        results = [self.apply(x, args, named) for x in known]
        return joined([*results, Value(callee.sources)]) if callee.sources else joined(results)

    def used(self, values: Iterable[Value], fed: bool = False) -> None:
        """A function, or a layer, takes these values and does more than rearrange them."""
        for value in values:
            if value.rows is not None:
                self.uses.append(replace(value.rows, fed=fed))
            self.used(value.items or (), fed)

    def rearranged(
        self, value: Value, name: str, args: Sequence[Any], named: Mapping[str, Any] | None = None
    ) -> Value | None:
        """A tensor, or several, after a function of this name, or value[args]; None if what it does is not known."""
        if value.rows is None:
            return None
        try:
            parts = rearranged(value.rows, name, args, named or {}) if name else taken(value.rows, args)
        except UNTRACKED:
            self.used([value])
            return None
        if isinstance(parts, WeightRows):
            return Value(value.sources, rows=parts)
        return listed(Value(value.sources, rows=part) for part in parts)

    def elementwise(self, values: Sequence[Value]) -> Value:
        """What adding or multiplying gives: the rows stay in their places if one of the values holds some."""
        held = [value.rows for value in values if value.rows is not None]
        if len(held) != 1:
            self.used(values)
        return Value(carried(values).sources, rows=held[0] if len(held) == 1 else None)


def _concatenated(sides: Sequence[Value]) -> bool:
    """Whether two tuples are added, one of which may be unknown, such as the shape of a tensor."""
    return any(side.items is not None for side in sides) and all(
        side.items is not None or not (side.sources or side.objects) for side in sides
    )
