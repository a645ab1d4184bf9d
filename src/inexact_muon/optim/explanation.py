"""What an optimizer really does: one row per parameter, and what looks wrong."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from rich.console import Console
from rich.table import Table

from inexact_muon.inexactness import Inexactness
from inexact_muon.lmo import Spectral
from inexact_muon.lmo._base import sides
from inexact_muon.optim.core import LMOOptimizer
from inexact_muon.optim.scales import SCALES
from inexact_muon.optim.telemetry import oracle_flops
from inexact_muon.polar import Auto


@dataclass(frozen=True)
class Line:
    """One parameter."""

    name: str
    shape: tuple[int, ...]
    view: str
    algorithm: str
    why: str
    lr: float
    scale: float
    oracle: str
    flops: int
    share: float
    design_error: float | None
    last: Inexactness | None


@dataclass(frozen=True)
class Explanation:
    """The rows, and sentences about whatever looks suspicious. Prints as a table."""

    lines: tuple[Line, ...]
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        table = Table(title="What each parameter gets")
        titles = (
            "parameter",
            "shape",
            "matrices",
            "algorithm",
            "why",
            "lr",
            "scale",
            "oracle",
            "flops",
            "cost",
            "delta",
        )
        for title in (*titles, "last delta, gap, overshoot"):
            table.add_column(title, no_wrap=title in ("parameter", "shape"))
        for line in self.lines:
            delta = "" if line.design_error is None else f"{line.design_error:.3f}"
            flops, cost = (f"{line.flops:.2g}", f"{line.share:.0%}") if line.flops else ("", "")
            last = line.last
            sampled = "" if last is None else f"{last.delta:.2f}, {last.gap:+.3f}, {last.overshoot:.2f}"
            numbers = (f"{line.lr:g}", f"{line.scale:.3g}", line.oracle, flops, cost, delta, sampled)
            table.add_row(line.name, _times(line.shape), line.view, line.algorithm, line.why, *numbers)
        stream = io.StringIO()
        Console(file=stream, width=200).print(table)
        return stream.getvalue() + "".join(f"warning: {w}\n" for w in self.warnings)


def explain(optimizer: LMOOptimizer) -> Explanation:
    """What each parameter gets, why, at what cost and with what error by design.

    The column delta is `error_bound` at the interval for which the oracle was designed (at 1e-3 for published lists).
    """
    if not isinstance(optimizer, LMOOptimizer):
        raise TypeError(f"explain needs an optimizer of this library, got {type(optimizer).__name__}")
    drafts = list(_drafts(optimizer))
    measured = optimizer.inexactness()
    total = sum(flops for *_, flops in drafts) or 1
    lines = []
    for name, p, group, flops in drafts:
        lmo = group["algorithm"] == "lmo"
        ball, view = optimizer.ball_of(p, group), optimizer.view(group)
        seen = view.shapes(p.shape)
        polar = ball.polar if isinstance(ball, Spectral) else None
        if polar is not None and lmo:
            side = sides(max(seen, key=prod))
            pending = isinstance(polar, Auto) and polar.known(*side, p.device) is None
            polar = polar.at(*side, p.device)
        lines.append(
            Line(
                name=name,
                shape=tuple(p.shape),
                view=" + ".join(_times(shape) for shape in seen) if lmo else "",
                algorithm=ball.name if lmo else "adamw",
                why=optimizer.why.get(name, "given"),
                lr=float(group["lr"]) * optimizer.state.get(p, {}).get("lr_factor", 1.0),
                scale=SCALES[group["scale"]](*sides(seen[0])) * group["radius"] if lmo else 1.0,
                oracle="auto (not resolved yet)" if lmo and polar and pending else str(polar) if lmo and polar else "",
                flops=flops,
                share=flops / total,
                last=measured.get(name),
                design_error=polar.error_bound(polar.map.lower or 1e-3) if lmo and polar else None,
            )
        )
    return Explanation(tuple(lines), tuple(_suspicious(lines)))


def _drafts(optimizer: LMOOptimizer) -> Iterator[tuple[str, Any, dict[str, Any], int]]:
    for name, p, group in optimizer.named():
        flops, ball = 0, optimizer.ball_of(p, group)
        if group["algorithm"] == "lmo":
            flops = sum(oracle_flops(ball, shape) for shape in optimizer.view(group).shapes(p.shape))
        yield name, p, group, flops


def _suspicious(lines: list[Line]) -> Iterator[str]:
    entries = {line.name: prod(line.shape) for line in lines}
    lmo = sum(entries[line.name] for line in lines if line.algorithm != "adamw")
    if lines and lmo < 0.05 * sum(entries.values()):
        yield f"only {lmo / max(1, sum(entries.values())):.1%} of the entries get an LMO: is this the model you meant?"
    for line in lines:
        if line.algorithm == "adamw" and line.why.startswith("1-D") and entries[line.name] > 10**6:
            yield f"{line.name} is 1-D with {entries[line.name]} entries: a flattened (FSDP1) parameter gets no LMO"


def _times(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"
