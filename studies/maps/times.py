"""Times of the oracles of Study D on the matrices of the GPT of four layers, all in one process, one after the other.

`python studies/maps/times.py studies/maps studies/reference` writes times.json beside this file: the median over rounds
of an oracle's time over that of three poles in the same round, and its quartiles. Nothing else should run beside it.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from grids import THREE_POLES

from inexact_muon import polar

FILE = Path(__file__).parent / "times.json"
SHAPES = [(192, 192)] * 16 + [(768, 192)] * 4 + [(192, 768)] * 4
"""Queries, keys, values and outputs of attention; both matrices of the MLP."""
ROUNDS = 40
WARM = 3


def measured(oracles: list[str]) -> dict[str, list[float]]:
    """Oracle -> (lower quartile, median, upper quartile) of its time over that of three poles."""
    generator = torch.Generator().manual_seed(0)
    matrices = [torch.randn(shape, generator=generator) for shape in SHAPES]
    methods = {text: polar.parse(text) for text in dict.fromkeys([THREE_POLES, *oracles])}
    ratios: dict[str, list[float]] = {text: [] for text in methods}
    for turn in range(WARM + ROUNDS):
        print(f"round {turn + 1} of {WARM + ROUNDS}", end="\r", file=sys.stderr)
        seconds = {}
        for text, method in methods.items():
            start = time.perf_counter()
            method.orthogonalise_all(matrices)
            seconds[text] = time.perf_counter() - start
        for text, spent in seconds.items() if turn >= WARM else ():
            ratios[text].append(spent / seconds[THREE_POLES])
    return {text: [round(float(q), 2) for q in np.quantile(found, (0.25, 0.5, 0.75))] for text, found in ratios.items()}


def main() -> None:
    """The command."""
    from table import made

    if len(sys.argv) == 1:
        raise SystemExit("name the folders of packed evidence: studies/maps studies/reference")
    oracles = list(made(*map(Path, sys.argv[1:]))[0]["enough"])
    content = {"threads": torch.get_num_threads(), "rounds": ROUNDS, "times": measured(oracles)}
    FILE.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
