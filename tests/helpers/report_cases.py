"""Stores with made-up numbers, written by the store itself, for the report's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import log2
from pathlib import Path
from random import Random
from typing import Any

from inexact_muon_lab.spec.decode import decode
from inexact_muon_lab.spec.spec import RunSpec
from inexact_muon_lab.spec.study import StudyRuns
from inexact_muon_lab.store import pack
from inexact_muon_lab.store.curves import Curves
from inexact_muon_lab.store.pack import PackedRun, PackedStore
from inexact_muon_lab.store.store import CURVES, Outcome, Store, write_outcome

GPT = {"name": "nanogpt", "size": "tiny", "context": 64}
COUNTS = (1, 2, 3, 5, 8)
LOSSES = {1: 2.0, 2: 1.8, 3: 1.6, 5: 1.52, 8: 1.51}
LAYERS = ("blocks.0.qkv", "blocks.1.fc")


@dataclass
class Case:
    """One made-up run."""

    fields: dict[str, Any]
    state: str = "finished"
    result: dict[str, float | None] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: {"forward": 1.0, "optimizer": 0.5})
    records: list[tuple[str, int, dict[str, Any]]] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    others: float | None = 0.01

    @property
    def spec(self) -> RunSpec:
        return decode({"steps": 100, **self.fields}, RunSpec, "test")


def write(folder: Path, cases: Iterable[Case], name: str = "study", title: str = "", **declared: Any) -> Path:
    """A store with these runs."""
    kept = list(cases)
    runs = tuple(c.spec for c in kept)
    plan = StudyRuns(name=name, title=title, figure="", varied=("optimizer.polar",), runs=runs, **declared)
    opened = Store(folder, plan)
    try:
        for case in kept:
            if case.state == "waiting":
                continue
            place = opened.run_folder(case.spec.id)
            place.mkdir(exist_ok=True)
            curves = Curves(place / CURVES)
            for kind, step, values in case.records:
                curves.append(kind, step, values)
            curves.close()
            outcome = Outcome(
                state=case.state,  # type: ignore[arg-type]
                step=100,
                result=case.result,
                seconds=case.seconds,
                curves=curves.mark,
                environment=case.environment,
                others=case.others,
            )
            write_outcome(place, outcome)
            opened.end(case.spec.id, outcome)
    finally:
        opened.close()
    return folder


def ended_as(case: Case) -> Outcome | None:
    if case.state == "waiting":
        return None
    return Outcome(state=case.state, step=100, result=case.result, seconds=case.seconds, others=case.others)  # type: ignore[arg-type]


def write_packed(folder: Path, cases: Iterable[Case], name: str = "study") -> Path:
    """A folder with these runs as packed evidence: one file, so that many stores are quick."""
    runs = []
    for case in cases:
        outcome = ended_as(case)
        curves = [{"kind": kind, "step": step, **values} for kind, step, values in case.records]
        spec = case.spec
        runs.append(
            PackedRun(
                id=spec.id,
                spec=spec,
                state=case.state,  # type: ignore[arg-type]
                outcome=outcome,
                curves=curves if outcome else [],
            )
        )
    folder.mkdir(parents=True, exist_ok=True)
    pack.write(folder / f"{name}.pack", [PackedStore(about={"name": name}, runs=runs)])
    return folder


def muon(count: int, lr: float = 0.1, momentum: float = 0.7) -> dict[str, Any]:
    return {
        "name": "muon",
        "lr": lr,
        "momentum": momentum,
        "polar": f"polar-express(steps={count}, normalise=frobenius)",
    }


def noise(seed: int, *cell: float) -> float:
    """Small, the same every time, and not the same for two seeds or cells."""
    return 1e-3 * Random(repr((seed, *cell))).uniform(-2.0, 2.0)


def lmo(delta: float, gap: float, overshoot: float) -> dict[str, Any]:
    """A record of two layers, the second a little better."""
    values = {"delta": delta, "gap": gap, "overshoot": overshoot}
    return {
        "sum": 1.9 * delta,
        **{k: {LAYERS[0]: v, LAYERS[1]: 0.9 * v if k == "delta" else v} for k, v in values.items()},
    }


def ladder(
    losses: dict[int, float] | None = None,
    seeds: int = 3,
    error: Callable[[int, int], float] = lambda count, step: 1.0 / count,
    time: Callable[[int], float] = lambda count: 1.0 + 0.005 * count,
    gap: float = 0.05,
    images: bool = False,
) -> list[Case]:
    """Runs by iterations and seed: language models, or image classifiers."""
    made = []
    for count, loss in (losses or LOSSES).items():
        for seed in range(seeds):
            final = loss + noise(seed, count)
            optimizer = muon(count)
            if images:
                optimizer = {"name": "scion", "polar": f"jordan(steps={count})"}
            records: list[tuple[str, int, dict[str, Any]]] = []
            for step in range(10, 101, 10):
                records.append(("train", step, {"loss": final + 1 / step, "lr": 0.1}))
                delta = error(count, step) * (1 + noise(seed, count, step))
                records.append(("lmo", step, lmo(delta, gap * delta, 1 + 0.5 * delta)))
                records.append(("validation", step, {"loss": final + 10 / step - 0.1}))
            made.append(
                Case(
                    {
                        "problem": {"name": "cnn"} if images else GPT,
                        "optimizer": optimizer,
                        "seed": seed,
                        "telemetry": {"every": 10},
                    },
                    result={"loss": final, "train_loss": final} | ({"accuracy": 0.9} if images else {}),
                    seconds={"forward": time(count) * (1 + noise(seed, count)), "evaluation": 9.0},
                    records=records,
                )
            )
    return made


def grid(
    surface: Callable[[int, float, float], float | None],
    seeds: int = 3,
    images: bool = False,
    rates: Iterable[float] = (0.0125, 0.025, 0.05, 0.1, 0.2),
    momenta: Iterable[float] = (0.5, 0.8, 0.9, 0.95),
    counts: Iterable[int] = (2, 5),
) -> list[Case]:
    """Runs over step size and momentum; a surface that is None diverged there."""
    made = []
    for count in counts:
        for lr in rates:
            for momentum in momenta:
                for seed in range(seeds):
                    value = surface(count, lr, momentum)
                    optimizer = muon(count, lr, momentum)
                    if images:
                        optimizer = {"name": "scion", "lr": lr, "momentum": momentum, "polar": f"jordan(steps={count})"}
                    fields = {"problem": {"name": "cnn"} if images else GPT, "optimizer": optimizer, "seed": seed}
                    metric = "accuracy" if images else "loss"
                    if value is None:
                        made.append(Case(fields, state="diverged", result={"train_loss": None}))
                    else:
                        final = value + noise(seed, count, lr, momentum)
                        made.append(Case(fields, result={"loss": 1.0, metric: final, "train_loss": 1.0}))
    return made


def bowl(best: dict[int, tuple[float, float]], width: dict[int, float]) -> Callable[[int, float, float], float]:
    """Loss 2 + a bowl in log lr and log alpha: its centre (lr, momentum) and width by iterations."""

    def loss(count: int, lr: float, momentum: float) -> float:
        rate, middle = best[count]
        x, y = log2(lr / rate), log2((1 - momentum) / (1 - middle))
        return 2.0 + (x * x + y * y) / (10 * width[count])

    return loss
