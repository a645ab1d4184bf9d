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

import itertools
import tomllib
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from inexact_muon._text import nearest
from inexact_muon_lab.errors import LabError
from inexact_muon_lab.spec.arms import Compare, flat, trained
from inexact_muon_lab.spec.decode import Count, Number, Positive, Section, decode, is_unicode, read_toml, takes_list
from inexact_muon_lab.spec.spec import RunSpec, overlaid

LEAST_PILOT = 3
"""Minimum number of pilot seeds; with fewer than six, many more are needed later."""
DECLARED = ("decide", "compare")
"""Tables of a study file that are written before its runs and kept in its store."""
MOST_RUNS = 100_000
"""Larger studies are rejected before any run is built."""


class Decide(Section, frozen=True):
    """The claims that a study decides, declared before its runs: the table [decide] of its file.

    The seeds of the file are the pilot. Each claim then gets the number of seeds that Stein's rule gives for its
    half-width from the pilot's spread, at the level LEVEL / (size of the family).
    """

    family: Annotated[tuple[str, ...], Meta(min_length=1)]
    """Claims that are judged together on one page; ids of `report.claims`."""
    width: Annotated[dict[str, Positive], Meta(min_length=1)]
    """Claim -> half-width that the interval of its statistic should have."""
    margin: dict[str, Positive] = msgspec.field(default_factory=dict)
    """Claim -> the smallest effect that counts: a claim whose effect is surely smaller is refuted."""
    most: Count = 40
    """Maximum number of seeds of a claim; claims that need more are not decided."""
    pilot: tuple[Number, ...] = ()
    """Default: all seeds of the file."""

    def __post_init__(self) -> None:
        for name in (*self.width, *self.margin):
            if name not in self.family:
                raise ValueError(f"decide: {name!r} is not in the family; add it there")


class _Study(Section, frozen=True, kw_only=True):
    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    title: str = ""
    figure: str = ""
    """The figure or table of the paper that this reproduces."""
    decide: Decide | None = None
    compare: Compare | None = None
    """Arms, in place of a grid: each is a run, with every seed."""


class Study(_Study, frozen=True, kw_only=True):
    """A study file as written; `plan` expands it."""

    base: dict[str, Any]
    seeds: Annotated[tuple[Number, ...], Meta(min_length=1)] = (0,)
    grid: list[dict[str, Any]] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        if self.compare and self.grid:
            raise ValueError("a study has arms ([compare]) or a grid, not both")
        if self.decide is None:
            return
        pilot = self.decide.pilot or self.seeds
        if len(set(pilot)) < LEAST_PILOT or not set(pilot) <= set(self.seeds):
            raise ValueError(f"decide: the pilot must be {LEAST_PILOT} or more of the seeds, got {list(pilot)}")
        msgspec.structs.force_setattr(self, "decide", msgspec.structs.replace(self.decide, pilot=pilot))


class StudyRuns(_Study, frozen=True, kw_only=True):
    """An expanded study: its runs in order, and the dotted fields in which they differ."""

    varied: tuple[str, ...]
    runs: tuple[RunSpec, ...]

    @property
    def declared(self) -> dict[str, Section]:
        """Its declarations by the name of their table."""
        return {name: table for name in DECLARED if (table := getattr(self, name)) is not None}


def load(path: Path, changes: dict[str, Any] | None = None) -> StudyRuns:
    """The runs of a study file.

    Args:
        changes: dotted fields -> values that override base and grid. A list replaces the grid's axis or adds one; a
            field that is a list itself takes a list of lists.
    """
    raw = read_toml(path)
    if "base" not in raw and "problem" in raw:
        raise LabError(f"{path} is one run (it has no base); use `inexact-muon run {path}`")
    return plan(decode(raw, Study, str(path)), str(path), changes)


