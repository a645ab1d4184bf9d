"""A table of what an optimizer does with each parameter, with warnings."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from html import escape
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from inexact_muon._text import grouped
from inexact_muon.inexactness import Inexactness, worst
from inexact_muon.lmo import Spectral
from inexact_muon.lmo._base import sides
from inexact_muon.optim.core import LMOOptimizer
from inexact_muon.optim.group import Group
from inexact_muon.optim.lengths import SCALES, conventions
from inexact_muon.optim.stages.notes import can_decompose, stage_notes, stages_of
from inexact_muon.optim.telemetry import oracle_flops
from inexact_muon.polar import Auto, PolarMethod
from inexact_muon.polar.kernel import FEWEST, uses_kernel
from inexact_muon.polar.polynomial import Composition
from inexact_muon.sheet import Row, Sheet

WIDTH = 200
"""Width of the printed table if neither a terminal nor COLUMNS defines one."""

WORDS = ("parameter", "shape", "matrices", "algorithm", "why", "oracle")
LATER = "Which oracle: optimizer.advice(), after some steps, says what is lost on this momentum and what to use."
OPTIONAL = ("flops", "scale", "matrices")
INNER = ("optimizer", "_optimizer", "optim")
"""Attributes that hold a wrapped optimizer: Accelerate, Lightning, torch's ZeroRedundancyOptimizer."""


@dataclass(frozen=True)
class Line:
    """One parameter.

    Attributes:
        parameter: its name, or its index if it has none.
        matrices: shapes of the matrices passed to the oracle; empty for AdamW.
        algorithm: the ball, or adamw.
        sure: False if the rule is a guess; printed as a question mark after the algorithm.
        weight_decay: decoupled weight decay; a step multiplies the parameter by 1 - lr weight_decay.
        scale: shape factor times radius.
        flops: floating point operations of the oracle in one step.
        cost: fraction of the flops of all parameters.
        inexactness: of the oracle on the momentum as it stands, the worst of its matrices; or at the last sampled step;
            None if not measured.
        bound: the oracle's bound on delta, with the interval it holds on; empty for AdamW. Printed below the table.
        runs: dtype and form of the oracle's products on an accelerator, and the kernel of symmetric ones; empty on a
            CPU. Printed below the table.
        stages: around the oracle, in words. Printed below the table.
        role: by which routing decided; empty if a rule or the caller did.
    """

    parameter: str
    shape: tuple[int, ...]
    matrices: str
    algorithm: str
    why: str
    sure: bool
    lr: float
    weight_decay: float
    scale: float
    oracle: str
    flops: int
    cost: float
    inexactness: Inexactness | None
    bound: str = ""
    runs: str = ""
    stages: str = ""
    role: str = ""

    def cells(self) -> list[str]:
        """The cells of `COLUMNS` as text."""
        return [text(self) for text in COLUMNS.values()]


COLUMNS: dict[str, Callable[[Line], str]] = {
    "parameter": lambda line: line.parameter,
    "shape": lambda line: _times(line.shape),
    "matrices": lambda line: line.matrices,
    "algorithm": lambda line: line.algorithm if line.sure else f"{line.algorithm} ?",
    "why": lambda line: line.why,
    "lr": lambda line: f"{line.lr:.6g}",
    "weight_decay": lambda line: f"{line.weight_decay:.6g}",
    "scale": lambda line: "" if line.algorithm == "adamw" else f"{line.scale:.3g}",
    "oracle": lambda line: line.oracle,
    "flops": lambda line: f"{line.flops:.2g}" if line.flops else "",
    "cost": lambda line: f"{line.cost:.0%}" if line.flops else "",
    "gap": lambda line: "" if line.inexactness is None else f"{line.inexactness.gap:.4f}",
    "overshoot": lambda line: "" if line.inexactness is None else f"{line.inexactness.overshoot:.4f}",
    "lifted": lambda line: (
        f"{line.inexactness.lifted:.3f}" if line.inexactness and line.inexactness.lifted is not None else ""
    ),
}
"""Column of the table -> its cell of a line; fields of `Line` and of its inexactness."""


