"""What telemetry adds to a step: every step, and every tenth, over the same step without it.

    python benchmarks/telemetry.py            prints and writes benchmarks/results/telemetry.{md,json}

The first sampled step, which measures every parameter once, is part of the warming up.
"""

import json
from pathlib import Path

from rich.progress import Progress

from inexact_muon.optim import Muon
from inexact_muon_lab.bench import steps
from inexact_muon_lab.bench.steps import MATRICES, Bag
from inexact_muon_lab.bench.timing import interleaved, ratio

RESULTS = Path(__file__).parent / "results"
SETS = {name: steps.SETS[name] for name in ("18 small matrices", "GPT-2 layer")}
STEPS = 10
"""Steps of one turn, so that one of them is sampled with every=10."""


def run(rounds: int = 5) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    with Progress(transient=True) as progress:
        task = progress.add_task("telemetry", total=len(SETS) * (rounds + 2))
        for name, shapes in SETS.items():
            made = {f"every {k}": Muon.for_model(Bag(shapes), 1e-3, rules=MATRICES, sample_every=k) for k in (0, 1, 10)}
            works = {
                key: (lambda optimizer=optimizer: [optimizer.step() for _ in range(STEPS)])
                for key, optimizer in made.items()
            }
            times = interleaved(works, rounds, lambda: progress.advance(task))
            sampled = ("every 1", "every 10")
            rows += [{"set": name, "sampling": key, **ratio(times, key, "every 0")} for key in sampled]
    return rows


if __name__ == "__main__":
    found = run()
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "telemetry.json").write_text(json.dumps(found, indent=1) + "\n")
    lines = ["Written by `python benchmarks/telemetry.py`: step with telemetry over the step without.", ""]
    lines += ["| matrices | sampling | time over none (quartiles) |", "| --- | --- | --- |"]
    lines += [f"| {r['set']} | {r['sampling']} | {r['time']:.3f} ({r['low']:.3f}-{r['high']:.3f}) |" for r in found]
    (RESULTS / "telemetry.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
