"""Cases of the study of the bounds: statements by problem and oracle. `studies/theory` plots them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import partial
from math import inf
from typing import Any

from inexact_muon import lmo, polar
from inexact_muon.lmo import Ball, Spectral
from inexact_muon_lab.bounds import verify
from inexact_muon_lab.bounds.verify import BoundRow
from inexact_muon_lab.experiments.perturbed import Perturbed
from inexact_muon_lab.problems.blocks import Blocks
from inexact_muon_lab.problems.matrix import Exponential, Logistic, Quadratic

EXACT = Spectral(polar=polar.ExactSVD())
ORACLES: dict[str, Ball] = {
    "exact": EXACT,
    "delta 0.1, random": Perturbed(EXACT, 0.1),
    "delta 0.5, random": Perturbed(EXACT, 0.5),
    "delta 0.5, worst": Perturbed(EXACT, 0.5, "worst"),
    "polar-express:5": Spectral(polar=polar.PolarExpress(5)),
    "polar-express:3": Spectral(polar=polar.PolarExpress(3)),
    "polar-express:2": Spectral(polar=polar.PolarExpress(2)),
    "jordan:5": Spectral(polar=polar.Jordan(5)),
    "newton-schulz:5": Spectral(polar=polar.NewtonSchulz(5)),
}
OTHERS: dict[str, Ball] = {
    "sign": lmo.Sign(),
    "sign, delta 0.3, worst": Perturbed(lmo.Sign(), 0.3, "worst"),
    "euclidean, delta 0.3": Perturbed(lmo.Euclidean(), 0.3),
    "col-norm, delta 0.3": Perturbed(lmo.ColNorm(), 0.3),
    "row-norm, delta 0.3": Perturbed(lmo.RowNorm(), 0.3),
    "nuclear, 3 power steps": lmo.Nuclear(steps=3),
}
LAYERS: dict[str, tuple[Ball, ...]] = {
    "exact": (EXACT, lmo.Sign(), lmo.ColNorm()),
    "polar-express:3 + sign 0.3 + row-norm 0.1": (
        ORACLES["polar-express:3"],
        Perturbed(lmo.Sign(), 0.3, "worst"),
        Perturbed(lmo.RowNorm(), 0.1),
    ),
    "delta 0.8 + 0.01 + 0.2": (Perturbed(EXACT, 0.8), Perturbed(EXACT, 0.01), Perturbed(lmo.Euclidean(), 0.2)),
}
FAST = ("polar-express:5", "polar-express:2", "sign")
"""Oracles that the demo checks, on the quadratic only: all statements in ten seconds."""
QUADRATIC, LOGISTIC, EXPONENTIAL = Quadratic(6, 4), Logistic(6, 4), Exponential(5, 4)
STEPS, SHORT, RUNS, SIGMA = 200, 20, 64, 1.0


Case = partial[Iterator[BoundRow]]
"""A function of `verify`, its problem and what else it takes."""


def cases(fast: bool = False) -> Iterator[tuple[str, Case]]:
    """(oracle, function that computes its rows), one per run of the study; `fast`: only those of FAST."""
    for name, ball in {**ORACLES, **OTHERS}.items():
        if fast and name not in FAST:
            continue
        for problem in (QUADRATIC, LOGISTIC) if name in ORACLES and not fast else (QUADRATIC,):
            yield name, partial(verify.deterministic, problem, ball, STEPS)
            yield name, partial(verify.stochastic, problem, ball, STEPS, SIGMA, RUNS, 0.3)
        if name in ORACLES:
            yield name, partial(verify.smooth, EXPONENTIAL, ball, SHORT)
    for name, balls in LAYERS.items():
        yield name, partial(verify.layerwise, Blocks(), balls, SHORT)


def measure(chosen: Iterable[tuple[str, Case]]) -> list[dict[str, Any]]:
    """The rows of these cases as plain data; a bound that the paper does not have is null."""
    rows = []
    for oracle, case in chosen:
        for row in case():
            plain = {"statement": row.statement, "problem": case.args[0].name, "oracle": oracle, **asdict(row)}
            plain |= {"holds": bool(row.holds), "sure": bool(row.sure)}
            rows.append({key: None if value == inf else value for key, value in plain.items()})
    return rows
