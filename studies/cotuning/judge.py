"""Which rule carries a tuned pair best: predicted against observed optimum, and regret. Tables and a picture.

`python studies/cotuning/judge.py --grid runs/cotuning-gpt --carried runs/gpt-carried --spectra gpt-carried.npz ...`
(each given once per problem, in one order) writes cotuning-study.json, .md, .svg and .png into --out; the json is
what `inexact-muon report` reads back. The regret of a rule on a target is the loss of the pair it asks for minus the
loss of the target's own best pair on the grid, seed by seed.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from carry import SOURCE, Grid, carried, moved, read

from inexact_muon_lab.report.ladders import oracle_in_words
from inexact_muon_lab.statistics import interval, spread
from inexact_muon_lab.tune import spectra

TITLES = {"gpt": "A byte GPT", "cnn": "Digits"}
"""What the report calls a problem."""


def rows(grid: Grid, tried: Grid, layers: list[spectra.Layer]) -> list[dict[str, Any]]:
    """Per target: its own best, and what each rule asked for and got."""
    tuned = grid.tuned(SOURCE)
    found = []
    for target in grid.oracles:
        if target == SOURCE:
            continue
        (lr, alpha), best = grid.best(target)
        entry: dict[str, Any] = {
            "target": target,
            "best": {"lr": lr, "alpha": alpha, **_spread(best)},
            "fitted": dict(zip(("lr", "alpha"), grid.tuned(target), strict=True)),
            "on_edge": grid.on_edge(target),
            "rules": [],
        }
        for rule, factors in carried(SOURCE, target, layers).items():
            pair = moved(tuned, factors)
            losses = tried.losses[target, pair[0], round(pair[1], 6)]
            regrets = [losses[seed] - best[seed] for seed in sorted(best)]
            entry["rules"].append(
                {"rule": rule, "lr": pair[0], "alpha": pair[1], **_spread(losses)}
                | {"regret": fmean(regrets), "regrets": regrets}
            )
        found.append(entry)
    return found


def summary(targets: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per rule: the mean regret over targets, with its 95 % t interval over seeds: targets share their seeds' luck."""
    found = []
    for rule in [r["rule"] for r in targets[0]["rules"]]:
        each = [next(r["regrets"] for r in t["rules"] if r["rule"] == rule) for t in targets]
        mean = interval([fmean(regrets) for regrets in zip(*each, strict=True)])
        found.append({"rule": rule, "regret_mean": mean.mean, "regret_low": mean.low, "regret_high": mean.high})
    return found


def problem(name: str, grid: Grid, tried: Grid, layers: list[spectra.Layer]) -> dict[str, Any]:
    """Everything of one problem."""
    lr, alpha = grid.tuned(SOURCE)
    losses = tried.losses[SOURCE, lr, round(alpha, 6)]
    targets = rows(grid, tried, layers)
    found = summary(targets)
    return {
        "problem": name,
        "title": f"{TITLES.get(name, name)}, carried from {oracle_in_words(SOURCE)}",
        "source": SOURCE,
        "tuned": {"lr": lr, "alpha": alpha, **_spread(losses)},
        "keep_regret_mean": next(r["regret_mean"] for r in found if r["rule"] == "keep"),
        "rules": found,
        "targets": targets,
    }


def markdown(problems: list[dict[str, Any]]) -> str:
    """A summary and a table per problem."""
    lines = []
    for part in problems:
        tuned = part["tuned"]
        lines += [f"## {part['problem']}: lr {tuned['lr']:g}, alpha {tuned['alpha']:g} tuned at `{part['source']}`", ""]
        lines += ["| rule | mean regret | 95% | minus keep's |", "|---|---:|---|---:|"]
        for r in part["rules"]:
            more = r["regret_mean"] - part["keep_regret_mean"]
            span = f"{r['regret_low']:.4f} to {r['regret_high']:.4f}"
            lines.append(f"| {r['rule']} | {r['regret_mean']:.4f} | {span} | {more:+.4f} |")
        names = [r["rule"] for r in part["rules"]]
        lines += [
            "",
            "lr/alpha and regret of what each rule asks for; first the target's best on the grid and fitted:",
            "",
        ]
        lines += [_row("target", "best", "fitted", "loss", *names), _row(*["---"] * (len(names) + 4))]
        for t in part["targets"]:
            best = t["best"]
            where = f"{best['lr']:g}/{best['alpha']:g}{' (edge)' if t['on_edge'] else ''}"
            cells = [f"{r['lr']:g}/{r['alpha']:g} {r['regret']:+.3f}" for r in t["rules"]]
            lines.append(
                _row(
                    f"`{t['target']}`",
                    where,
                    f"{t['fitted']['lr']:g}/{t['fitted']['alpha']:g}",
                    f"{best['loss']:.4f}",
                    *cells,
                )
            )
        lines.append("")
    return "\n".join(lines)


def figure(problems: list[dict[str, Any]]) -> Any:
    """Mean regret by rule with its interval, one dot per target; predicted against observed lr."""
    import altair as alt

    charts = []
    for part in problems:
        order = [r["rule"] for r in part["rules"]]
        y = alt.Y("rule:N", sort=order, title=None)
        dots = [{"target": t["target"], **r, "best_lr": t["fitted"]["lr"]} for t in part["targets"] for r in t["rules"]]
        bars = alt.Chart(alt.Data(values=part["rules"]), title=f"{part['problem']}: regret by rule")
        mean = bars.mark_tick(thickness=3, size=22, color="black").encode(x="regret_mean:Q", y=y)
        span = bars.mark_rule(strokeWidth=2).encode(x=alt.X("regret_low:Q", title="regret"), x2="regret_high:Q", y=y)
        each = (
            alt.Chart(alt.Data(values=dots))
            .mark_circle(size=50, opacity=0.6)
            .encode(x="regret:Q", y=y, color=alt.Color("target:N", title="to"))
        )
        charts.append((each + span + mean).properties(width=330, height=230))
        spread = alt.Scale(type="log", nice=False, padding=10)
        observed = alt.Chart(alt.Data(values=dots), title=f"{part['problem']}: lr asked for and best")
        points = observed.mark_point(size=60, opacity=0.8).encode(
            x=alt.X("best_lr:Q", scale=spread, title="best lr, fitted to the grid"),
            y=alt.Y("lr:Q", scale=spread, title="lr asked for"),
            shape=alt.Shape("rule:N", sort=order),
            color="target:N",
        )
        charts.append(points.properties(width=330, height=230))
    return alt.vconcat(*(alt.hconcat(*charts[i : i + 2]) for i in range(0, len(charts), 2)))


def _spread(losses: dict[int, float]) -> dict[str, float]:
    values = list(losses.values())
    return {"loss": fmean(values), "loss_sd": spread(values)}


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """The command."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--problem", action="append", required=True)
    for option in ("--grid", "--carried", "--spectra"):
        parser.add_argument(option, type=Path, action="append", required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    parts = zip(given.problem, given.grid, given.carried, given.spectra, strict=True)
    problems = [problem(name, read(a), read(b), spectra.load(c)) for name, a, b, c in parts]
    table = {"format": "inexact-muon/cotuning/1", "problems": problems}
    stem = given.out / "cotuning-study"
    stem.with_suffix(".json").write_text(json.dumps(table, indent=1) + "\n")
    stem.with_suffix(".md").write_text(markdown(problems))
    chart = figure(problems)
    for kind in ("svg", "png"):
        chart.save(stem.with_suffix(f".{kind}"), **({"ppi": 110} if kind == "png" else {}))
    print(markdown(problems))


if __name__ == "__main__":
    main()
