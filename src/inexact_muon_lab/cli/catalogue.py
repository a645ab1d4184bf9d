"""Comparison of all oracles, cost and error, as a table; computed from the coefficients, in exact arithmetic."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from inexact_muon import polar
from inexact_muon.inexactness import predict
from inexact_muon_lab.tune.spectra import SPECTRA

LOWERS = (1e-1, 1e-2, 1e-3, 1e-4)
SIDE = 1024
"""Short side of the spectra for gap and overshoot."""

METHODS: tuple[polar.PolarMethod, ...] = (
    *(polar.NewtonSchulz(5, degree=degree) for degree in (3, 5, 7, 9)),
    polar.NewtonSchulz(10),
    *(polar.Jordan(steps) for steps in (3, 5, 8)),
    *(polar.You(5), polar.You(6)),
    polar.Cesista(5),
    *(polar.PolarExpress(steps) for steps in range(1, 9)),
    polar.PolarExpress(4, degree=(3, 9, 9, 9)),
    *(polar.Cans(steps) for steps in range(3, 8)),
    *(polar.Zolotarev(poles) for poles in range(1, 9)),
    *(polar.Zolotarev(4, lower=1e-4), polar.ExactSVD()),
)


@dataclass(frozen=True)
class CatalogueRow:
    """One oracle: its error bound at each of LOWERS (relative to its own normaliser), gap and overshoot on each of the
    spectra, and the cost of an n x n and an n x 4n matrix in n x n x n products."""

    method: str
    family: str
    delta: dict[str, float]
    gap: dict[str, float]
    overshoot: dict[str, float]
    square: float
    wide: float


def row(method: polar.PolarMethod) -> CatalogueRow:
    """The numbers of one oracle."""
    predicted = {name: predict(method, spectrum(SIDE)) for name, spectrum in SPECTRA.items()}
    return CatalogueRow(
        method=str(method),
        family=method.name,
        delta={f"{lower:.0e}": method.error_bound(lower) for lower in LOWERS},
        gap={name: p.gap for name, p in predicted.items()},
        overshoot={name: p.overshoot for name, p in predicted.items()},
        square=method.flops(SIDE, SIDE) / (2 * SIDE**3),
        wide=method.flops(SIDE, 4 * SIDE) / (2 * SIDE**3),
    )


def rows() -> list[CatalogueRow]:
    """All rows, in the order of METHODS."""
    return [row(method) for method in METHODS]


def header() -> list[str]:
    """Column titles of `cells`."""
    deltas = [f"delta {lower:.0e}" for lower in LOWERS]
    spectra = [f"{quantity} {name}" for quantity in ("gap", "overshoot") for name in SPECTRA]
    return ["oracle", *deltas, *spectra, "n x n", "n x 4n"]


def cells(r: CatalogueRow) -> list[str]:
    """A row as text, in the order of `header`."""
    numbers = [*r.delta.values(), *r.gap.values(), *r.overshoot.values()]
    return [r.method, *(_number(x) for x in numbers), f"{r.square:.1f}", f"{r.wide:.1f}"]


def _number(x: float) -> str:
    if abs(x) < 5e-16:
        return "0"
    return f"{x:.4f}" if abs(x) >= 1e-3 else f"{x:.1e}"


def markdown(table: Iterable[CatalogueRow]) -> str:
    """The table in Markdown."""
    lines = [header(), ["---", *["---:"] * (len(header()) - 1)], *(cells(r) for r in table)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def save(table: list[CatalogueRow], directory: Path) -> list[Path]:
    """Write oracles.md and oracles.json; returns their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    page, data = directory / "oracles.md", directory / "oracles.json"
    page.write_text(markdown(table))
    data.write_text(json.dumps([asdict(r) for r in table], indent=1) + "\n")
    return [page, data]
