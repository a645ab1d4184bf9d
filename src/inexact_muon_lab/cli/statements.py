"""Output of `inexact-muon theory`: the table of statements, one statement at given values, its plot over delta."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from inexact_muon._text import nearest
from inexact_muon.sheet import Row, Sheet
from inexact_muon_lab.extras import check_picture, require
from inexact_muon_lab.terminal import write_json
from inexact_muon_lab.theory import BOUNDS, Statement, StochasticOptimum

EXAMPLE: dict[str, Any] = (
    dict.fromkeys(("D0", "L", "L0", "L1", "rho_sigma", "f", "dual", "dual_momentum", "previous"), 1.0)
    | dict.fromkeys(("kappa", "Lambda", "r"), 1.0)
    | dict.fromkeys(("alpha", "delta", "eps", "gap", "error", "error_next", "delta_previous", "lower"), 0.1)
    | {"K": 1000.0, "k": 0.0, "p": 0.0, "q": 1.2, "n": 768.0, "m": 3072.0, "steps": 5.0, "degree": 5.0}
    | {"gamma": 0.01, "gamma_previous": 0.01, "overshoot": 1.1, "overshoot_previous": 1.1, "ball": "spectral"}
    | {"deltas": [0.1, 0.2], "gaps": [0.1, 0.2], "overshoots": [1.1, 1.2], "errors": [1.0, 1.0], "Ls": [1.0, 2.0]}
    | {"gammas": [0.02, 0.01], "alphas": [0.2, 0.1], "sigmas": [1.0, 0.3, 0.1, 0.03]}
)
"""Values of parameters that are not set; shown as assumed."""

COLUMNS = ("name", "source", "kind", "statement")


def show_all(console: Console, as_json: bool = False) -> None:
    """All statements: name, source, kind, formula."""
    listed = [_about(s) for s in BOUNDS.values()]
    if as_json:
        write_json(listed)
        return
    title = f"{len(BOUNDS)} statements; `inexact-muon theory NAME --set delta=0.1` evaluates one"
    rows = [Row([*about.values()]) for about in listed]
    Sheet(title, COLUMNS, rows, aligned_left=COLUMNS, prose=("statement",)).print(console)


def _about(s: Statement) -> dict[str, str]:
    return {column: getattr(s, column) for column in COLUMNS}


def show(name: str, settings: tuple[str, ...], plot: Path | None, console: Console, as_json: bool = False) -> None:
    """One statement at the given values, and optionally its plot over delta."""
    s = find(name)
    chosen = read_settings(s, settings)
    values = {p: chosen.get(p, EXAMPLE[p]) for p in parameters(s)}
    result = evaluate(s, values)
    if plot:
        draw(s, values, plot)
    if as_json:
        assumed = [p for p in values if p not in chosen]
        write_json({**_about(s), "values": values, "assumed": assumed, "result": dict(fields(s, result))})
        return
    console.print(f"{s.name}: {s.source}, {s.kind}", markup=False, highlight=False)
    console.print(s.statement, markup=False, highlight=False, soft_wrap=True)
    rows = [Row([p + ("" if p in chosen else " (assumed)"), text(value)]) for p, value in values.items()]
    parts = [Row([field, text(value)]) for field, value in fields(s, result)]
    columns = ("quantity", "value")
    Sheet("", columns, [*rows, *parts], aligned_left=("quantity",), prose=("value",), closing=len(parts)).print(console)
    if isinstance(result, StochasticOptimum) and result.clipped:
        console.print("alpha is clipped to 1 (no momentum): the formula gives 1 or more, or there is no noise")
    if plot:
        console.print(f"written: {plot}", soft_wrap=True)


def evaluate(s: Statement, values: dict[str, Any]) -> Any:
    """The statement at these values; raises ValueError if one, or an intermediate result, is out of range."""
    try:
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            return s.function(**values)
    except (ArithmeticError, MemoryError, RuntimeError):
        point = ", ".join(f"{p}={text(value)}" for p, value in values.items())
        raise ValueError(
            f"{s.name} is outside the range of floating point numbers at {point}: choose values closer to 1"
        ) from None


def find(name: str) -> Statement:
    """The statement of this name, with hyphens or underscores."""
    key = name.replace("_", "-")
    if key not in BOUNDS:
        raise ValueError(f"unknown statement {name!r}: {nearest(key, BOUNDS)}; `inexact-muon theory list` shows them")
    return BOUNDS[key]


def parameters(s: Statement) -> list[str]:
    """Names of its arguments."""
    return list(inspect.signature(s.function).parameters)


def read_settings(s: Statement, settings: tuple[str, ...]) -> dict[str, Any]:
    """("delta=0.1", "deltas=0.1,0.2" or "deltas=[0.1, 0.2]") as values."""
    values: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"--set takes name=value, such as delta=0.1, got {setting!r}")
        if key not in parameters(s):
            raise ValueError(f"{s.name} has no parameter {key!r}: {nearest(key, parameters(s))}")
        example = EXAMPLE[key]
        if isinstance(example, str):
            values[key] = value
            continue
        try:
            numbers = [float(part) for part in value.removeprefix("[").removesuffix("]").split(",")]
        except ValueError:
            raise ValueError(f"{key} must be a number, or numbers with commas between them, got {value!r}") from None
        if not all(map(isfinite, numbers)):
            raise ValueError(f"{key} must be finite, got {value!r}")
        if len(numbers) != 1 and not isinstance(example, list):
            raise ValueError(f"{key} is one number, got {value!r}")
        values[key] = numbers if isinstance(example, list) else numbers[0]
    return values


def fields(s: Statement, result: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a result by name; a plain number has the kind of its statement."""
    if hasattr(result, "_asdict"):
        yield from result._asdict().items()
    elif isinstance(result, tuple):
        yield from zip(("gammas", "alphas"), result, strict=True)
    else:
        yield s.kind, result


