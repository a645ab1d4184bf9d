"""Output of `inexact-muon list` and `show`; read-only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from inexact_muon._text import printable
from inexact_muon.sheet import Row, Sheet
from inexact_muon_lab.spec.study import field_of
from inexact_muon_lab.store import store
from inexact_muon_lab.store.outcome import ENDED
from inexact_muon_lab.sweep.board import label, short
from inexact_muon_lab.terminal import number, write_json

BARS = "▁▂▃▄▅▆▇█"


def records(folder: Path, about: dict[str, str], runs: list[store.Run]) -> list[dict[str, Any]]:
    """One plain record per run of a store, from its description and its runs."""
    varied = _varied(about)
    return [
        {
            "id": run.id,
            "state": run.state,
            "step": step_of(folder, run),
            "steps": run.spec.steps,
            **{name: field_of(run.spec, name) for name in varied},
            "result": run.outcome.result if run.outcome else {},
            "skipped": run.outcome.skipped if run.outcome else {},
            "seconds": sum(run.outcome.seconds.values()) if run.outcome else None,
            "attempts": run.attempts,
        }
        for run in runs
    ]


def show_list(folder: Path, as_json: bool, console: Console) -> None:
    """The runs of a store and their states."""
    about, runs = store.read(folder)
    listed = records(folder, about, runs)
    if as_json:
        console.file.write(msgspec.json.format(msgspec.json.encode(listed)).decode() + "\n")
        return
    varied = _varied(about)
    metrics = list(dict.fromkeys(name for record in listed for name in record["result"]))
    stopped = [record for record in listed if record["skipped"]]
    rows = [
        Row(
            [
                record["id"],
                record["state"],
                *(short(record[name]) for name in varied),
                f"{record['step']}/{record['steps']}",
                *(number(record["result"].get(name)) for name in metrics),
                *([str(max(record["skipped"].values(), default=""))] if stopped else []),
                "" if record["seconds"] is None else number(record["seconds"], 3),
            ]
        )
        for record in listed
    ]
    named = (*(name.rpartition(".")[2] for name in varied), "step", *metrics, *(["skipped"] if stopped else []))
    titles = ("run", "state", *named, "seconds")
    Sheet(about.get("title") or about.get("name", ""), titles, rows, aligned_left=("run", "state")).print(console)
    states = [record["state"] for record in listed]
    console.print(
        ", ".join(f"{states.count(s)} {s}" for s in (*ENDED, "running", "waiting") if s in states) or "no runs yet"
    )
    if stopped:
        console.print(
            f"{len(stopped)} runs skipped steps of parameters whose gradient was not finite; the column has the most "
            f"of one: inexact-muon show {folder} {stopped[0]['id']} names them",
            soft_wrap=True,
            highlight=False,
        )


def show_run(folder: Path, run_id: str, console: Console, as_json: bool = False) -> None:
    """One run: spec, result, a sparkline per curve, and the traceback if it failed."""
    run = store.find(folder, run_id)
    if as_json:
        write_json({**msgspec.to_builtins(run), "curves": store.intact_curves(folder, run.id, run.outcome)})
        return
    console.print(f"{run.id} {run.state}, step {step_of(folder, run)} of {run.spec.steps}, attempts {run.attempts}")
    console.print(label(run.spec, _varied(store.about(folder))), markup=False, soft_wrap=True)
    console.print_json(printable(msgspec.json.encode(run.spec).decode()))
    curves = store.intact_curves(folder, run.id, run.outcome)
    for kind, name in (("train", "loss"), ("validation", "loss"), ("validation", "accuracy"), ("lmo", "sum")):
        values = [r[name] for r in curves if r["kind"] == kind and r.get(name) is not None]
        if values:
            ends = f"{number(values[0])} -> {number(values[-1])}"
            bars = sparkline(values, min(40, max(1, console.width - 22 - len(ends))))
            console.print(f"{kind + ' ' + name:<20} {bars} {ends}", soft_wrap=True)
    if run.outcome:
        for name, value in run.outcome.result.items():
            console.print(f"{name:<20} {number(value)}")
        seconds = ", ".join(f"{part} {number(value, 3)}" for part, value in run.outcome.seconds.items())
        console.print(f"{'seconds':<20} {seconds}", soft_wrap=True)
        for name, count in run.outcome.skipped.items():
            never = ": it never moved" if name in run.outcome.stuck else ""
            console.print(f"{'skipped steps':<20} {name} {count} of {run.outcome.step}{never}", soft_wrap=True)
        if run.outcome.error:
            console.print(run.outcome.error, markup=False, highlight=False)
    for path in sorted(store.run_folder(folder, run.id).glob("*")):
        console.print(f"{path} ({path.lstat().st_size} bytes)", soft_wrap=True, highlight=False)


def step_of(folder: Path, run: store.Run) -> int:
    """The last step of a run, from its outcome or its curves."""
    if run.outcome:
        return run.outcome.step
    return max((record["step"] for record in store.intact_curves(folder, run.id, run.outcome)), default=0)


def sparkline(values: list[float], width: int = 40) -> str:
    """A curve as one line of bars."""
    chosen = [values[i * len(values) // min(width, len(values))] for i in range(min(width, len(values)))]
    low, high = min(chosen), max(chosen)
    return "".join(BARS[round((v - low) / (high - low) * 7) if high > low else 0] for v in chosen)


def _varied(about: dict[str, str]) -> list[str]:
    return [name for name in about.get("varied", "").split(",") if name]
