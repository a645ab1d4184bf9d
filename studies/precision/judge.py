"""What precision is worth: loss against the flops of the oracles, for fixed oracles.

`python studies/precision/judge.py runs/precision-gpt --spectra studies/cotuning/gpt-carried.npz --out docs/figures`
writes precision-study.json, .md, .svg and .png; the spectra are what the numbers of fixed oracles are judged on. The
json is what `inexact-muon report` reads back. An oracle reaches the exact one if its loss, seed by seed, is above by
less than a margin, 0.25 % of that loss unless the study declares another: the 90 % interval is below it (yes), above it
(no) or neither (open).
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import numpy as np
from scipy.stats import spearmanr

from inexact_muon import polar
from inexact_muon.schedules.judgement import normaliser
from inexact_muon_lab import problems
from inexact_muon_lab.report.advice import MARGIN
from inexact_muon_lab.spec.spec import RunSpec
from inexact_muon_lab.spec.study import Decide
from inexact_muon_lab.statistics import CONFIRMED, REFUTED, interval
from inexact_muon_lab.store import store
from inexact_muon_lab.train import optimizers
from inexact_muon_lab.tune import spectra

EXACT = "exact-svd"
SAVING = 0.15
SMALL = 0.03
FAR = 0.03
NUMBERS = ("lift of small", "rms error", "stochastic factor", "gap", "delta")
WORDS = {CONFIRMED: "yes", REFUTED: "no"}
ABOUT = f"Lift of small: the mean of f over singular values below {SMALL} of the largest."


def read(folder: Path) -> list[dict[str, Any]]:
    """One entry per policy, with its seeds in order."""
    found: dict[str, list[store.Run]] = defaultdict(list)
    for run in store.runs(folder):
        if run.state != "finished" or run.outcome is None:
            raise SystemExit(f"{folder}: run {run.id} is {run.state}; finish the sweep first")
        options: Any = run.spec.optimizer
        found[options.polar].append(run)
    entries = []
    for policy, runs in found.items():
        runs.sort(key=lambda run: run.spec.seed)
        results = [run.outcome.result for run in runs if run.outcome is not None]
        entries.append(
            {
                "policy": policy,
                "kind": _kind(policy),
                "steps": runs[0].spec.steps,
                "seeds": [run.spec.seed for run in runs],
                "loss": [r["loss"] for r in results],
                "oracle_flops": [r["oracle_flops"] for r in results],
            }
        )
    return entries


def _kind(policy: str) -> str:
    name = policy.partition("(")[0]
    return name if name in ("adaptive", "budget") else "exact" if policy == EXACT else "fixed"


def declared(folder: Path) -> float | None:
    """The margin that the study declares for the claim `control`."""
    text = store.about(folder).get("decide")
    return msgspec.json.decode(text, type=Decide).margin.get("control") if text else None


def judged(entries: list[dict[str, Any]], margin: float | None = None) -> list[dict[str, Any]]:
    """Means, the difference to the exact oracle seed by seed, and whether it reaches it; cheapest first."""
    exact = next(e for e in entries if e["kind"] == "exact")
    margin = margin or MARGIN * fmean(exact["loss"])
    rows = []
    for e in entries:
        worse = interval([a - b for a, b in zip(e["loss"], exact["loss"], strict=True)])
        rows.append(
            {
                "policy": e["policy"],
                "kind": e["kind"],
                "flops": fmean(e["oracle_flops"]),
                "loss": fmean(e["loss"]),
                "worse": worse.mean,
                "error": worse.error,
                "margin": margin,
                "reaches": WORDS[CONFIRMED] if e is exact else WORDS.get(worse.no_worse(margin).verdict(), "open"),
            }
        )
    return sorted(rows, key=lambda row: row["flops"])


def two_products(spec: RunSpec) -> float:
    """Flops of X X^T and Q X in every step of a run: no oracle that looks at each momentum needs less."""
    optimizer: Any = optimizers.build(problems.build(spec).model, spec.optimizer)
    moved = ((p, group) for _, p, group in optimizer.named() if group["algorithm"] == "lmo")
    shapes = [shape for p, group in moved for shape in optimizer.view(group).shapes(p.shape)]
    return float(spec.steps * sum(4 * min(n, m) * n * m for n, m in shapes))


def findings(rows: list[dict[str, Any]], least: float) -> list[str]:
    """The two questions, answered from the rows: with all oracles to choose from, and with polynomials alone.

    An oracle of which it is open whether it reaches the exact one may do so: with few seeds none is sure to.
    """
    lines = []
    for what, some in (("oracle", rows), ("polynomial", [r for r in rows if not _rational(r)])):
        fixed = next((r for r in some if r["kind"] == "fixed" and r["reaches"] != "no"), None)
        chosen = next((r for r in some if r["kind"] == "adaptive" and r["reaches"] != "no"), None)
        if fixed is None or chosen is None:
            lines.append(f"No fixed {what} or no policy may reach the exact one.")
            continue
        share = chosen["flops"] / fixed["flops"]
        lines.append(
            f"Cheapest fixed {what} that may reach the exact one: `{fixed['policy']}`, {fixed['flops']:.3g} flops; "
            f"cheapest policy: `{chosen['policy']}`, {chosen['flops']:.3g}, {share:.2f} of that "
            f"({1.0 - SAVING:.2f} wanted; the two products alone are {least / fixed['flops']:.2f})."
        )
    for budget in (r for r in rows if r["kind"] == "budget"):
        alike = (r for r in rows if r["kind"] == "fixed" and _rational(r) == _rational(budget))
        same = [r for r in alike if r["flops"] <= 1.02 * budget["flops"]]
        if same:
            best = min(same, key=lambda r: r["loss"])
            above = budget["loss"] - best["loss"]
            lines.append(f"`{budget['policy']}` against uniform `{best['policy']}`: loss {above:+.4f}.")
    return lines


def _rational(row: dict[str, Any]) -> bool:
    """An oracle with poles, or a policy over such."""
    return "zolotarev" in row["policy"]


def predictors(rows: list[dict[str, Any]], layers: list[spectra.Layer]) -> list[str]:
    """Which number of a fixed oracle orders the losses: a table, and rank correlations."""
    fixed = sorted((r for r in rows if r["kind"] == "fixed"), key=lambda r: r["loss"])
    found = {r["policy"]: numbers(r["policy"], layers) for r in fixed}
    lines = [f"| fixed oracle | loss | {' | '.join(NUMBERS)} |", "|---|---:" + "|---:" * len(NUMBERS) + "|"]
    lines += [f"| `{r['policy']}` | {r['loss']:.4f} | {cells(found[r['policy']])} |" for r in fixed]
    return [
        *lines,
        "",
        ABOUT,
        f"Rank correlation with the loss: {ranks(found, {r['policy']: r['loss'] for r in fixed})}.",
    ]


def numbers(policy: str, layers: list[spectra.Layer]) -> tuple[float, ...]:
    """NUMBERS of an oracle on spectra."""
    method = polar.parse(policy)
    found, total = spectra.judge_layers(method, layers), sum(layer.values.size for layer in layers)
    errors = (1.0 - method.scalar(la.values / normaliser(la.values, method.normaliser)) for la in layers)
    rms = (sum(float((error**2).sum()) for error in errors) / total) ** 0.5
    return lift(method, layers), rms, float(found.stochastic_factor), float(found.gap), float(found.delta)


def cells(values: Sequence[float]) -> str:
    """Of a table."""
    return " | ".join(f"{v:.3f}" for v in values)


def ranks(found: dict[str, tuple[float, ...]], losses: dict[str, float]) -> str:
    """Rank correlation of each number with the loss, over oracles."""
    columns = zip(NUMBERS, zip(*(found[policy] for policy in losses), strict=True), strict=True)
    return ", ".join(f"{name} {float(spearmanr(column, list(losses.values()))[0]):.2f}" for name, column in columns)


def lift(method: polar.PolarMethod, layers: list[spectra.Layer]) -> float:
    """How far small singular values are lifted towards 1, on average."""
    found = []
    for layer in layers:
        f = method.scalar(layer.values / normaliser(layer.values, method.normaliser))
        found.append(f[layer.values < SMALL * layer.values[0]])
    return float(np.concatenate(found).mean())


def markdown(rows: list[dict[str, Any]], seeds: int, least: float) -> str:
    """The table and the findings."""
    lines = ["| policy | flops | loss | above exact, seed by seed | reaches it |", "|---|---:|---:|---:|---|"]
    for r in rows:
        span = f"{r['worse']:+.4f} +- {r['error']:.4f}"
        lines.append(f"| `{r['policy']}` | {r['flops']:.3g} | {r['loss']:.4f} | {span} | {r['reaches']} |")
    return (
        "\n".join(
            [
                *lines,
                "",
                f"{seeds} seeds; +- is the standard error. Reaches it: above by less than {rows[0]['margin']:.4f}.",
                "",
                *(f"- {line}" for line in findings(rows, least)),
            ]
        )
        + "\n"
    )


def figure(rows: list[dict[str, Any]]) -> Any:
    """Loss against flops; what is far off is not shown."""
    import altair as alt

    least = min(row["loss"] for row in rows)
    shown = [
        row | {"label": row["policy"].partition(", candidates")[0] + ", poles)" * ("candidates" in row["policy"])}
        for row in rows
        if row["loss"] < least + FAR
    ]
    base = alt.Chart(alt.Data(values=shown), title=f"loss against the flops of all oracles, up to {FAR} above the best")
    x = alt.X("flops:Q", scale=alt.Scale(type="log", nice=False, padding=20), axis=alt.Axis(format=".1e"))
    points = base.mark_point(filled=True, size=90).encode(
        x=x, y=alt.Y("loss:Q", scale=alt.Scale(zero=False)), color="kind:N", shape="kind:N"
    )
    names = base.mark_text(align="left", dx=7, fontSize=9).encode(x=x, y="loss:Q", text="label:N")
    return (points + names).properties(width=760, height=640)


def arguments(about: str | None) -> Namespace:
    """store, spectra and out of the command line; a mistake in them is a sentence."""
    parser = ArgumentParser(description=about)
    parser.add_argument("store", type=Path)
    parser.add_argument("--spectra", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    if not store.is_store(given.store):
        parser.error(f"{given.store} is not a store: run the sweep first")
    if not given.spectra.is_file():
        parser.error(f"there is no file {given.spectra}")
    given.out.mkdir(parents=True, exist_ok=True)
    return given


def main() -> None:
    """The command."""
    given = arguments(__doc__)
    entries, margin = read(given.store), declared(given.store)
    table = {"format": "inexact-muon/precision/1", "problems": [{"problem": "gpt", "runs": entries, "margin": margin}]}
    rows, stem = judged(entries, margin), given.out / "precision-study"
    stem.with_suffix(".json").write_text(json.dumps(table, indent=1) + "\n")
    least = two_products(store.runs(given.store)[0].spec)
    page = [markdown(rows, len(entries[0]["seeds"]), least), *predictors(rows, spectra.load(given.spectra))]
    stem.with_suffix(".md").write_text("\n".join(page) + "\n")
    for kind in ("svg", "png"):
        figure(rows).save(stem.with_suffix(f".{kind}"), **({"ppi": 110} if kind == "png" else {}))
    print(stem.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
