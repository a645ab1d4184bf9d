"""Tables and page of `inexact-muon bench`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from inexact_muon._text import nearest
from inexact_muon.sheet import Row, Sheet
from inexact_muon_lab.bench import oracles, steps
from inexact_muon_lab.bench.oracles import ACCURATE, FAST
from inexact_muon_lab.bench.timing import WARM, device_of, machine

Report = dict[str, Any]

PARTS = ("oracles", "steps", "memory")
FORMS = {"delta": ".3f", "gap": "+.3f", "overshoot": ".3f", "smallest": ".3f"}


def run(peers: bool, rounds: int, console: Console, parts: Sequence[str] = PARTS, on: str = "cpu") -> Report:
    """Run the given parts on a device, with a progress bar that counts rounds."""
    for part in parts:
        if part not in PARTS:
            raise ValueError(f"unknown part {part!r}: {nearest(part, PARTS)}")
    device = device_of(on)
    length = {"oracles": 4 * (rounds + WARM), "steps": 7 * rounds + 3 * WARM, "memory": 1}
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("benchmark", total=sum(length[part] for part in parts))

        def tick() -> None:
            progress.advance(task)

        report: Report = {"device": str(device), "machine": machine(device, peers)}
        if "oracles" in parts:
            report["oracles"] = oracles.compare(rounds, tick, device)
        if "steps" in parts:
            report["steps"], report["absent"] = steps.compare(rounds, peers, tick, device)
        if "memory" in parts:
            report["memory"] = steps.memory(device)
    return report


def tables(report: Report) -> list[tuple[str, list[str], list[list[str]]]]:
    """(title, header, rows) of every part."""

    def ratio(r: Report) -> str:
        return f"{r['time']:.2f} ({r['low']:.2f}-{r['high']:.2f})"

    def accuracy(r: Report, *more: str) -> list[str]:
        return [f"{r[key]:{FORMS[key]}}" if key in r else "" for key in (*more, "gap", "overshoot", "smallest")]

    def megabytes(size: int, digits: int) -> str:
        return f"{size / 2**20:.{digits}f}"

    every = [
        (
            "One GPT-2 layer: time over the two unavoidable products (quartiles), worst matrix of the set",
            ["spectrum", "oracle", "time", "delta", "gap", "overshoot", "smallest"],
            [[r["spectrum"], r["oracle"], ratio(r), *accuracy(r, "delta")] for r in report.get("oracles", ())],
        ),
        (
            "Whole steps: time over that of Muon.for_model (quartiles) and over AdamW's; gap, overshoot and smallest "
            "singular value of the step on recorded momentum",
            ["matrices", "optimizer", f"over {FAST}", f"over {ACCURATE}", "over AdamW", "gap", "overshoot", "smallest"],
            [
                [r["set"], r["optimizer"], ratio(r[FAST]), ratio(r[ACCURATE]), f"{r['adamw']:.1f}", *accuracy(r)]
                for r in report.get("steps", ())
            ],
        ),
        (
            "Memory of a step beyond parameters, gradients and state",
            ["matrices", "peak MB", "copies of the largest", "allowed MB"],
            [
                [r["set"], megabytes(r["peak"], 1), f"{r['copies of the largest']:.1f}", megabytes(r["allowed"], 0)]
                for r in report.get("memory", ())
            ],
        ),
    ]
    return [table for table in every if table[2]]


def closing(report: Report) -> list[str]:
    """Sentences below the tables."""
    facts = ", ".join(f"{key} {value}" for key, value in report["machine"].items())
    sentences = [f"Measured on this machine: {facts}."]
    if report["machine"].get("bfloat16 products") == "emulated":
        sentences.append(
            "This CPU has no bfloat16 products. The other packages multiply in bfloat16, so unmodified they are many "
            "times slower here than on a CPU that has them. Rows in float32 run their code without casts to bfloat16."
        )
    sentences += [f"No row: {name} ({reason})." for name, reason in report.get("absent", {}).items()]
    return sentences


def show(report: Report, console: Console) -> None:
    """Print the tables to a terminal."""
    for title, header, rows in tables(report):
        keys = sum(name in ("spectrum", "oracle", "matrices", "optimizer") for name in header)
        sheet = Sheet(title, tuple(header), [Row(row) for row in rows], aligned_left=tuple(header[:keys]), keys=keys)
        sheet.print(console)
    for sentence in closing(report):
        console.print(sentence)


def markdown(report: Report) -> str:
    """The tables as a page."""
    on = "" if report.get("device", "cpu") == "cpu" else f" --device {report['device']}"
    lines = [
        f"Written by `inexact-muon bench --peers{on} --out benchmarks/results/bench.json`. Everything here was timed.",
        "",
    ]
    lines += ["What a step costs on a GPU is modelled, not timed: [modelled.md](modelled.md).", ""] if not on else []
    for title, header, rows in tables(report):
        lines += [f"## {title}", "", "| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
        lines += ["| " + " | ".join(row) + " |" for row in rows] + [""]
    return "\n".join([*lines, *closing(report), ""])


def check_file(path: Path, device: str) -> None:
    """Raise if the file has figures of another device, before anything is timed."""
    held = json.loads(path.read_text()).get("device", "cpu") if path.exists() else device
    if held != device:
        raise ValueError(f"{path} holds figures of device {held!r}, not {device!r}: name another file")


def save(report: Report, path: Path) -> list[Path]:
    """Write the report as JSON, and a page next to it; parts of the file that were not run are kept."""
    path.parent.mkdir(parents=True, exist_ok=True)
    report = {**(json.loads(path.read_text()) if path.exists() else {}), **report}
    path.write_text(json.dumps(report, indent=1) + "\n")
    page = path.with_suffix(".md")
    page.write_text(markdown(report))
    return [path, page]