def plan(study: Study, where: str, changes: dict[str, Any] | None = None) -> StudyRuns:
    """All combinations of every grid with every seed, each run once."""
    runs: dict[str, RunSpec] = {}
    fields: dict[str, list[Any]] = {}
    combinations = 0
    arms = study.compare.arm if study.compare else ()
    lists = [{field: [value] for field, value in arm.fields.items()} for arm in arms]
    for cells in lists or [dict(leaves(grid, where)) for grid in study.grid or [{}]]:
        axes = {**cells, "seed": list(study.seeds)}
        first = overlaid(study.base, {field: values[0] for field, values in axes.items()})
        changed = _axes(changes or {}, first)
        axes |= changed
        combinations += prod(map(len, axes.values()))
        if combinations > MOST_RUNS:
            raise LabError(
                f"{where}: the study has {combinations:,} runs or more, at most {MOST_RUNS:,} are allowed; shorten the "
                "lists of its grids or divide it into several studies"
            )
        order = sorted(axes, key=lambda field: field in changed)  # these are applied last, so that they override
        for combination in itertools.product(*axes.values()):
            chosen = dict(zip(axes, combination, strict=True))
            for field, value in chosen.items():
                fields.setdefault(field, []).append(value)
            spec = decode(overlaid(study.base, {field: chosen[field] for field in order}), RunSpec, where)
            runs[spec.id] = spec
    varied = tuple(field for field, values in fields.items() if any(v != values[0] for v in values))
    _check_arms(study.compare, runs.values(), where)
    if study.compare:  # seed by seed: an interrupted sweep has complete seeds
        runs = dict(sorted(runs.items(), key=lambda item: study.seeds.index(item[1].seed)))
    several = len(study.grid) > 1  # then a field that only some grids have varies, too
    varied = tuple(dict.fromkeys((*varied, *(f for g in study.grid if several for f, _ in leaves(g, where)))))
    same = {name: getattr(study, name) for name in _Study.__struct_fields__}
    return StudyRuns(**same, varied=varied, runs=tuple(runs.values()))


def _check_arms(compare: Compare | None, runs: Iterable[RunSpec], where: str) -> None:
    """Raise if arms differ in more than the study declares."""
    if compare is None:
        return
    first = {arm.name: spec for spec in runs if (arm := compare.arm_of(spec)) is not None}
    known = {field for spec in first.values() for field in trained(spec)}
    for field in (field for field in (*compare.of, *compare.own, *compare.held) if field not in known):
        raise LabError(f"{where}: compare: {field!r} is no field of these runs: {nearest(field, known)}")
    for arm in compare.arm:
        for name in (*filter(None, (arm.against,)), *arm.controls):
            if fields := compare.undeclared(first[arm.name], first[name]):
                raise LabError(
                    f"{where}: the arms {arm.name!r} and {name!r} differ in {', '.join(fields)}, which is neither in "
                    "`of` nor in `own` of [compare]: make it equal, or declare it"
                )


def _axes(changes: dict[str, Any], first: dict[str, Any]) -> dict[str, list[Any]]:
    """The values to try for each changed field; the tables of the grid's first run have the names of its sections."""
    raw = overlaid(first, {field: value for field, value in changes.items() if not isinstance(value, list)})
    axes = {}
    for field, value in changes.items():
        several = isinstance(value, list)
        if several and takes_list(RunSpec, raw, field):
            several = bool(value) and all(isinstance(entry, list) for entry in value)
        if several and not value:
            raise LabError(f"--set {field}=[] has no value to try: name one or more, such as {field}=[1,2]")
        axes[field] = value if several else [value]
    return axes


def leaves(table: dict[str, Any], where: str) -> Iterator[tuple[str, list[Any]]]:
    """(dotted field, values) of a grid."""
    for field, value in flat(table):
        if not (isinstance(value, list) and value):
            raise LabError(f"{where}: grid.{field} must be a list of values to try, got {value!r}")
        yield field, value


def read_changes(texts: Iterable[str]) -> dict[str, Any]:
    """["optimizer.lr=0.1", "data.path=/data"] -> values as TOML would read them; a bare word is text."""
    changes = {}
    for text in texts:
        field, equals, value = text.partition("=")
        if not equals or not field.strip():
            raise LabError(f"--set expects field=value, such as optimizer.lr=0.1, got {text!r}")
        if not is_unicode(text):
            raise LabError(f"--set {text!r} is not valid UTF-8")
        try:
            changes[field.strip()] = tomllib.loads(f"x = {value}")["x"]
        except tomllib.TOMLDecodeError:
            changes[field.strip()] = value.strip()
    return changes


def field_of(spec: RunSpec, field: str) -> Any:
    """The value of a dotted field; None if this kind of table does not have it."""
    value: Any = spec
    for name in field.split("."):
        if name == "name" and hasattr(value, "__struct_config__"):
            value = value.__struct_config__.tag
        elif isinstance(value, dict):  # the arguments of a custom problem
            value = value.get(name)
        else:
            value = getattr(value, name, None)
    return value
