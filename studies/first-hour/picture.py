"""README's picture and its caption, from the packed runs of this folder.

`python studies/first-hour/picture.py` draws docs/figures/first-hour.svg and .png and writes the caption between the
marks of README.md. `curves.toml` has each optimizer at the best of its settings in `tuning.toml`, on fresh seeds.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import altair as alt

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from marks import between

from inexact_muon_lab.report.arms import comparisons
from inexact_muon_lab.report.load import RunRecord, load
from inexact_muon_lab.spec.study import field_of
from inexact_muon_lab.spec.study import load as load_study

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
COMMAND = "python studies/first-hour/picture.py"
CONTROL = ROOT / "studies/controls/first-hour.pack"
"""The same with the oracle alone exchanged."""

NAMES = {"adamw": "AdamW", "torch-muon": "torch.optim.Muon", "muon": "Muon.for_model (here)"}
COLOURS = ("#868e96", "#f08c00", "#4263eb")
FIRST = 50
"""The first step that is drawn: losses before are above the picture."""


def runs_of(study: str) -> list[RunRecord]:
    """The finished runs of a study in the packs of this folder, of seeds that every optimizer has."""
    planned = {run.id for run in load_study(HERE / f"{study.removeprefix('first-hour-')}.toml").runs}
    runs = [run for record in load(HERE).studies if record.name == study for run in record.runs]
    runs = [run for run in runs if run.id in planned and run.value("loss") is not None]
    most = {name: _seeds(runs, name) for name in NAMES}
    return [run for run in runs if run.seed in set.intersection(*most.values())]


def _seeds(runs: list[RunRecord], name: str) -> set[int]:
    """Seeds with as many runs of an optimizer as any."""
    counts = {seed: sum(run.seed == seed for run in runs if run.optimizer == name) for seed in {r.seed for r in runs}}
    return {seed for seed, count in counts.items() if count == max(counts.values())}


def best(runs: list[RunRecord]) -> dict[str, dict[str, Any]]:
    """Optimizer -> the rates with the lowest mean loss in tuning."""
    rates = ("lr", "weight_decay", "adamw_lr")
    chosen = {}
    for name in NAMES:
        cells: dict[tuple[Any, ...], list[float]] = {}
        for run in runs:
            if run.optimizer == name:
                key = tuple(field_of(run.spec, f"optimizer.{rate}") for rate in rates)
                cells.setdefault(key, []).append(float(run.value("loss") or 0.0))
        lowest = min(cells, key=lambda key: fmean(cells[key]))
        chosen[name] = {rate: value for rate, value in zip(rates, lowest, strict=True) if value is not None}
    return chosen


def losses(runs: list[RunRecord]) -> dict[str, dict[int, float]]:
    """Optimizer -> final validation loss by seed."""
    found: dict[str, dict[int, float]] = {name: {} for name in NAMES}
    for run in runs:
        found[run.optimizer][run.seed] = float(run.value("loss") or 0.0)
    return found


def caption(runs: list[RunRecord]) -> str:
    """The sentence below the picture."""
    final = losses(runs)
    seeds = sorted(final["muon"])
    means = {name: fmean(by_seed.values()) for name, by_seed in final.items()}
    parts = []
    for name in ("adamw", "torch-muon"):
        less = [final["muon"][seed] - final[name][seed] for seed in seeds]
        parts.append((f"{fmean(less):+.3f}", f"{min(less):+.3f}", f"{max(less):+.3f}"))
    shown = ", ".join(f"{label} {means[name]:.3f}" for name, label in NAMES.items())
    (first, low, high), (second, *ends) = parts
    (control,) = comparisons(load(CONTROL))
    oracle = control.first.loss
    return (
        f"A byte GPT of two layers, 250 steps, {len(seeds)} seeds; lr, AdamW's lr and decay tuned by 16 runs each. "
        f"Final validation loss:\n{shown}: {first} ({low} to {high} by seed) and {second} ({ends[0]}\n"
        f"to {ends[1]}). Of the latter the approximation makes {oracle.mean:+.3f} ({oracle.low:+.3f} to "
        f"{oracle.high:+.3f}: {control.sentence.partition(':')[0]}); decay and cuts of fused weights differ.\n"
    )


def figure(runs: list[RunRecord]) -> alt.LayerChart:
    """A thin line a run, a thick one the mean of an optimizer."""
    values = [
        {"optimizer": NAMES[run.optimizer], "seed": run.seed, "step": int(r["step"]), "loss": float(r["loss"])}
        for run in runs
        for r in run.records("validation")
        if int(r["step"]) >= FIRST
    ]
    scale = alt.Scale(domain=list(NAMES.values()), range=list(COLOURS))
    legend = alt.Legend(orient="top-right", labelFontSize=15, symbolStrokeWidth=4, symbolOpacity=1, title=None)
    base = alt.Chart(alt.Data(values=values)).encode(
        x=alt.X("step:Q", title="step", axis=alt.Axis(tickCount=5)),
        color=alt.Color("optimizer:N", scale=scale, legend=legend),
    )
    y = alt.Y("loss:Q", title="validation loss (nats a byte)", scale=alt.Scale(zero=False))
    each = base.mark_line(opacity=0.35, strokeWidth=1).encode(y=y, detail="seed:N")
    mean = base.mark_line(strokeWidth=3).encode(y=alt.Y("mean(loss):Q"))
    grey = {"labelColor": "#868e96", "titleColor": "#868e96", "gridColor": "#86868640", "domainColor": "#868e96"}
    chart = alt.layer(each, mean).properties(width=430, height=270, background="transparent")
    return (
        chart.configure_axis(labelFontSize=15, titleFontSize=15, **grey)
        .configure_legend(labelColor="#868e96")
        .configure_view(stroke=None)
    )


def main() -> None:
    """Draw, and write the caption."""
    runs = runs_of("first-hour-curves")
    picture = figure(runs)
    for suffix in ("svg", "png"):
        picture.save(ROOT / f"docs/figures/first-hour.{suffix}", **({"ppi": 144} if suffix == "png" else {}))
    page = ROOT / "README.md"
    page.write_text(between(page.read_text(), {"first hour": caption(runs)}, COMMAND))


if __name__ == "__main__":
    main()
