"""The study of the bounds: every statement on every problem and oracle, as tables and a picture.

`python studies/theory/study.py --out docs/figures` takes about two minutes on one core.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import altair as alt
import torch
from rich.progress import track

sys.path.insert(0, str(Path(__file__).parent))
from broximal import broximal_step

from inexact_muon import lmo
from inexact_muon.lmo import Perturbed
from inexact_muon_lab import theory
from inexact_muon_lab.bounds import verify
from inexact_muon_lab.bounds.cases import EXACT, QUADRATIC, cases, measure

HORIZONS = (1.0, *(10.0**k for k in range(2, 11)))


def optima(delta: float = 0.1, horizons: Iterable[float] = HORIZONS) -> list[dict[str, Any]]:
    """Formula against numerical minimum for D0 = L = rho sigma = 1, paper's and two-number, for each K."""
    found = []
    for K in horizons:
        pairs: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[float, ...]]] = {
            "paper": (theory.stochastic_optimal, theory.stochastic_minimum, (delta,)),
            "two numbers": (
                theory.measured_stochastic_optimal,
                theory.measured_stochastic_minimum,
                (delta, 1.0 + delta),
            ),
        }
        for kind, (formula, search, error) in pairs.items():
            f, s = (find(1.0, 1.0, K, 1.0, *error) for find in (formula, search))
            found.append(
                {"kind": kind, "K": K, "gamma": f.gamma / s.gamma - 1.0, "alpha": f.alpha / s.alpha - 1.0}
                | {"bound": f.bound / s.bound - 1.0, "least bound": s.bound, "clipped": f.clipped}
            )
    return found


def ideals(radius: float = 0.2) -> list[dict[str, Any]]:
    """The ball-proximal point method against LMO steps of the same length: loss after as many steps as it needs."""
    found = []
    for name, ball in {"spectral": EXACT, "sign": lmo.Sign(), "euclidean": lmo.Euclidean()}.items():
        x, steps = QUADRATIC.start, 0
        while float(QUADRATIC.loss(x)) > 1e-10:
            x, steps = broximal_step(QUADRATIC, ball, x, radius), steps + 1
        losses = {}
        for label, oracle in {"exact LMO": ball, "delta 0.3": Perturbed(ball, 0.3)}.items():
            losses[label] = float(verify.follow(QUADRATIC, oracle, steps, lambda *_: radius).loss[-1, 0])
        start = QUADRATIC.initial_gap
        found.append({"ball": name, "radius": radius, "steps": steps} | {k: v / start for k, v in losses.items()})
    return found


def grouped(rows: list[dict[str, Any]], key: str) -> dict[str, list[dict[str, Any]]]:
    """Rows by the value of a key, in order of appearance."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row[key], []).append(row)
    return found


def markdown(data: dict[str, Any]) -> str:
    """All tables."""
    rows = data["rows"]
    parts = [
        "Written by `make study-theory`. Ratios are bound / measured left side: 1 is tight. `two numbers` is our bound",
        f"on the same run. Rows: {len(rows)}; that hold: {sum(r['holds'] for r in rows)}; that hold by more than half",
        f"of the 95 % interval: {sum(r['sure'] for r in rows)}.",
        "",
        "## How loose, by statement and problem",
        "",
        _table(
            ["statement", "problem", "runs", "paper / measured", "two numbers / measured", "paper refused"],
            (_loose(statement, problem, group) for statement, some in grouped(rows, "statement").items()
             for problem, group in grouped(some, "problem").items()),
        ),
        "## How much tighter the two numbers are: paper / two numbers, by oracle",
        "",
        _tighter(rows),
        "## Formula against minimum: relative difference, D0 = L = rho sigma = 1, delta = 0.1",
        "",
        _table(
            ["bound", "K", "gamma", "alpha", "bound above its minimum", "least bound", "alpha clipped"],
            ([o["kind"], f"{o['K']:.0e}", *(_difference(o[q]) for q in ("gamma", "alpha", "bound")),
              f"{o['least bound']:.4g}", "yes" if o["clipped"] else ""] for o in data["optima"]),
        ),
        "## The ideal: ball-proximal points on the quadratic, and LMO steps of the same radius",
        "",
        "f / f(x^0) of LMO steps after as many steps as the ball-proximal point method needed to reach the minimum.",
        "",
        _table(
            ["ball", "radius", "ball-proximal steps", "exact LMO", "delta 0.3"],
            ([o["ball"], f"{o['radius']:g}", str(o["steps"]), f"{o['exact LMO']:.2e}", f"{o['delta 0.3']:.2e}"]
             for o in data["ideals"]),
        ),
    ]  # fmt: skip
    return "\n".join(parts).rstrip() + "\n"


def _loose(statement: str, problem: str, group: list[dict[str, Any]]) -> list[str]:
    spread = []
    for kind in ("paper", "ours"):
        ratios = [r[kind] / r["left"] for r in group if r[kind] is not None and r["left"] > 0.0]
        spread.append(f"{min(ratios):.3g} to {max(ratios):.3g}" if ratios else "none")
    refused = sum(r["paper"] is None for r in group)
    return [statement, problem, str(len(group)), *spread, str(refused or "")]


def _tighter(rows: list[dict[str, Any]]) -> str:
    shown = (
        "Theorem 1",
        "Corollary 2, two numbers",
        "Theorem 3, two numbers",
        "Theorem 2",
        "Lemma 1",
        "Theorem 4",
        "Theorem 5, two numbers",
    )
    lines = []
    for oracle, group in grouped([r for r in rows if r["problem"] in ("quadratic", "exponential")], "oracle").items():
        by = {r["statement"]: r for r in group}
        cells = [_ratio(by[s]["paper"], by[s]["ours"]) if s in by else "" for s in shown]
        lines.append([oracle, *cells])
    return _table(["oracle", *shown], lines)


def _difference(x: float) -> str:
    return "0" if abs(x) < 1e-12 else f"{x:+.2e}"


def _ratio(paper: float | None, ours: float) -> str:
    return "refused" if paper is None else f"{paper / ours:.3g}"


def _table(header: list[str], lines: Iterable[list[str]]) -> str:
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "".join("| " + " | ".join(line) + " |\n" for line in (header, rule, *lines))


def figure(data: dict[str, Any]) -> Any:
    """Looseness by statement, tightening by oracle, and the optimum's formula against its minimum."""
    right = alt.vconcat(_by_oracle(data["rows"]), _optima(data["optima"])).resolve_scale(shape="independent")
    return alt.hconcat(_looseness(data["rows"]), right)


