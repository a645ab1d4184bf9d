"""TOML to frozen values: tables, numbers, and errors that name file, field, allowed values and the nearest match."""

from __future__ import annotations

import re
import tomllib
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, inspect

from inexact_muon._text import nearest
from inexact_muon_lab.errors import LabError

Count = Annotated[int, Meta(ge=1)]
Number = Annotated[int, Meta(ge=0)]
Side = Annotated[int, Meta(ge=2)]
Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Decay = Annotated[float, Meta(ge=0, lt=1)]
T = TypeVar("T")
LARGEST = 2**63 - 1
"""Larger integers are rejected: JSON readers and SQLite do not preserve them."""
DEPTH = 32
"""Maximum nesting of tables and lists."""
_AT = re.compile(r"(?s)(.*?)(?: - at `\$(.*)`)?")
_UNKNOWN = re.compile(r"(?s)Object contains unknown field `(.*)`")
_MISSING = re.compile(r"Object missing required field `(.*)`")
_INVALID = re.compile(r"(?s)Invalid (?:enum )?value '?(.*?)'?")


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of a spec file: frozen, without unknown fields."""


class Named(Section, frozen=True, tag_field="name"):
    """One of several kinds of a table, selected by `name`."""


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LabError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise LabError(f"{path} is a folder; give a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise LabError(f"{path}: not valid TOML: {error}") from None


def decode(raw: Any, kind: type[T], where: str) -> T:
    """`raw` as a value of `kind`; `where` is the file name for errors."""
    check_plain(raw, where)
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise LabError(f"{where}: {explain(str(error), raw, kind)}") from None


def check_plain(value: Any, where: str, path: str = "", depth: int = 0) -> None:
    """Reject values that JSON, and thus a store, cannot represent exactly."""
    why = ""
    if isinstance(value, dict | list) and depth > DEPTH:
        why = f"is nested more than {DEPTH} deep"
    elif isinstance(value, dict):
        for name, entry in value.items():
            check_plain(entry, where, _dotted(path, name), depth + 1)
        why = "" if all(map(is_unicode, value)) else "has a name that is not valid Unicode"
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            check_plain(entry, where, f"{path}[{index}]", depth + 1)
    elif isinstance(value, str) and not is_unicode(value):
        why = f"must be valid Unicode, got {value!r}"
    elif isinstance(value, float) and not isfinite(value):
        why = f"must be a finite number, got {value}"
    elif isinstance(value, int) and abs(value) > LARGEST:
        why = "must be a whole number below 2^63"
    elif not isinstance(value, str | int | float | bool | None):
        why = f"must be text, a number, true or false, a list or a table, got {value!r}"
    if why:
        raise LabError(f"{where}: {path} {why}")


def is_unicode(text: str) -> bool:
    """Whether a text can be stored: command line arguments that are not UTF-8 contain lone surrogates."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def explain(message: str, raw: Any, kind: Any) -> str:
    """A msgspec message, prefixed by the dotted field name, with what is allowed there."""
    matched = _AT.fullmatch(message)
    assert matched is not None
    what, path = matched[1], (matched[2] or "").lstrip(".")
    steps = [step for step in re.split(r"[.\[\]]+", path) if step]
    if unknown := _UNKNOWN.fullmatch(what):
        node = _walk(inspect.type_info(kind), raw, steps)
        known = [field.encode_name for field in getattr(node, "fields", ())] + [getattr(node, "tag_field", None)]
        return f"{_dotted(path, unknown[1])} is not a field: {nearest(unknown[1], [name for name in known if name])}"
    if missing := _MISSING.fullmatch(what):
        choices = _tags(_walk(inspect.type_info(kind), raw, steps, pick=False), missing[1])
        return f"{_dotted(path, missing[1])} is missing" + (f": one of {', '.join(choices)}" if choices else "")
    if invalid := _INVALID.fullmatch(what):
        node = _walk(inspect.type_info(kind), raw, steps[:-1], pick=False)
        literals = getattr(_walk(inspect.type_info(kind), raw, steps), "values", ())
        choices = _tags(node, steps[-1]) or list(map(str, literals))
        return f"{path} cannot be {invalid[1]!r}: {nearest(invalid[1], choices)}"
    return f"{path}: {what[0].lower()}{what[1:]}" if path else what


def takes_list(kind: Any, raw: Any, field: str) -> bool:
    """Whether values of the dotted field are lists, in the section selected by `raw`."""
    node = _walk(inspect.type_info(kind), raw, field.split("."))
    types = node.types if isinstance(node, inspect.UnionType) else [node]
    return any(isinstance(t, inspect.CollectionType | inspect.TupleType) for t in types)


def _dotted(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _walk(node: Any, raw: Any, steps: list[str], pick: bool = True) -> Any:
    """The type at a path; of a tagged union the member that `raw` selects, at the end only if `pick`."""
    if isinstance(node, inspect.Metadata):
        node = node.type
    if isinstance(node, inspect.UnionType) and (steps or pick):
        structs: list[Any] = [t for t in node.types if isinstance(t, inspect.StructType)]
        tagged = [t for t in structs if isinstance(raw, dict) and t.tag_field and raw.get(t.tag_field) == t.tag]
        node = (tagged or (structs if len(structs) == 1 else [node]))[0]
    if not steps or not isinstance(node, inspect.StructType):
        return node
    inside = raw.get(steps[0]) if isinstance(raw, dict) else None
    types = {field.encode_name: field.type for field in node.fields}
    return _walk(types[steps[0]], inside, steps[1:], pick) if steps[0] in types else node


def _tags(node: Any, field: str) -> list[str]:
    types = node.types if isinstance(node, inspect.UnionType) else [node]
    return [str(t.tag) for t in types if isinstance(t, inspect.StructType) and t.tag_field == field]
