"""The outputs of a model, and which layers take which outputs."""

from __future__ import annotations

import ast
import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from inexact_muon.routing.layers import ROLES, layer_of
from inexact_muon.routing.reading.computed import BUILTINS, built_in
from inexact_muon.routing.reading.frames import Closure, Frame, Function, Partial, Unreadable, bound, closed, source
from inexact_muon.routing.reading.rows import rows_of
from inexact_muon.routing.reading.statements import Statements
from inexact_muon.routing.reading.values import Method, Value, carried, joined, listed, of, plain, record, with_role

DEPTH = 60
"""Most nested calls."""

RECURSION = 2
"""Most calls of one function on one object inside of each other."""

CALLS = ("forward", "__call__", "_call_impl", "_wrapped_call_impl")
"""Methods that run a module."""

INPUT, OTHER = -1, -2
"""The sources of the model's first argument and of the others; no id is negative."""


JOINS = ("cat", "concat", "stack", "where", "add", "sub", "mul", "lerp", "pad", "expand", "masked_fill", "normalize")
"""Functions that make no product of a weight with their other arguments."""

NAMED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
"""Kinds of parameters that are one argument."""


class Reader(Statements):
    """Follows calls from the forward pass of a model.

    Args:
        is_layer: whether a module is taken as one layer: it consumes its arguments and is the source of its result.

    Attributes:
        consumers: ids of layers, or of plain weights -> layers called after them that take their output. An output
            that is fed back, as in sampling, does not count.
        called: ids of the layers that are called -> the order of their first calls.
    """

    def __init__(self, is_layer: Callable[[nn.Module], bool]) -> None:
        super().__init__()
        self.is_layer = is_layer
        self.consumers: dict[int, set[int]] = {}
        self.called: dict[int, int] = {}
        self._stack: list[tuple[int, int]] = []

    def entry(self, model: nn.Module, function: types.FunctionType) -> Value:
        """What the model returns by this method; arguments have their default if it is not None.

        Raises:
            Unreadable: there is no source.
        """
        parameters = list(inspect.signature(function).parameters.values())[1:]
        tensors = [p.name for p in parameters if p.kind in NAMED and (p.default is None or p.default is p.empty)]
        named = {name: Value(frozenset([INPUT if i == 0 else OTHER])) for i, name in enumerate(tensors)}
        return self.function(Method(model, function), [] if named else [Value(frozenset([INPUT]))], named)

    def apply(self, x: Any, args: Sequence[Value], named: Mapping[str, Value]) -> Value:
        values = (*args, *named.values())
        match x:
            case nn.Module():
                return self.module(x, args, named)
            case functools.partial():
                fixed = {name: of(value) for name, value in x.keywords.items()}
                return self.apply(Partial(of(x.func), tuple(map(of, x.args)), fixed), args, named)
            case Partial():
                return joined([self.apply(f, [*x.args, *args], {**x.named, **named}) for f in x.callee.objects])
            case type() if x is map and len(args) == 2:
                parts = args[1].elements()
                return listed(joined([self.apply(f, [y], {}) for f in args[0].objects]) for y in parts or [args[1]])
            case type() if x is functools.partial and args:
                return Value(objects=(Partial(args[0], tuple(args[1:]), named),))
            case types.MethodType():
                return self.apply(Method(x.__self__, x.__func__), args, named)
            case Method() if isinstance(x.owner, nn.Module):
                return self._method(x, args, named)
            case Closure():
                frame = Frame(bound(x.node.args, args, named), x.frame.function, x.frame)
                return self._call_of(x.node, frame, x)
            case types.FunctionType() if _sees_modules(x, values):
                return self._function(x, args, named)
            case type() if x not in BUILTINS:
                return record(named, args)
            case _ if isinstance(x, type | types.BuiltinFunctionType) and x in BUILTINS:
                return built_in(x, args)
        return self.pass_on(args, getattr(x, "__name__", ""), named)

    def module(self, module: nn.Module, args: Sequence[Value], named: Mapping[str, Value]) -> Value:
        """module(*args, **named)"""
        values = (*args, *named.values())
        if self.is_layer(module):
            return self._output(module, values)
        if type(module).__module__.startswith("torch.nn.") and next(module.parameters(), None) is None:
            name = type(module).__name__
            return self.pass_on(values) if "latten" in name else self.elementwise(values)
        try:
            return self.function(Method(module, type(module).forward), args, named)
        except Unreadable:
            weights = next(module.parameters(), None) is not None
            return self._layer(id(module), values) if weights else self.pass_on(values)

    def _output(self, module: nn.Module, values: Sequence[Value]) -> Value:
        """The output of a layer: one entry for each row of a linear layer, rows in their places after a norm."""
        layer, sources = layer_of(module), self._layer(id(module), values).sources
        if layer.type == "norm" and values:
            rows = values[0].rows
            return Value(sources, rows=None if rows is None else replace(rows, normed=True))
        self.used(values, fed=True)
        if layer.widths is None or layer.type not in ("linear", "convolution"):
            return Value(sources)
        kernel = getattr(module, "kernel_size", ()) if layer.type == "convolution" else ()
        dims = len(kernel) if isinstance(kernel, tuple) else 1
        return Value(sources, rows=rows_of(id(module), layer.widths[0], dims))

    def _layer(self, key: int, values: Sequence[Value]) -> Value:
        order = self.called.setdefault(key, len(self.called))
        for other in carried(values).sources:
            if self.called.get(other, order) < order:
                self.consumers.setdefault(other, set()).add(key)
        return Value(frozenset([key]))

    def pass_on(self, args: Sequence[Value], name: str = "", named: Mapping[str, Value] | None = None) -> Value:
        """An unknown function: a product with its weights, or a caller of the modules among its arguments.

        What a function of several weights does with each, such as a fused network, is not known.
        """
        named = named or {}
        if name == "scaled_dot_product_attention":
            args = [
                with_role(value, value.rows.role or part) if value.rows else value
                for value, part in zip(args, ROLES, strict=False)
            ]
        values = (*args, *named.values())
        words = {word: x for word, x in zip(named, plain(named.values()), strict=True) if word}
        result = self.rearranged(args[0], name or "call", plain(args[1:]), words) if args else None
        self.used(values[1:] if args and args[0].rows is not None else values)
        if result:
            return result
        weights = [w for value in values for w in value.weights]
        others = [value for value in values if not value.weights]
        if weights and name not in JOINS and any(value.sources for value in others):
            results = [self._layer(id(w), others) for w in weights]
            if name == "linear" and len(weights) == 1:
                results = [Value(results[0].sources, rows=rows_of(id(weights[0]), len(weights[0])))]
            return joined(results) if sum(bool(value.weights) for value in values) == 1 else Value()
        results = [Value(carried(values).sources, tuple(weights))]
        for i, value in enumerate(values):
            others = [*values[:i], *values[i + 1 :]]
            for x in value.objects:
                callable_ = isinstance(x, Partial | Closure | Method | nn.Module)
                inside = any(owner == id(x) for _, owner in self._stack)
                if callable_ and not inside and not isinstance(x, nn.ModuleList | nn.ModuleDict):
                    results.append(self.apply(x, others, {}))
        return Value(carried(results).sources, tuple(weights))

    def _method(self, x: Method, args: Sequence[Value], named: Mapping[str, Value]) -> Value:
        name, inside = x.function.__name__, {k: m for k, m in x.owner._modules.items() if m is not None}
        if self.is_layer(x.owner):
            return self._layer(id(x.owner), (*args, *named.values())) if name in CALLS else carried(args)
        if name in CALLS[1:]:
            return self.module(x.owner, args, named)
        if name in ("children", "values", "modules"):
            return listed(Value(objects=(m,)) for m in inside.values())
        if name in ("items", "named_children"):
            return listed(listed([of(key), Value(objects=(m,))]) for key, m in inside.items())
        if x.function.__module__ == "torch.nn.modules.module":
            return carried(args)
        return self._function(x, args, named)

    def _function(self, x: Any, args: Sequence[Value], named: Mapping[str, Value]) -> Value:
        try:
            return self.function(x, args, named)
        except Unreadable:
            return self.pass_on((*args, *named.values()))

    def function(self, x: Any, args: Sequence[Value], named: Mapping[str, Value]) -> Value:
        """The result of a function or `Method`, from its source.

        Raises:
            Unreadable: there is none.
        """
        owner = [Value(objects=(x.owner,))] if isinstance(x, Method) else []
        function = inspect.unwrap(x.function if isinstance(x, Method) else x)
        if not isinstance(function, types.FunctionType):
            raise Unreadable(str(function))
        node = source(function)
        return self._call_of(node, Frame(bound(node.args, [*owner, *args], named), function), x)

    def _call_of(self, node: Function, frame: Frame, x: Any) -> Value:
        """Run a function in its frame; a call that is inside of itself twice returns nothing of its own."""
        call = id(node), id(x.owner) if isinstance(x, Method) else 0
        depth = self._stack.count(call)
        if depth >= RECURSION or len(self._stack) > DEPTH:
            return Value()
        if depth:  # any depth: numbers that count calls are not known
            frame.names = {name: Value(v.sources) if v.known else v for name, v in frame.names.items()}
        self._stack.append(call)
        try:
            if isinstance(node, ast.Lambda):
                return self.value(node.body, frame)
            self.run(node.body, frame)
        finally:
            self._stack.pop()
        return joined(frame.returned) if frame.returned else Value()


def _sees_modules(function: types.FunctionType, values: Sequence[Value]) -> bool:
    """Whether a plain function may call layers: modules or functions are among its arguments or in its closure."""
    objects = [x for value in values for x in value.objects]
    objects += closed(function).values()
    called = any(isinstance(x, nn.Module | Partial | Closure | Method | types.FunctionType) for x in objects)
    return called and not function.__module__.startswith("torch.")
