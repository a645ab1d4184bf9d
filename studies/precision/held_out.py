"""Whether the number of an oracle that ordered the losses of one study orders those of others.

`python studies/precision/held_out.py runs/held-out --spectra studies/cotuning/gpt-carried.npz --out docs/figures` reads
the store of held-out.toml and writes held-out.json and held-out.md. The numbers are judged on spectra recorded in
another run: nothing of these trainings is used.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from judge import ABOUT, EXACT, NUMBERS, arguments, cells, numbers, ranks

from inexact_muon_lab.store import store
from inexact_muon_lab.tune import spectra

Table = dict[str, dict[str, list[float]]]
"""Setting -> oracle -> losses by seed."""


def read(folder: Path) -> Table:
    """Losses of every finished run."""
    table: Table = {}
    for run in sorted(store.runs(folder), key=lambda run: run.spec.seed):
        if run.state != "finished" or run.outcome is None:
            raise SystemExit(f"{folder}: run {run.id} is {run.state}; finish the sweep first")
        options: Any = run.spec.optimizer
        model: Any = run.spec.problem
        setting = f"lr {options.lr:g}, momentum {options.momentum:g}, {model.layers} layers of width {model.width}"
        table.setdefault(setting, {}).setdefault(options.polar, []).append(run.outcome.result["loss"])
    return table


def markdown(table: Table, layers: list[spectra.Layer]) -> str:
    """Losses and numbers of each oracle, and the rank correlations of each setting."""
    losses = {setting: {o: fmean(ls) for o, ls in found.items()} for setting, found in table.items()}
    first = next(iter(losses.values()))
    found = {oracle: numbers(oracle, layers) for oracle in first if oracle != EXACT}
    head = "".join(f" | loss {k + 1}" for k in range(len(losses)))
    lines = [f"| oracle{head} | {' | '.join(NUMBERS)} |", "|---" + "|---:" * (len(losses) + len(NUMBERS)) + "|"]
    for oracle in sorted(first, key=first.__getitem__):
        means = " | ".join(f"{by[oracle]:.4f}" for by in losses.values())
        lines.append(
            f"| `{oracle}` | {means} | {cells(found[oracle]) if oracle in found else ' | '.join('-' * len(NUMBERS))} |"
        )
    lines += ["", ABOUT, ""]
    for k, (setting, by) in enumerate(losses.items()):
        seeds = len(next(iter(table[setting].values())))
        fixed = {oracle: loss for oracle, loss in by.items() if oracle != EXACT}
        lines.append(f"- loss {k + 1}: {setting}, {seeds} seeds. Rank correlation with it: {ranks(found, fixed)}.")
    return "\n".join(lines) + "\n"


def main() -> None:
    """The command."""
    given = arguments(__doc__)
    table = read(given.store)
    (given.out / "held-out.json").write_text(json.dumps(table, indent=1) + "\n")
    page = markdown(table, spectra.load(given.spectra))
    (given.out / "held-out.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
