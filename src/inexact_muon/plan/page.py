"""Output of `inexact-muon plan`."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from inexact_muon.plan.estimate import LOWER, SPEED, Estimate, Plan
from inexact_muon.plan.strategies import title
from inexact_muon.terminal import Row, Sheet

FORMATS = (".svg", ".png", ".html", ".json")
HEADER = ("GFLOP/rank", "MB sent/rank", "MB gradients/rank", "GB held/rank", "oracle ms", "link ms", "step ms", "share")
WORTH = 0.01
"""Minimum relative saving of the step for which a different update is mentioned."""


def cells(e: Estimate) -> list[str]:
    """The numbers of HEADER."""
    c = e.cost
    counts = (c.flops / 1e9, c.sent / 1e6, c.gradients / 1e6, c.memory / 1e9)
    times = (1e3 * e.compute, 1e3 * e.link, 1e3 * e.step)
    return [*(number(x) for x in (*counts, *times)), f"{100 * e.share:.2f}%"]


def number(x: float) -> str:
    """At least three digits, with thousands separators and without exponents."""
    return f"{x:,.0f}" if x >= 999.5 else f"{x:.3g}"


def show(plan: Plan, console: Console) -> None:
    """Two tables, the assumptions, and the recommendation."""
    rows = [
        Row([title(e.strategy), "yes" if e.strategy.exact else "no", *cells(e)], "" if plan.fits(e) else "dim")
        for e in plan.strategies
    ]
    heading = f"{plan.model.name}: strategies with {plan.strategies[0].oracle}"
    Sheet(heading, ("strategy", "same update", *HEADER), rows, left=("strategy", "same update")).print(console)
    for strategy, why in plan.refused:
        console.print(f"{title(strategy)}: left out, {why} here.")
    rows = [Row([str(e.oracle), e.dtype, f"{e.error:.3f}", *cells(e)]) for e in plan.precisions]
    heading = f"{plan.model.name}: precisions with {title(plan.precisions[0].strategy)}"
    Sheet(heading, ("oracle", "dtype", "error", *HEADER), rows, left=("oracle", "dtype")).print(console)
    for sentence in (*assumptions(plan), recommendation(plan)):
        console.print(sentence, soft_wrap=True)


def assumptions(plan: Plan) -> list[str]:
    """The assumptions behind every number."""
    model, layout, machine = plan.model, plan.layout, plan.machine
    matrices = sum(w.count for w in model.matrices)
    kind = "FSDP (divided by rows)" if layout.sharded else "DDP (repeated)"
    slow = ", ".join(f"{dtype} at {speed:.4g}" for dtype, speed in SPEED.items() if speed < 1)
    return [
        f"Model: {model.parameters:,} parameters, {model.lmo_parameters:,} of them in {matrices:,} matrices with the "
        f"oracle, {model.active_parameters:,.0f} active for a token; {model.tokens:,} tokens a step ({model.source}).",
        f"Layout: {layout.gpus} ranks, tensor parallel {layout.tp}, {layout.dp} parts of the batch, {kind}. "
        "No expert or pipeline parallelism.",
        f"Machine: {machine.flops:g} TF in bfloat16 ({slow} of that), of which products reach {machine.efficiency:g}; "
        f"{machine.link:g} GB/s sent by each rank to any other; {machine.memory:g} GB.",
        "Forward and backward: 6 N D flops, N active parameters, D tokens. Nothing overlaps; latency, attention scores "
        "and activations are left out; float32 weights, gradients and state. All columns are the busiest rank's.",
        f"Error: max |1 - f(s)| for singular values in [{LOWER:g}, 1], before rounding (a unit is 2^-8 in bfloat16).",
        "Nothing was timed on a GPU: these are counts divided by the rates above.",
    ]


def recommendation(plan: Plan) -> str:
    """The recommended strategy and alternatives, in sentences."""
    best, machine = plan.best, plan.machine
    if best is None:
        least = min(plan.strategies, key=lambda e: e.cost.memory)
        return (
            f"Recommendation: none. No strategy with the same update fits {machine.memory:g} GB; the least held is "
            f"{least.cost.memory / 1e9:.4g} GB ({title(least.strategy)}). Take more ranks, --tp, or --layout fsdp."
        )
    sentences = [
        f"Recommendation: {title(best.strategy)} with {best.oracle}: {100 * best.share:.2f}% of the step, "
        "the shortest step of those with the same update on every layout that fit the memory."
    ]
    others = [e for e in plan.strategies if not e.strategy.exact and plan.fits(e)]
    other = min(others, key=lambda e: e.step, default=None)
    saved = 1 - other.step / best.step if other else 0.0
    if other and saved >= WORTH:
        sentences.append(
            f"{title(other.strategy)} would shorten the step by {100 * saved:.1f}%, "
            "but is another update: measure its error."
        )
    else:
        sentences.append(f"No other update would shorten the step by {100 * WORTH:g}% or more.")
    better = [e for e in plan.precisions if e.error < best.error and e.step <= (1 + WORTH) * best.step]
    if better and best.error > best.rounding:
        finest = min(better, key=lambda e: (max(e.error, e.rounding), e.step))
        change = f"from {best.error:.3f} to {finest.error:.3f}"
        sentences.append(
            f"{finest.oracle} lowers the error {change} for {100 * (finest.step / best.step - 1):+.2f}% of a step."
        )
    return " ".join(sentences)


def rows(plan: Plan) -> list[dict[str, object]]:
    """(panel, name, part of the step, percent) for the picture."""
    named = [("strategies", title(e.strategy), e) for e in plan.strategies]
    named += [("precisions", str(e.oracle), e) for e in plan.precisions]
    return [
        {"panel": panel, "name": name, "part": part, "percent": 100 * seconds / e.model}
        for panel, name, e in named
        for part, seconds in (
            ("oracle flops", e.compute),
            ("oracle bytes", e.link),
            ("gradient bytes", e.gradients),
        )
    ]


def draw(plan: Plan, path: Path) -> None:
    """Bars: what each strategy and precision adds to the model's own time."""
    if path.suffix not in FORMATS:
        raise ValueError(f"--plot writes {', '.join(FORMATS)}, got {path.name!r}")
    try:
        import altair as alt
    except ImportError:
        raise ValueError("--plot needs the extra `lab`: pip install 'inexact-muon[lab]'") from None
    path.parent.mkdir(parents=True, exist_ok=True)
    titles = {
        "strategies": f"strategies, {plan.strategies[0].oracle}",
        "precisions": f"precisions, {title(plan.precisions[0].strategy)}",
    }
    panels = [
        alt.Chart(alt.Data(values=[r for r in rows(plan) if r["panel"] == panel]), title=heading, width=420)
        .mark_bar()
        .encode(
            x=alt.X("percent:Q", title="percent of forward and backward (counted, not timed)"),
            y=alt.Y("name:N", sort=None, title=None, axis=alt.Axis(labelLimit=300)),
            color=alt.Color("part:N", title=None, legend=alt.Legend(orient="bottom")),
        )
        for panel, heading in titles.items()
    ]
    layout = plan.layout
    heading = f"{plan.model.name}, {layout.gpus} ranks, tp {layout.tp}, {'FSDP' if layout.sharded else 'DDP'}"
    alt.vconcat(*panels, title=heading).save(str(path))