def _looseness(rows: list[dict[str, Any]]) -> Any:
    names = {"paper": "paper", "ours": "two numbers"}
    values = [
        {"statement": r["statement"], "bound": label, "ratio": min(r[kind] / r["left"], 1e4), "oracle": r["oracle"]}
        for r in rows
        for kind, label in names.items()
        if r[kind] is not None and r["left"] > 0.0
    ]
    chart = alt.Chart(alt.Data(values=values), title="Bound / measured (1 is tight; above 1e4 drawn there)")
    return chart.mark_tick(thickness=2, opacity=0.6).encode(
        x=alt.X("ratio:Q", scale=alt.Scale(type="log", domain=[1, 1e4]), title="bound / measured left side"),
        y=alt.Y("statement:N", sort=list(grouped(rows, "statement")), title=None),
        yOffset=alt.YOffset("bound:N"),
        color=_colour(),
        tooltip=["oracle:N", "ratio:Q"],
    ).properties(width=380, height=alt.Step(13))  # fmt: skip


def _by_oracle(rows: list[dict[str, Any]]) -> Any:
    chosen = [
        r for r in rows if r["statement"] in ("Theorem 2", "Corollary 2, two numbers") and r["problem"] == "quadratic"
    ]
    values = [
        {"oracle": r["oracle"], "statement": r["statement"], "ratio": r["paper"] / r["ours"]}
        for r in chosen
        if r["paper"] is not None
    ]
    chart = alt.Chart(alt.Data(values=values), title="How much smaller the two-number bound is, on the quadratic")
    return chart.mark_point(filled=True, size=60, opacity=0.9).encode(
        x=alt.X("ratio:Q", scale=alt.Scale(type="log", domainMin=1), title="paper / two numbers"),
        y=alt.Y("oracle:N", sort=list(grouped(rows, "oracle")), title=None),
        shape=alt.Shape("statement:N", title=None),
    ).properties(width=380, height=alt.Step(16))  # fmt: skip


def _optima(table: list[dict[str, Any]]) -> Any:
    values = [
        {"bound": o["kind"], "K": o["K"], "quantity": quantity, "difference": max(abs(o[quantity]), 1e-9)}
        for o in table
        if not o["clipped"]
        for quantity in ("gamma", "alpha", "bound")
    ]
    chart = alt.Chart(alt.Data(values=values), title="Optimum by formula against the numerical minimum")
    base = chart.encode(
        x=alt.X("K:Q", scale=alt.Scale(type="log"), axis=alt.Axis(format=".0e", values=list(HORIZONS[1::2]))),
        y=alt.Y("difference:Q", scale=alt.Scale(type="log"), axis=alt.Axis(format=".0e"), title="relative difference"),
        color=_colour(),
        detail="quantity:N",
    )
    points = base.mark_point(filled=True, size=50).encode(shape=alt.Shape("quantity:N", title=None))
    return (base.mark_line(opacity=0.5) + points).properties(width=380, height=230)


def _colour() -> Any:
    return alt.Color(
        "bound:N", title=None, scale=alt.Scale(domain=["paper", "two numbers"], range=["#1f77b4", "#ff7f0e"])
    )


def save(data: dict[str, Any], directory: Path) -> list[Path]:
    """Writes theory.md, theory.json, theory.svg and theory.png; returns their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = [directory / f"theory.{suffix}" for suffix in ("md", "json", "svg", "png")]
    paths[0].write_text(markdown(data))
    paths[1].write_text(json.dumps(data, indent=1) + "\n")
    chart = figure(data)
    chart.save(str(paths[2]))
    chart.save(str(paths[3]))
    return paths


def main() -> None:
    """The command: runs the whole study and writes its tables and its picture."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    torch.set_num_threads(1)
    rows = measure(track(list(cases()), description="verifying"))
    data = {"rows": rows, "optima": optima(), "ideals": ideals()}
    broken = [r for r in rows if not r["holds"]]
    for r in broken:
        print(f"does not hold: {r}")
    print("written: " + ", ".join(str(path) for path in save(data, out)))
    if broken:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
