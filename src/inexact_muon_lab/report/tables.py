"""Tables beside the stores: JSON results of studies that are not sweeps, validated against these types."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, TypeVar

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from inexact_muon_lab.report import sources
from inexact_muon_lab.store.store import REFERENCE

T = TypeVar("T")
Positive = Annotated[float, Meta(gt=0.0)]


class Bound(Struct, frozen=True):
    """One statement on one run: the measured left side ("left" in the file), half of its 95 % interval, both bounds."""

    statement: str
    problem: str
    oracle: str
    measured: float = field(name="left")
    margin: float
    paper: float | None
    ours: float | None


class Theory(Struct, frozen=True):
    """theory.json; `origin` says who measured, if not the author of the page, in every table."""

    rows: list[Bound]
    origin: str = ""


class Carried(Struct, frozen=True):
    """A rule's values for a target, and their regret against the target's own best."""

    rule: str
    lr: Positive
    alpha: Positive
    loss: float | None
    regret: float | None


class Best(Struct, frozen=True):
    """A target's own best on the grid."""

    lr: Positive
    alpha: Positive
    loss: float


class Target(Struct, frozen=True):
    """An oracle to which the tuned values are transferred; its optimum may lie outside of the grid if on its edge."""

    target: str
    best: Best
    rules: list[Carried]
    on_edge: bool = False


class RuleRegret(Struct, frozen=True):
    """Mean regret of a rule with its interval, as computed by the study."""

    rule: str
    regret_mean: float
    regret_low: float
    regret_high: float


class Cotuned(Struct, frozen=True):
    """One problem of cotuning.json."""

    problem: str
    source: str
    rules: list[RuleRegret]
    targets: list[Target]
    title: str = ""
    origin: str = ""


class Cotuning(Struct, frozen=True):
    """cotuning.json."""

    format: Literal["inexact-muon/cotuning/1"]
    problems: list[Cotuned]
    origin: str = ""


AtLower = TypedDict("AtLower", {"1e-03": float})
"""A number for singular values down to 1e-3."""
OnSpectrum = TypedDict("OnSpectrum", {"power-law": float})
"""A number on singular values j^-1."""


class OracleRow(Struct, frozen=True):
    """One row of oracles.json."""

    method: str
    family: str
    square: float
    delta: AtLower
    gap: OnSpectrum
    overshoot: OnSpectrum


@dataclass(frozen=True)
class Tables:
    """All tables, and a sentence on each file that could not be used."""

    theory: tuple[Theory, ...] = ()
    cotuning: tuple[Cotuned, ...] = ()
    oracles: tuple[OracleRow, ...] = ()
    problems: tuple[str, ...] = ()


NAMES = {"theory.json": sources.THEORY, "cotuning*.json": sources.COTUNING, "oracles.json": sources.ORACLES}
"""File names, and the commands that produce them."""


def find(folder: Path, names: Iterable[str] = NAMES) -> list[Path]:
    """The tables in a folder and up to two levels below it, except reference evidence; none in a packed file."""
    if not folder.is_dir():
        return []
    paths = (path for name in names for depth in ("", "*/", "*/*/") for path in sorted(folder.glob(depth + name)))
    return [path for path in paths if folder / REFERENCE not in path.parents]


def read(folder: Path, origin: str = "") -> Tables:
    """The tables of a folder; malformed or foreign files are reported as sentences.

    Args:
        origin: who measured, for tables without an origin.
    """
    problems: list[str] = []

    def every(name: str, kind: type[T]) -> Iterator[tuple[str, T]]:
        for path in find(folder, (name,)):
            try:
                table = decode(path.read_bytes(), kind)
            except (OSError, ValueError, OverflowError, RecursionError) as error:
                why = str(error).splitlines()[0] if str(error) else type(error).__name__
                problems.append(f"{path} is left out: {why}. What makes it: {NAMES[name]}")
                continue
            subfolder = str(path.parent.relative_to(folder))
            yield getattr(table, "origin", "") or origin or (subfolder if subfolder != "." else ""), table

    return Tables(
        theory=tuple(replace(t, origin=o) for o, t in every("theory.json", Theory)),
        cotuning=tuple(replace(p, origin=o) for o, t in every("cotuning*.json", Cotuning) for p in t.problems),
        oracles=tuple(row for _, t in every("oracles.json", list[OracleRow]) for row in t),
        problems=tuple(problems),
    )


def decode(content: bytes, kind: type[T]) -> T:
    """JSON of a kind; numbers that are not finite count as missing."""

    def number(text: str) -> float | None:
        value = float(text)
        return value if isfinite(value) else None

    plain: Any = json.loads(content, parse_float=number, parse_constant=lambda _: None)
    return msgspec.convert(plain, kind)


def named(name: str, origin: str) -> str:
    """The subject of a table, and its origin if it is not the report's own folder."""
    return f"{name} ({origin})" if origin else name