def text(value: Any) -> str:
    """A value for the table; long sequences are abbreviated."""
    if isinstance(value, str):
        return value
    shown = [f"{x:.6g}" for x in np.atleast_1d(np.asarray(value, dtype=float))]
    return ", ".join(shown if len(shown) <= 6 else [*shown[:4], "...", shown[-1]])


def curves(s: Statement, values: dict[str, Any]) -> list[dict[str, Any]]:
    """The statement and its counterpart at each delta; the two-number one at (gap, overshoot) = (delta, 1 + delta)."""
    other = s.name.removeprefix("measured-") if s.source == "ours" else f"measured-{s.name}"
    rows = []
    for statement in (s, *([BOUNDS[other]] if other in BOUNDS else [])):
        label = "two numbers (delta, 1 + delta)" if statement.source == "ours" else "paper"
        needed = parameters(statement)
        fixed = {p: values.get(p, EXAMPLE[p]) for p in needed}
        for delta in np.linspace(0.0, 0.95, 96).tolist():
            varied = {"delta": delta, "gap": delta, "overshoot": 1.0 + delta}
            varied |= {f"{p}s": [x] * len(fixed[f"{p}s"]) for p, x in varied.items() if f"{p}s" in fixed}
            result = evaluate(statement, {p: varied.get(p, fixed[p]) for p in needed})
            rows += [
                {"curve": label, "delta": delta, "quantity": field, "value": float(value)}
                for field, value in fields(statement, result)
                if np.ndim(value) == 0
            ]
    return rows


def draw(s: Statement, values: dict[str, Any], path: Path) -> None:
    """Plot each quantity of the statement over delta."""
    check_picture(path)
    if not {"delta", "gap", "deltas", "gaps"} & set(parameters(s)):
        raise ValueError(f"{s.name} does not depend on delta: there is nothing to draw")
    alt = require("altair", "lab")
    rows = curves(s, values)
    if not rows:
        raise ValueError(f"{s.name} gives a sequence: there is no single curve to draw")
    path.parent.mkdir(parents=True, exist_ok=True)
    scale = alt.Scale(type="log" if all(row["value"] > 0 for row in rows) else "linear", zero=False, nice=False)
    chart = alt.Chart(alt.Data(values=rows)).mark_line()
    panel = chart.encode(
        x=alt.X("delta:Q", title="delta"),
        y=alt.Y("value:Q", title=None, scale=scale),
        color=alt.Color("curve:N", title=None, legend=alt.Legend(orient="bottom", labelLimit=300)),
    ).properties(width=340, height=240)
    panel.facet(alt.Facet("quantity:N", title=None), columns=3, title=f"{s.name} ({s.source})").resolve_scale(
        y="independent"
    ).save(str(path))
