"""The text form of frozen values: "polar-express(steps=5, lower=0.01)", or "polar-express:5" for the first field.

`write` and `read` are inverse to each other on frozen dataclasses with a class attribute `name`.
Text is used only at the edges: the command line, TOML files, checkpoints.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from itertools import pairwise
from typing import Any
from unicodedata import category

from inexact_muon._lazy import Classes

_DASH = re.compile(r"(?<=[A-Za-z0-9_])-(?=[A-Za-z])")
_NUMBER = re.compile(r"(?<![0-9])[0-9]{1,9}(?![0-9])")
_SHORT = re.compile(r"(?<![\w-])([A-Za-z][\w-]*):([^\s,():]+)")

LONGEST = 100_000
"""Maximum length of a text: far more than `auto` with a choice for each shape of a large model."""

MOST_METHODS = 500
"""Maximum number of methods in one text, since each is designed while it is read."""


def write(method: Any, *, full: bool = False) -> str:
    """Text of a method, with the fields that differ from their defaults, or all if `full`."""
    ordered = sorted(fields(method), key=lambda field: bool(field.kw_only))  # constructor order
    parts = []
    for position, field in enumerate(ordered):
        value, make = getattr(method, field.name), field.default_factory
        always = full or (position == 0 and not field.kw_only)
        if always or value != (field.default if make is MISSING else make()):
            parts.append(f"{field.name}={_write_value(value, full)}")
    return f"{method.name}({', '.join(parts)})"


def read(text: str, table: Mapping[str, type]) -> Any:
    """Parse a text; `table` maps names to classes.

    Raises:
        ValueError: with what is wrong, what exists and the nearest existing name.
    """
    node = _parsed(text, next(iter(table)))[1]
    try:
        count = sum(isinstance(part, ast.Call) for part in ast.walk(node))
        if count > MOST_METHODS:
            raise ValueError(f"{_quoted(text)} names {count} methods; a text may name at most {MOST_METHODS}")
        return _build(node, table, text)
    except RecursionError:
        raise ValueError(f"cannot read {_quoted(text)}: it is nested too deeply") from None


def call(text: str) -> tuple[str, list[tuple[str, str]]]:
    """The name in a text and its arguments as (field, text), field "" for positional ones; names need not be known."""
    source, node = _parsed(text, "name")
    name, inside = _called(node, text, "name")
    arguments = [("", a) for a in inside.args] + [(str(k.arg), k.value) for k in inside.keywords]
    return name, [(key, ast.get_source_segment(source, value) or "") for key, value in arguments]


def _called(node: ast.expr, text: str, example: str) -> tuple[str, ast.Call]:
    """Name of a call, and the call; a bare name is a call without arguments."""
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    if not isinstance(call.func, ast.Name):
        raise ValueError(f"cannot read {_quoted(text)}: expected a name such as {example}")
    return _word(call.func), call


def _parsed(text: str, example: str) -> tuple[str, ast.expr]:
    """The text with its arguments in brackets, and the syntax tree of that text."""
    if not isinstance(text, str):
        raise TypeError(f"expected the text of a method, got {type(text).__name__}")
    if len(text) > LONGEST:
        raise ValueError(f"the text of a method has at most {LONGEST} characters, got {len(text)}: {_quoted(text)}")
    source = _SHORT.sub(r"\1(\2)", text.strip())
    try:
        # polar-express and rms-max become identifiers; 1e-3 keeps its minus, since a digit follows.
        return source, ast.parse(_DASH.sub("_", source), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # also: nested too deeply, a null byte, a surrogate
        raise ValueError(f"cannot read {_quoted(text)}; write it like {example}(steps=5)") from None


def read_plugged(text: str, table: Classes, *groups: str) -> Any:
    """`read`, including entry points of these groups from installed packages, which are loaded if named."""
    offered = {point.name: point for group in groups for point in _points(group)}
    plugged = {name: point.load() for name, point in offered.items() if name not in table and name in str(text)}
    return read(text, table | plugged)


@cache
def _points(group: str) -> EntryPoints:
    return entry_points(group=group)


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error message: the nearest known name, then all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}known: {', '.join(names)}"


def printable(text: str) -> str:
    """Text of a file for a terminal or a picture, with "?" for control and format characters, which could act there."""
    return "".join("?" if category(c)[0] == "C" and c not in "\n\t" else c for c in text)


def _build(node: ast.expr, table: Mapping[str, type], text: str) -> Any:
    name, call = _called(node, text, next(iter(table)))
    if name not in table:
        raise ValueError(f"unknown name {_quoted(name)} in {_quoted(text)}: {nearest(name, table)}")
    cls = table[name]
    known = {f.name: f for f in fields(cls)}
    arguments = {}
    for keyword in call.keywords:
        if keyword.arg not in known:
            raise ValueError(
                f"{name} has no {_quoted(str(keyword.arg))} in {_quoted(text)}: {nearest(str(keyword.arg), known)}"
            )
        # In a text field a bare word is text, even if a method has that name: form=auto.
        word = known[keyword.arg].type in (str, "str") and isinstance(keyword.value, ast.Name)
        arguments[keyword.arg] = _word(keyword.value) if word else _value(keyword.value, table, text)
    try:
        return cls(*(_value(a, table, text) for a in call.args), **arguments)
    except (TypeError, ArithmeticError) as error:
        raise ValueError(f"cannot build {_quoted(text)}: {error}") from None


def _value(node: ast.expr, table: Mapping[str, type], text: str) -> Any:
    if isinstance(node, ast.Call):
        return _build(node, table, text)
    if isinstance(node, ast.Name):  # a bare word: a method or an option
        word = _word(node)
        return _build(node, table, text) if word in table else word
    if isinstance(node, ast.Tuple):
        return tuple(_value(item, table, text) for item in node.elts)
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"cannot read the value {_quoted(ast.unparse(node))} in {_quoted(text)}") from None


def _quoted(text: str) -> str:
    """The text for an error message: shortened in the middle, with non-printable characters escaped."""
    shown = text if len(text) <= 120 else f"{text[:80]}...{text[-30:]}"
    return ascii(shown)


def _word(node: Any) -> str:
    return str(node.id.replace("_", "-"))


def _write_value(value: Any, full: bool) -> str:
    if is_dataclass(value):
        return write(value, full=full)
    if isinstance(value, tuple):
        inner = ", ".join(_write_value(v, full) for v in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, str):
        return value
    return str(value).removeprefix("torch.") if type(value).__module__ == "torch" else repr(value)


def grouped(rows: Sequence[tuple[str, Any]]) -> list[tuple[str, list[int]]]:
    """Rows with equal names but for their numbers, and equal keys, as one: (name with ranges, places of the rows).

    Example: "layers.0.qkv", ..., "layers.11.qkv" become "layers.0-11.qkv".
    """
    places: dict[Any, list[int]] = {}
    for i, (name, key) in enumerate(rows):
        places.setdefault((_NUMBER.sub("#", name), key), []).append(i)
    return [(_with_ranges([rows[i][0] for i in group]), group) for group in places.values()]


def _with_ranges(names: Sequence[str]) -> str:
    """One name for several that differ in their numbers only."""
    numbers = zip(*(map(int, _NUMBER.findall(name)) for name in names), strict=True)
    texts = iter([_ranges(sorted(set(column))) for column in numbers])
    return _NUMBER.sub(lambda _: next(texts), names[0]) if len(names) > 1 else names[0]


def _ranges(numbers: Sequence[int]) -> str:
    """ "0-3,5" for 0, 1, 2, 3, 5; "0,4,...,44" for every fourth."""
    steps = {after - before for before, after in pairwise(numbers)}
    if len(numbers) > 3 and len(steps) == 1 and steps != {1}:
        return f"{numbers[0]},{numbers[1]},...,{numbers[-1]}"
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
