"""Output of `inexact-muon plan`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from inexact_muon.sheet import Row, Sheet
from inexact_muon_lab.extras import require
from inexact_muon_lab.plan.choice import Candidate, Plan

HEADER = (
    *("strategy", "same update", "launches", "calls", "MB sent", "in flight", "TF", "MB work space"),
    *("GB held", "optimizer ms", "step ms", "share"),
)
WORTH = 0.01
"""Minimum relative saving of the step for which a different update is mentioned."""


def cells(c: Candidate) -> list[str]:
    """The numbers of HEADER."""
    cost = c.cost
    counts = (cost.launches, cost.calls, cost.sent / 1e6)
    flight = f"{100 * cost.in_flight / cost.sent:.0f}%" if cost.sent else "-"
    sizes = (cost.flops / 1e12, cost.peak / 1e6, c.held / 1e9, 1e3 * cost.seconds, 1e3 * c.step)
    return [*(number(x) for x in counts), flight, *(number(x) for x in sizes), f"{100 * c.share:.2f}%"]


def number(x: float) -> str:
    """At least three digits, with thousands separators and without exponents."""
    return f"{x:,.0f}" if x >= 999.5 or x == int(x) else f"{x:.3g}"


def show(plan: Plan, console: Console) -> None:
    """The table, the assumptions, and the recommendation."""
    rows = [
        Row([c.strategy, "yes" if c.exact else "no", *cells(c)], "" if plan.fits(c) else "dim") for c in plan.candidates
    ]
    heading = f"{plan.model.name}: a step of rank 0 with {plan.oracle}, modelled"
    Sheet(heading, HEADER, rows, aligned_left=HEADER[:2]).print(console)
    for strategy, why in plan.refused:
        console.print(f"{strategy}: left out, {why}.", soft_wrap=True)
    for sentence in (*assumptions(plan), recommendation(plan)):
        console.print(sentence, soft_wrap=True)


def record(plan: Plan) -> dict[str, Any]:
    """The plan as plain data, with the seconds of a step, the optimizer's share of it, and whether it fits."""
    rows = [
        {**asdict(c), "step": c.step, "share": c.share, "fits": plan.fits(c), "best": c is plan.best}
        for c in plan.candidates
    ]
    about = {"model": plan.model.name, "oracle": plan.oracle, "layout": asdict(plan.layout)}
    return {**about, "machine": asdict(plan.machine), "candidates": rows, "refused": dict(plan.refused),
            "assumptions": assumptions(plan), "recommendation": recommendation(plan)}  # fmt: skip


def assumptions(plan: Plan) -> list[str]:
    """The assumptions behind every number."""
    model, layout, machine = plan.model, plan.layout, plan.machine
    mesh = " x ".join(f"{size} ({name})" for name, size in layout.mesh.items()) or f"{layout.gpus} (copy)"
    return [
        f"Model: {model.parameters:,} parameters, {plan.lmo_parameters:,} of them in {plan.matrices:,} matrices with "
        f"the oracle, {model.active_parameters:,.0f} active for a token; {model.tokens:,} tokens a step "
        f"({model.source}).",
        f"Layout: {layout.gpus} ranks, {mesh}; float32 weights, gradients and state. No pipeline parallelism.",
        f"Machine: {machine.flops:g} TF in bfloat16, of which forward and backward reach {machine.efficiency:g}; "
        f"{machine.link:g} GB/s sent by each rank to any other; {machine.memory:g} GB.",
        "Counts are those of the optimizer's second step, run on fake tensors. Nothing was timed on a GPU: times are "
        "modelled, good for ratios. Attention scores, activations and FSDP's gathering of weights are left out.",
    ]


def recommendation(plan: Plan) -> str:
    """The recommended strategy, and what another update would save."""
    best, memory = plan.best, plan.machine.memory
    if best is None:
        least = min(plan.candidates, key=lambda c: c.held + c.cost.peak)
        return (
            f"Recommendation: none. No strategy with the same update fits {memory:g} GB; the least needs "
            f"{(least.held + least.cost.peak) / 1e9:.4g} GB ({least.strategy}). Take more ranks or --tp."
        )
    text = (
        f"Recommendation: {best.strategy}: {100 * best.share:.2f}% of the step, the shortest of those with the same "
        "update that fit the memory."
    )
    other = min((c for c in plan.candidates if not c.exact and plan.fits(c)), key=lambda c: c.step, default=best)
    saved = 1 - other.step / best.step
    if saved >= WORTH:
        return f"{text} {other.strategy} would shorten it by {100 * saved:.1f}%, by another update: measure its error."
    return f"{text} No other update would shorten it by {100 * WORTH:g}% or more."


def draw(plan: Plan, path: Path) -> None:
    """Bars: what each strategy adds to the time of forward and backward."""
    alt = require("altair", "lab")
    bars = [
        {"strategy": c.strategy, "part": part, "percent": 100 * seconds / c.model}
        for c in plan.candidates
        for part, seconds in (("optimizer", c.cost.seconds), ("gradients", c.gradients))
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    alt.Chart(alt.Data(values=bars), title=f"{plan.model.name}, {plan.layout.gpus} ranks", width=420).mark_bar().encode(
        x=alt.X("percent:Q", title="percent of forward and backward (modelled, not timed)"),
        y=alt.Y("strategy:N", sort=None, title=None),
        color=alt.Color("part:N", title=None, legend=alt.Legend(orient="bottom")),
    ).save(str(path))
