"""A study: a base run, one grid or several over any of its fields, and seeds.

name = "iterations"
seeds = [0, 1]

[base]                       # a run, as in a spec file
steps = 250
problem.name = "nanogpt"

[[grid]]                     # every combination; several [[grid]] tables are joined
optimizer.lr = [0.05, 0.1]
optimizer.polar = ["polar-express:1", "polar-express:5"]
"""

from __future__ import annotations

import copy
import itertools
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from inexact_muon.lab.decode import decode, read_toml
from inexact_muon.lab.errors import LabError
from inexact_muon.lab.spec import Number, RunSpec, Section, overlay


class Study(Section, frozen=True):
    """A study file as it is written; `plan` expands it."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    base: dict[str, Any]
    title: str = ""
    figure: str = ""
    """Which figure or table of the paper this is the data of."""
    seeds: Annotated[tuple[Number, ...], Meta(min_length=1)] = (0,)
    grid: list[dict[str, Any]] = msgspec.field(default_factory=list)


class Plan(Section, frozen=True):
    """A study expanded: its runs in order, and the dotted fields in which they differ."""

    name: str
    title: str
    figure: str
    varied: tuple[str, ...]
    runs: tuple[RunSpec, ...]


def load(path: Path, changes: dict[str, Any] | None = None) -> Plan:
    """The plan of a study file; `changes` maps dotted fields to values that win over base and grid."""
    raw = read_toml(path)
    if "base" not in raw and "problem" in raw:
        raise LabError(f"{path} is one run (it has no base); use `inexact-muon run {path}`")
    return plan(decode(raw, Study, str(path)), str(path), changes)


def plan(study: Study, where: str, changes: dict[str, Any] | None = None) -> Plan:
    """Every combination of every grid with every seed, each run once."""
    runs: dict[str, RunSpec] = {}
    fields: dict[str, list[Any]] = {}
    for grid in study.grid or [{}]:
        axes = dict(leaves(grid, where))
        for combination in itertools.product(*axes.values()):
            for seed in study.seeds:
                chosen = {**dict(zip(axes, combination, strict=True)), "seed": seed, **(changes or {})}
                raw = copy.deepcopy(study.base)
                for field, value in chosen.items():
                    overlay(raw, field, copy.deepcopy(value))
                    fields.setdefault(field, []).append(value)
                spec = decode(raw, RunSpec, where)
                runs[spec.id] = spec
    varied = tuple(field for field, values in fields.items() if any(v != values[0] for v in values))
    several = len(study.grid) > 1  # then a field that one grid lacks varies too
    varied = tuple(dict.fromkeys((*varied, *(f for g in study.grid if several for f, _ in leaves(g, where)))))
    return Plan(name=study.name, title=study.title, figure=study.figure, varied=varied, runs=tuple(runs.values()))


def leaves(table: dict[str, Any], where: str, prefix: str = "") -> Iterator[tuple[str, list[Any]]]:
    """(dotted field, its values) of a grid."""
    for name, value in table.items():
        field = f"{prefix}{name}"
        if isinstance(value, dict):
            yield from leaves(value, where, f"{field}.")
        elif isinstance(value, list) and value:
            yield field, value
        else:
            raise LabError(f"{where}: grid.{field} must be a list of values to try, got {value!r}")


def read_changes(texts: Iterable[str]) -> dict[str, Any]:
    """["optimizer.lr=0.1", "data.path=/data"] -> values as TOML would read them; a bare word is text."""
    changes = {}
    for text in texts:
        field, equals, value = text.partition("=")
        if not equals or not field:
            raise LabError(f"--set wants field=value, such as optimizer.lr=0.1, got {text!r}")
        try:
            changes[field.strip()] = tomllib.loads(f"x = {value}")["x"]
        except tomllib.TOMLDecodeError:
            changes[field.strip()] = value.strip()
    return changes


def field_of(spec: RunSpec, field: str) -> Any:
    """The value of a dotted field; None where this kind of table does not have it."""
    value: Any = spec
    for name in field.split("."):
        if name == "name" and hasattr(value, "__struct_config__"):
            value = value.__struct_config__.tag
        else:
            value = getattr(value, name, None)
    return value
