"""What an expression of a forward pass may hold: which layers' outputs, and which Python objects."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from inexact_muon.routing.reading.rows import WeightRows

PLAIN = (int, float, bool, str, type(None))
"""Types of values that are computed with, such as the number of layers."""

INDICES = (*PLAIN, slice, type(Ellipsis))
"""Types of values that say how a tensor is rearranged."""

SHARED = ("T", "mT", "H", "data")
"""Attributes of a parameter that are the parameter as far as routing is concerned."""

LONG = 1000
"""Sequences of this many elements are not followed one by one."""


@dataclass(frozen=True, eq=False)
class Value:
    """An abstract value.

    Attributes:
        sources: ids of the layers whose output it may carry without another layer in between.
        objects: Python objects that it may be: modules, parameters, functions, numbers.
        items: elements of a tuple or list, if known.
        fields: named entries of a dict or of a record, if known.
        rows: which rows of a layer's weight it holds, if known.
    """

    sources: frozenset[int] = frozenset()
    objects: tuple[Any, ...] = ()
    items: tuple[Value, ...] | None = None
    fields: Mapping[str, Value] = field(default_factory=dict)
    rows: WeightRows | None = None

    @property
    def known(self) -> bool:
        """Whether this is one plain value."""
        return self.single and isinstance(self.objects[0], PLAIN)

    @property
    def single(self) -> bool:
        """Whether this is one object and no tensor."""
        return len(self.objects) == 1 and not self.sources

    @property
    def weights(self) -> list[nn.Parameter]:
        """Parameters of two or more dimensions that it may be."""
        return [x for x in self.objects if isinstance(x, nn.Parameter) and x.ndim > 1]

    def leaves(self) -> list[frozenset[int]]:
        """Sources of each entry, at any depth; of the value itself if it has no known entries."""
        parts = [*(self.items or ()), *self.fields.values()]
        rest = self.sources.difference(*(part.sources for part in parts))
        return [leaf for part in parts for leaf in part.leaves()] + ([rest] if rest else [])

    def elements(self) -> list[Value] | None:
        """What a loop over it visits; None if that is not known."""
        if self.items is not None:
            return list(self.items)
        if self.rows is not None and len(self.rows.index) > 1:
            return [Value(self.sources, rows=part) for part in self.rows]
        inside = members(self.objects[0]) if len(self.objects) == 1 else None
        return None if inside is None else [of(x) for x in inside]

    def at(self, index: Value) -> Value:
        """self[index]"""
        key = index.objects[0] if len(index.objects) == 1 else None
        if isinstance(key, str) and key in self.fields:
            return self.fields[key]
        elements = self.elements()
        if elements is not None and isinstance(key, int | slice):
            try:
                part = elements[key]
            except (IndexError, TypeError):
                return joined(elements)
            if not isinstance(part, list):
                return part
            chain = len(self.objects) == 1 and isinstance(self.objects[0], nn.Sequential)
            return of(nn.Sequential(*(x for v in part for x in v.objects))) if chain else listed(part)
        if isinstance(key, int) and key == 0 and self.fields:
            return next(iter(self.fields.values()))
        for x in self.objects:
            inside = x._modules if isinstance(x, nn.ModuleDict) else x if type(x) is dict else {}
            if isinstance(key, str) and key in inside:
                return of(inside[key])
        return Value(self.sources, tuple(y for x in self.objects for y in members(x) or ()) or self.objects)


def of(x: Any) -> Value:
    """The value of one object; a list keeps its elements."""
    return listed(map(of, x)) if isinstance(x, list | tuple) and len(x) < LONG else Value(objects=(x,))


def plain(values: Iterable[Value]) -> list[Any]:
    """Numbers, text, slices and lists of them; None for what is not known, such as the entries of a buffer."""

    def one(value: Value) -> Any:
        if value.items is not None:
            return plain(value.items)
        return value.objects[0] if value.single and isinstance(value.objects[0], INDICES) else None

    return [one(value) for value in values]


def listed(values: Iterable[Value]) -> Value:
    """A tuple or list."""
    values = tuple(values)
    return Value(carried(values).sources, _distinct(values), values)


def record(fields: Mapping[str, Value], others: Iterable[Value] = ()) -> Value:
    """A dict, or an object with named entries."""
    return Value(carried((*fields.values(), *others)).sources, fields=dict(fields))


def carried(values: Iterable[Value]) -> Value:
    """What a function that is no layer returns: whatever its arguments carry."""
    return Value(frozenset().union(*(v.sources for v in values)))


def with_role(value: Value, part: str) -> Value:
    """A tensor whose rows are those of the query, key or value."""
    return replace(value, rows=replace(value.rows, role=part)) if value.rows is not None else value


def joined(values: Iterable[Value]) -> Value:
    """Any of these values."""
    values = tuple(values)
    if len(values) == 1:
        return values[0]
    lengths = {None if v.items is None else len(v.items) for v in values if v.sources or v.items is not None}
    lists = [v.items for v in values if v.items is not None]
    items = tuple(map(joined, zip(*lists, strict=True))) if lists and len(lengths) == 1 else None
    names = dict.fromkeys(name for v in values for name in v.fields)
    fields = {name: joined([v.fields[name] for v in values if name in v.fields]) for name in names}
    objects = _distinct(values)
    if not all(v.objects for v in values):  # one of them is not known: neither is a number
        objects = tuple(x for x in objects if not isinstance(x, PLAIN))
    rows = {None if v.rows is None else v.rows.key: v.rows for v in values if v.objects != (None,)}
    same = next(iter(rows.values())) if len(rows) == 1 else None
    return Value(carried(values).sources, objects, items, fields, same)


def _distinct(values: Iterable[Value]) -> tuple[Any, ...]:
    return tuple({id(x): x for v in values for x in v.objects}.values())


def members(x: Any) -> list[Any] | None:
    """Elements of a container of modules or parameters, or of a range."""
    if isinstance(x, nn.ModuleList | nn.Sequential | nn.ModuleDict):
        return [m for m in x._modules.values() if m is not None]
    return list(x) if isinstance(x, nn.ParameterList) or (isinstance(x, range) and len(x) < LONG) else None


@dataclass(frozen=True, eq=False)
class Method:
    """A function with the object it is called on."""

    owner: Any
    function: Any


def attribute(x: Any, name: str) -> Any:
    """x.name without running code of x: a `Method`, a property, or the stored object; raises AttributeError."""
    if isinstance(x, types.ModuleType):
        return getattr(x, name)
    if isinstance(x, nn.Parameter):
        if name not in SHARED:
            raise AttributeError(name)
        return x
    if isinstance(x, nn.Module) and name == "_modules":
        children = nn.ModuleDict()
        children._modules = x._modules  # type: ignore[assignment]
        return children
    owner, bases = x, type(x).__mro__
    if isinstance(x, super):
        owner, start = x.__self__, x.__thisclass__  # type: ignore[attr-defined]
        bases = type(owner).__mro__[type(owner).__mro__.index(start) + 1 :]
    else:
        inside = getattr(x, "__dict__", {})
        for table in (inside, *(inside.get(part, {}) for part in ("_modules", "_parameters", "_buffers"))):
            if isinstance(table, Mapping) and name in table:
                return table[name]
        if isinstance(x, type):
            bases = x.__mro__
    member = next((vars(base)[name] for base in bases if name in vars(base)), None)
    if isinstance(member, types.FunctionType | functools.partialmethod):
        return member if isinstance(x, type) else Method(owner, member)
    if isinstance(member, staticmethod):
        return member.__func__
    if isinstance(member, classmethod):
        return Method(x if isinstance(x, type) else type(owner), member.__func__)
    if member is None or (inspect.isdatadescriptor(member) and not isinstance(member, property)):
        raise AttributeError(name)
    return member