@dataclass(frozen=True)
class Explanation:
    """One row per parameter in the order of the model, warnings, and which oracle to use.

    Prints as a table as wide as the terminal, equal layers as one row; on narrow terminals with fewer columns, then as
    one block of lines per row. Rendered as HTML in a notebook.

    Attributes:
        measured: where the numbers come from, in words; empty if there are none.
        staged: sentences on stages around the oracle.
        answer: what a scale's name means elsewhere; then the lines of `advise`, or what to do to get them.
    """

    lines: tuple[Line, ...]
    warnings: tuple[str, ...]
    measured: str = ""
    answer: tuple[str, ...] = ()
    staged: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[Line, ...]:
        """Equal layers as one row, such as "layers.0-11.attn.qkv": costs added, the worst of their numbers."""
        rows = []
        alike = [replace(line, parameter="", cost=0.0, inexactness=None, role="") for line in self.lines]
        for name, places in grouped([(line.parameter, key) for line, key in zip(self.lines, alike, strict=True)]):
            group = [self.lines[i] for i in places]
            largest = worst([line.inexactness for line in group if line.inexactness is not None])
            flops, cost = sum(line.flops for line in group), sum(line.cost for line in group)
            rows.append(replace(group[0], parameter=name, flops=flops, cost=cost, inexactness=largest))
        return tuple(rows)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences below the table."""
        lmo = [line for line in self.lines if line.matrices]
        flops = sum(line.flops for line in self.lines)
        notes = [f"{len(lmo)} of {len(self.lines)} parameters get an LMO: {flops:.2g} flops a step."]
        if self.measured:
            notes.append(f"gap, overshoot, lifted: the worst of each row, {self.measured}.")
        notes += dict.fromkeys(line.bound for line in self.lines if line.bound)
        if not all(line.sure for line in self.lines):
            notes.append('?: a guess; rules=[(name, "lmo" or "adamw")] of Muon.for_model decides.')
        for runs, count in Counter(line.runs for line in self.lines if line.runs).items():
            notes.append(f"{count} parameter{'s' * (count > 1)} on the accelerator: products in {runs}.")
        return (*notes, *self.staged, *(f"warning: {warning}" for warning in self.warnings), *self.answer)

    def __str__(self) -> str:
        width = shutil.get_terminal_size((WIDTH, 24)).columns
        rows = [Row(line.cells()) for line in self.rows]
        sheet = Sheet("What each parameter gets", tuple(COLUMNS), rows, WORDS, prose=("why",), optional=OPTIONAL)
        return sheet.text(width) + "".join(f"{note}\n" for note in self.notes)

    def _repr_html_(self) -> str:
        """The table as self-contained HTML."""
        head = "".join(f"<th>{escape(title)}</th>" for title in COLUMNS)
        rows = "".join(
            "<tr>" + "".join(f'<td style="text-align: left">{escape(cell)}</td>' for cell in line.cells()) + "</tr>"
            for line in self.rows
        )
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{notes}"


def explain(optimizer: Optimizer | Any) -> Explanation:
    """Algorithm, reason, cost and measured error of each parameter; then which oracle to use.

    The momentum of a small model is decomposed, as `advise` does; of a larger one the last samples are shown.

    Args:
        optimizer: an optimizer of this library, also wrapped by Accelerate, Lightning or torch's ZeRO. `advise` answers
            for other optimizers.
    """
    inner = unwrap(optimizer)
    samples = inner.inexactness() if inner.telemetry.every else {}
    answer = inner.advice() if can_decompose(inner) else None
    judged = {} if answer is None else answer.by_parameter()
    lines = [_line(inner, name, p, group, judged.get(name, samples.get(name))) for name, p, group in inner.named()]
    total = sum(line.flops for line in lines) or 1
    lines = [replace(line, cost=line.flops / total) for line in lines]
    order = {name: place for place, name in enumerate(inner.why)}
    lines.sort(key=lambda line: order.get(line.parameter, len(order)))
    steps = sorted({sample.step for _, p, _ in inner.named() if (sample := inner.telemetry.sample_of(p)) is not None})
    measured = "on the momentum as it stands" if judged else ""
    if samples and not judged:
        several = f"sampled at steps {steps[0]} to {steps[-1]}"
        measured = several if len(steps) > 1 else f"at the last sampled step, {steps[0]}"
    told = answer.lines if answer is not None else (LATER,) if any(line.flops for line in lines) else ()
    staged = tuple(stage_notes(inner, [line.stages for line in lines]))
    named = conventions(group["scale"] for group in inner.param_groups if group["algorithm"] == "lmo")
    return Explanation(tuple(lines), tuple(_suspicious(lines)), measured, (*named, *told), staged)


def unwrap(optimizer: Any) -> LMOOptimizer:
    """The optimizer of this library inside wrappers of training frameworks."""
    for name in INNER:
        inner = getattr(optimizer, name, None)
        if isinstance(inner, Optimizer) and inner is not optimizer:
            return unwrap(inner)
    if not isinstance(optimizer, LMOOptimizer):
        name = type(optimizer).__name__
        raise TypeError(f"explain needs an optimizer of this library, got {name}; advise(optimizer) answers for others")
    return optimizer


def _line(optimizer: LMOOptimizer, name: str, p: Tensor, group: Group, error: Inexactness | None) -> Line:
    """The row of one parameter; its cost is filled in later."""
    lmo = group["algorithm"] == "lmo"
    ball, shapes = optimizer.ball(group), optimizer.view(group).shapes(p.shape)
    polar, pending, bound = (ball.polar if lmo and isinstance(ball, Spectral) else None), "", ""
    if polar is not None:
        side = sides(max(shapes, key=prod))
        if isinstance(polar, Auto) and polar.known(*side, p.device) is None:
            pending = f"{polar.short} (not resolved yet)"
        polar = polar.at(*side, p.device)
        lower = polar.map.lower or 1e-3
        bound = f"bound of {polar}: delta at most {polar.error_bound(lower):.3g} for singular values in [{lower:g}, 1]."
    return Line(
        parameter=name,
        shape=tuple(p.shape),
        matrices=" + ".join(_times(shape) for shape in shapes) if lmo else "",
        algorithm=ball.name if lmo else "adamw",
        why=optimizer.why.get(name, "given"),
        sure=name not in optimizer.unsure,
        lr=float(group["lr"]),
        weight_decay=float(group["weight_decay"]),
        scale=SCALES[group["scale"]](*sides(shapes[0])) * group["radius"] if lmo else 1.0,
        oracle=pending or (str(polar) if polar else ""),
        flops=sum(oracle_flops(ball, shape, p.device) for shape in shapes) if lmo else 0,
        cost=0.0,
        inexactness=error,
        bound=bound,
        runs=_runs(polar, max(shapes, key=prod), p.device) if polar and p.device.type != "cpu" else "",
        stages=stages_of(group),
        role=optimizer.roles.get(name, ""),
    )


def _runs(polar: PolarMethod, shape: tuple[int, ...], device: torch.device) -> str:
    """Dtype, form and kernel of this shape's products, for compositions of polynomials."""
    if not isinstance(polar, Composition):
        return ""
    n, m = sorted(shape[-2:])
    dtype = polar.computes_on(device)
    form = "Gram" if polar.runs_gram(n, m, dtype) else "direct"
    kernel = ", symmetric ones by the Triton kernel" if uses_kernel(n, FEWEST, dtype, device) else ""
    return f"{str(dtype).removeprefix('torch.')}, {form} form{kernel}"


def _suspicious(lines: list[Line]) -> Iterator[str]:
    total = sum(prod(line.shape) for line in lines)
    lmo = sum(prod(line.shape) for line in lines if line.algorithm != "adamw")
    if lines and lmo < 0.05 * total:
        yield f"only {lmo / max(1, total):.1%} of the entries get an LMO: is this the model you meant?"
    for line in lines:
        if line.algorithm == "adamw" and line.role == "vector" and len(line.shape) == 1 and line.shape[0] > 10**6:
            yield f"{line.parameter} is 1-D with {line.shape[0]} entries: a flattened (FSDP1) parameter gets no LMO"


def _times(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"
