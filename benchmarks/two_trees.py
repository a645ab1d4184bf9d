"""Whole steps of two source trees, interleaved: `python benchmarks/two_trees.py OTHER/src [--rounds 15]`.

Each tree has a process of its own that waits its turn; a round times both, one after the other, so that a noisy machine
is noisy for both. Printed: other / this (above 1: this tree is faster), median and quartiles over the rounds.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path

SETS = {
    "18 of width 128": [(128, 128)] * 12 + [(128, 512)] * 6,
    "24 of width 256": [(256, 256)] * 16 + [(256, 1024)] * 8,
    "GPT-2 layer": [(768, 768)] * 4 + [(3072, 768), (768, 3072)],
}
ORACLES = ("polar-express:5", "zolotarev:2")
COUNTS = {"18 of width 128": 20, "24 of width 256": 8, "GPT-2 layer": 3}

WORKER = """
import json, sys, time, torch
from torch import nn
from inexact_muon import Muon
torch.set_num_threads(2)
made = {}
for line in sys.stdin:
    name, shapes, oracle, count = json.loads(line)
    if (name, oracle) not in made:
        torch.manual_seed(0)
        params = [nn.Parameter(torch.randn(shape) * 0.02) for shape in shapes]
        for p in params:
            p.grad = torch.randn_like(p)
        made[name, oracle] = Muon(params, lr=0.02, polar=oracle)
        for _ in range(3):
            made[name, oracle].step()
    start = time.perf_counter()
    for _ in range(count):
        made[name, oracle].step()
    print(time.perf_counter() - start, flush=True)
"""


def worker(source: Path) -> subprocess.Popen[str]:
    """A process that steps when it is told to."""
    environment = {**os.environ, "PYTHONPATH": str(source)}
    command = [sys.executable, "-W", "ignore", "-c", WORKER]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def seconds(process: subprocess.Popen[str], order: object) -> float:
    """Of the steps that it was told to make."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(order) + "\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def main() -> None:
    """Prints a row for each set and oracle."""
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    this, other = worker(Path(__file__).parent.parent / "src"), worker(given.other)
    for name, shapes in SETS.items():
        for oracle in ORACLES:
            order = [name, shapes, oracle, COUNTS[name]]
            ratios = [seconds(other, order) / seconds(this, order) for _ in range(given.rounds + 1)][1:]
            low, middle, high = statistics.quantiles(ratios, n=4)
            print(f"{name:16} {oracle:16} {middle:.2f} ({low:.2f} to {high:.2f})", flush=True)


if __name__ == "__main__":
    main()
