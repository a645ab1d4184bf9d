"""What the lab costs: two workers against one and against what the machine can do, overhead of a run, store.

    python benchmarks/lab.py [--repeats 3] [--out benchmarks/results]

Needs two idle cores: the first figure is wall time. Sweeps with one and two workers alternate.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console

from inexact_muon_lab.spec import study
from inexact_muon_lab.spec.spec import canonical
from inexact_muon_lab.store import store
from inexact_muon_lab.store.files import Lock
from inexact_muon_lab.sweep.engines import LocalEngine
from inexact_muon_lab.sweep.sweep import sweep
from inexact_muon_lab.train.observers import PARTS

GPT = {"name": "nanogpt", "size": "tiny", "context": 64}
WORK = {
    "steps": 150,
    "batch": 16,
    "problem": GPT,
    "checkpoint_every": 50,
    "evaluate_every": 50,
    "telemetry": {"every": 50},
}
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
NOTHING = {"steps": 1, "batch": 16, "problem": GPT, "validation": 1}


def timed(base: dict[str, Any], runs: int, workers: int) -> tuple[float, list[store.Run]]:
    """Wall seconds of a sweep from the start of its workers to the end, and its runs."""
    plan = study.plan(study.Study(name="bench", base=base, seeds=tuple(range(runs))), "bench")
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        outcomes = sweep(plan, Path(folder), lambda: LocalEngine(workers), Console(file=io.StringIO()))
        seconds = time.perf_counter() - start
        assert [o.state for o in outcomes.values()] == ["finished"] * runs
        return seconds, store.runs(Path(folder))


PLAIN = """
import sys, tempfile, torch
from pathlib import Path
from inexact_muon_lab.spec.spec import from_json
from inexact_muon_lab.train.trainer import train
torch.set_num_threads(1)
for text in sys.argv[1:]:
    with tempfile.TemporaryDirectory() as folder:
        train(from_json(text), Path(folder))
"""


def plain(base: dict[str, Any], runs: int, processes: int) -> float:
    """Wall seconds of the same runs in processes that know nothing of each other: what this machine can do."""
    plan = study.plan(study.Study(name="bench", base=base, seeds=tuple(range(runs))), "bench")
    texts = [canonical(spec).decode() for spec in plan.runs]
    start = time.perf_counter()
    started = [
        subprocess.Popen([sys.executable, "-c", PLAIN, *texts[index::processes]], env=os.environ | ONE_THREAD)
        for index in range(processes)
    ]
    codes = [process.wait() for process in started]
    seconds = time.perf_counter() - start
    assert not any(codes)
    return seconds


def overhead(runs: list[store.Run]) -> float:
    """Seconds from one end to the next for runs of one step, after the first."""
    ends = sorted(run.ended for run in runs if run.ended)
    return (ends[-1] - ends[0]) / (len(ends) - 1)


def share_of_the_store(runs: list[store.Run]) -> float:
    """Curves and checkpoints, which the trainer's clock sees, and `bookkeeping`, which it does not, over training."""
    seconds = [run.outcome.seconds for run in runs if run.outcome]
    kept = sum(s["storage"] for s in seconds) + len(runs) * bookkeeping()
    return kept / sum(sum(s.values()) for s in seconds)


def bookkeeping(runs: int = 50) -> float:
    """Seconds a run for its folder, its lock, its outcome and its rows in the index."""
    plan = study.plan(study.Study(name="bench", base=WORK, seeds=tuple(range(runs))), "bench")
    outcome = store.Outcome(state="finished", step=150, result={"loss": 1.5}, seconds=dict.fromkeys(PARTS, 1.0))
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        opened = store.Store(Path(folder), plan)
        for spec in plan.runs:
            place = opened.run_folder(spec.id)
            place.mkdir()
            opened.begin(spec.id)
            with Lock(place / "lock", "taken"):
                store.write_outcome(place, outcome)
            opened.end(spec.id, outcome)
        opened.close()
        return (time.perf_counter() - start) / runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    cores, load = os.cpu_count(), os.getloadavg()[0]
    if load > 0.5:
        print(f"others use this machine (load {load:.1f}): the first figures will say more about them", flush=True)
    timed(NOTHING, 1, 1)  # imports torch and reads the text
    rows = []
    for number in range(arguments.repeats):
        one, _ = timed(WORK, arguments.runs, 1)
        two, runs = timed(WORK, arguments.runs, 2)
        limit = plain(WORK, arguments.runs, 2) / plain(WORK, arguments.runs, 1)
        _, short = timed(NOTHING, 10, 1)
        rows.append(
            {
                "two workers / one": two / one,
                "two plain processes / one": limit,
                "seconds a run of one step": overhead(short),
                "share of the store": share_of_the_store(runs),
                "seconds, one worker": one,
                "seconds, two workers": two,
            }
        )
        print(
            f"{number + 1}/{arguments.repeats}", {key: round(value, 4) for key, value in rows[-1].items()}, flush=True
        )
    medians = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    ranges = {key: (min(row[key] for row in rows), max(row[key] for row in rows)) for key in rows[0]}
    lines = ["| | median | range | wanted |", "|---|---:|---:|---:|"]
    wanted = {"two workers / one": "<= 0.55", "seconds a run of one step": "< 3", "share of the store": "< 0.01"}
    for key, value in medians.items():
        low, high = ranges[key]
        lines.append(f"| {key} | {value:.4f} | {low:.4f} to {high:.4f} | {wanted.get(key, '')} |")
    machine = {"cores": cores, "load before": load, "torch": metadata.version("torch")}
    lines += ["", f"{arguments.runs} runs a sweep; {cores} cores, load {load:.2f} before, torch {machine['torch']}."]
    arguments.out.mkdir(parents=True, exist_ok=True)
    report = {"machine": machine, "rows": rows, "median": medians}
    (arguments.out / "lab.json").write_text(json.dumps(report, indent=1) + "\n")
    (arguments.out / "lab.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
