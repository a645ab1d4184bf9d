"""A study from Python: plan it, train it on local workers, read the store, write the page. Ends in runs/example."""

import sys
from functools import partial
from pathlib import Path

from rich.console import Console

from inexact_muon_lab.report.build import build
from inexact_muon_lab.spec import study
from inexact_muon_lab.store import store
from inexact_muon_lab.sweep.engines import LocalEngine
from inexact_muon_lab.sweep.sweep import sweep


def main(folder: Path) -> None:
    """Workers import this file, so nothing happens at its top."""
    written = study.Study(
        name="example",
        title="A byte GPT by Polar Express iterations",
        seeds=(0, 1),
        base={
            "steps": 30,
            "batch": 8,
            "validation": 2,
            "problem": {"name": "nanogpt", "layers": 1, "width": 32, "heads": 2, "context": 32},
            "optimizer": {"name": "muon", "lr": 0.1, "momentum": 0.7},
            "telemetry": {"every": 10},
        },
        grid=[{"optimizer": {"polar": ["polar-express:1", "polar-express:5"]}}],
    )
    plan = study.plan(written, "example")
    console = Console()
    sweep(plan, folder, partial(LocalEngine, 2), console)

    for run in store.runs(folder):
        assert run.outcome is not None
        print(run.id, run.spec.optimizer.polar, run.spec.seed, run.outcome.state, run.outcome.result["loss"])
    losses = [r["loss"] for r in store.read_curves(folder, run.id) if r["kind"] == "train"]
    print(f"page: {build(folder, console, pictures=False).page}")
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/example"))
