"""Sweeps as processes, for the tests that kill them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inexact_muon_lab.store import curves, store
from lab_stores import reproducible

STUDY = """
name = "many"
seeds = [0, 1]
[base]
steps = 60
batch = 32
record_every = 1
checkpoint_every = 8
validation = 2
problem.name = "cnn"
problem.widths = [8, 8, 8]
optimizer.name = "scion"
telemetry.every = 30
[[grid]]
optimizer.lr = [0.001, 0.002]
optimizer.polar = ["jordan:1", "jordan:5"]
"""
RUNS, STEPS = 8, 60


def write_study(folder: Path, text: str = STUDY) -> Path:
    path = folder / "study.toml"
    path.write_text(text)
    return path


def start(*words: object, **options: Any) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "inexact_muon_lab", *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(line, **(pipes | options))  # type: ignore[call-overload, no-any-return]


def finish(*words: object, code: int = 0, **options: Any) -> str:
    child = start(*words, **options)
    said = child.communicate()[0]
    assert child.returncode == code, said
    return said


def workers(sweep: int) -> list[int]:
    """The processes that a sweep started and that train (the other one is multiprocessing's own)."""
    found = []
    for text in Path(f"/proc/{sweep}/task/{sweep}/children").read_text().split():
        try:
            line = Path(f"/proc/{text}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if b"spawn_main" in line:
            found.append(int(text))
    return found


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def progress(folder: Path, steps: int = STEPS) -> float:
    """Runs that have ended, plus the share that the others have come to."""
    total = 0.0
    for run in (folder / "runs").glob("*"):
        if (run / store.OUTCOME).exists():
            total += 1
        elif (run / store.CURVES).exists():
            total += max((r["step"] for r in curves.read(run / store.CURVES)), default=0) / steps
    return total


def wait_for(folder: Path, amount: float, child: subprocess.Popen[str], steps: int = STEPS) -> None:
    while progress(folder, steps) < amount and child.poll() is None:
        time.sleep(0.02)


def everything(folder: Path) -> dict[str, Any]:
    """State, result and curves of every run, without wall times."""
    return {
        run.id: (run.state, run.outcome and (run.outcome.step, run.outcome.result), without_times(folder, run.id))
        for run in store.runs(folder)
    }


def without_times(folder: Path, run: str) -> list[curves.Record]:
    return reproducible(store.run_folder(folder, run) / store.CURVES)


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of its own, with room for `size`."""
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def dies(channel: object, index: int) -> None:
    """A worker that never gets ready."""
    os._exit(3)
