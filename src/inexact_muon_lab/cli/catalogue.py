"""Comparison of all oracles, cost and error, as a table and a picture.

All numbers are computed on demand from the coefficients, in exact arithmetic.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from inexact_muon.inexactness import predict
from inexact_muon.polar import (
    Cans,
    Cesista,
    ExactSVD,
    Jordan,
    NewtonSchulz,
    PolarExpress,
    PolarMethod,
    You,
    Zolotarev,
)
from inexact_muon.schedules.oracles import parts
from inexact_muon.schedules.spectra import SPECTRA

LOWERS = (1e-1, 1e-2, 1e-3, 1e-4)
SIDE = 1024
"""Short side of the spectra for gap and overshoot."""

METHODS: tuple[PolarMethod, ...] = (
    *(NewtonSchulz(5, degree=degree) for degree in (3, 5, 7, 9)),
    NewtonSchulz(10),
    *(Jordan(steps) for steps in (3, 5, 8)),
    You(5),
    You(6),
    Cesista(5),
    *(PolarExpress(steps) for steps in range(1, 9)),
    PolarExpress(4, degree=(3, 9, 9, 9)),
    *(Cans(steps) for steps in range(3, 8)),
    *(Zolotarev(poles) for poles in range(1, 9)),
    Zolotarev(4, lower=1e-4),
    ExactSVD(),
)


@dataclass(frozen=True)
class CatalogueRow:
    """One oracle.

    Attributes:
        delta: error bound at each of LOWERS, relative to the method's own normaliser.
        gap: fraction of descent lost on each of the three spectra.
        overshoot: norm of the output on each of them.
        square, wide: cost of an n x n and an n x 4n matrix in n x n x n products.
    """

    method: str
    family: str
    delta: dict[str, float]
    gap: dict[str, float]
    overshoot: dict[str, float]
    square: float
    wide: float


def row(method: PolarMethod) -> CatalogueRow:
    """The numbers of one oracle."""
    predicted = {name: predict(method, spectrum(SIDE)) for name, spectrum in SPECTRA.items()}
    unit = 2 * SIDE**3
    return CatalogueRow(
        method=str(method),
        family=method.name,
        delta={f"{lower:.0e}": method.error_bound(lower) for lower in LOWERS},
        gap={name: p.gap for name, p in predicted.items()},
        overshoot={name: p.overshoot for name, p in predicted.items()},
        square=method.flops(SIDE, SIDE) / unit,
        wide=method.flops(SIDE, 4 * SIDE) / unit,
    )


def rows(methods: Iterable[PolarMethod] = METHODS) -> list[CatalogueRow]:
    """All rows, in the order of METHODS."""
    return [row(method) for method in methods]


def header() -> list[str]:
    """Column titles of `cells`."""
    return [
        "oracle",
        *(f"delta {lower:.0e}" for lower in LOWERS),
        *(f"{quantity} {name}" for quantity in ("gap", "overshoot") for name in SPECTRA),
        "n x n",
        "n x 4n",
    ]


def cells(r: CatalogueRow) -> list[str]:
    """A row as text, in the order of `header`."""
    numbers = [*r.delta.values(), *r.gap.values(), *r.overshoot.values()]
    return [r.method, *(_number(x) for x in numbers), f"{r.square:.1f}", f"{r.wide:.1f}"]


def markdown(table: Iterable[CatalogueRow]) -> str:
    """The table in Markdown."""
    lines = [header(), ["---", *["---:"] * (len(header()) - 1)], *(cells(r) for r in table)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def records(table: Iterable[CatalogueRow]) -> list[dict[str, Any]]:
    """The table as plain data."""
    return [asdict(r) for r in table]


def _number(x: float) -> str:
    if abs(x) < 5e-16:
        return "0"
    return f"{x:.4f}" if abs(x) >= 1e-3 else f"{x:.1e}"


FAMILIES = {
    "newton-schulz": "#7f7f7f",
    "jordan": "#d62728",
    "you": "#ff7f0e",
    "cesista": "#bcbd22",
    "cans": "#17becf",
    "polar-express": "#1f77b4",
    "zolotarev": "#2ca02c",
    "exact-svd": "#000000",
}
"""Colour of each family in the picture."""

CURVES = (NewtonSchulz(5), Jordan(5), You(6), PolarExpress(3), PolarExpress(5), PolarExpress(7), Zolotarev(3))
FLOOR = 1e-9
"""Smaller errors are plotted at this value."""


def figure(table: list[CatalogueRow]) -> Any:
    """Two panels: error against cost, error against the smallest singular value."""
    import altair as alt

    return alt.hconcat(_by_cost(alt, table), _by_lower(alt)).resolve_scale(color="independent")


def _by_cost(alt: Any, table: list[CatalogueRow]) -> Any:
    values = [
        {
            "family": r.family,
            "method": r.method,
            "count": str(parts(r.method).iterations),
            "products": r.square,
            "delta": max(r.delta["1e-03"], FLOOR),
        }
        for r in table
        if r.square <= 25 and parts(r.method).plain
    ]
    base = alt.Chart(alt.Data(values=values), title="Error bound at lower = 1e-3, by steps or poles").encode(
        x=alt.X("products:Q", title="cost of a square matrix, in n x n x n products"),
        y=_delta(alt),
        color=_family(alt),
        tooltip=["method:N", "products:Q", "delta:Q"],
    )
    points = base.mark_point(filled=True, size=45, opacity=1)
    labels = base.mark_text(dx=9, dy=-5, fontSize=10).encode(text="count:N")
    return (base.mark_line(opacity=0.4) + points + labels).properties(width=400, height=300)


def _by_lower(alt: Any) -> Any:
    values = [
        {"method": str(method), "lower": float(lower), "delta": max(method.error_bound(float(lower)), FLOOR)}
        for method in CURVES
        for lower in np.geomspace(1e-5, 1.0, 121)
    ]
    chart = alt.Chart(alt.Data(values=values), title="Error bound, by the smallest singular value").mark_line()
    return chart.encode(
        x=alt.X(
            "lower:Q",
            title="smallest singular value / normaliser",
            scale=alt.Scale(type="log"),
            axis=alt.Axis(format=".0e", values=[10.0**-k for k in range(6)]),
        ),
        y=_delta(alt),
        color=alt.Color("method:N", title="oracle", scale=alt.Scale(scheme="category10")),
    ).properties(width=400, height=300)


def _delta(alt: Any) -> Any:
    axis = alt.Axis(format=".0e", values=[10.0**-k for k in range(10)])
    return alt.Y("delta:Q", title="delta", scale=alt.Scale(type="log", domain=[FLOOR, 2]), axis=axis)


def _family(alt: Any) -> Any:
    scale = alt.Scale(domain=list(FAMILIES), range=list(FAMILIES.values()))
    return alt.Color("family:N", title="family", scale=scale)


def save(table: list[CatalogueRow], directory: Path) -> list[Path]:
    """Write oracles.md, oracles.json and oracles.png; returns their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = [directory / f"oracles.{suffix}" for suffix in ("md", "json", "png")]
    paths[0].write_text(markdown(table))
    paths[1].write_text(json.dumps(records(table), indent=1) + "\n")
    figure(table).save(str(paths[2]), scale_factor=1.5)
    return paths
