"""Killed, interrupted, out of disk: a sweep still ends with the bits of an undisturbed one."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commands import said
from inexact_muon_lab.store import store
from lab_processes import RUNS, everything, finish, kill, progress, small_disk, start, wait_for, workers, write_study
from tiers import at_length

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("undisturbed")
    told = finish("sweep", write_study(folder), "--out", folder / "out", "--workers", 2)
    assert f"many: {RUNS} runs: {RUNS} finished" in told
    found = everything(folder / "out")
    assert len(found) == RUNS
    return found


@pytest.mark.parametrize("kills", at_length([4], 20))
def test_kills_at_random_moments(tmp_path: Path, undisturbed: dict[str, Any], kills: int) -> None:
    """The sweep and one of its workers in turn, whenever the work has come to the next of so many random amounts."""
    rng, out, study = random.Random(kills), tmp_path / "out", write_study(tmp_path)
    moments = sorted(rng.uniform(0.0, 0.85 * RUNS) for _ in range(kills))
    hit, orphans = {"sweep": 0, "worker": 0}, list[int]()
    child = start("sweep", study, "--out", out, "--workers", 2)
    for number, moment in enumerate(moments):
        wait_for(out, moment, child)
        time.sleep(rng.uniform(0, 0.1))
        assert child.poll() is None, "the sweep ended before it was killed"
        found = workers(child.pid)
        if found and number % 2:
            kill(rng.choice(found))
            hit["worker"] += 1
        else:
            orphans += found
            kill(child.pid)
            child.communicate()
            hit["sweep"] += 1
            child = start("sweep", study, "--out", out, "--workers", 2)
            while not workers(child.pid) and child.poll() is None:
                time.sleep(0.02)
    told = child.communicate()[0]
    assert child.returncode == 0, told
    assert min(hit.values()) > 0
    assert sum(hit.values()) == kills
    assert everything(out) == undisturbed
    states = [run.state for run in store.runs(out)]
    assert states == ["finished"] * RUNS
    assert orphans
    while any(map(alive, orphans)):  # the workers of a killed sweep end
        time.sleep(0.05)


def alive(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    return False


def test_ctrl_c_stops_cleanly_and_resumes(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    out, study = tmp_path / "out", write_study(tmp_path)
    child = start("sweep", study, "--out", out, "--workers", 2)
    wait_for(out, 2.5, child)
    kill(child.pid, signal.SIGINT)
    told = child.communicate()[0]
    assert child.returncode == 130, told
    assert "stopping: checkpoints are being written" in told
    assert f"interrupted; finished runs are stored in {out}; the same command resumes" in told
    states = [run.state for run in store.runs(out)]
    assert "running" not in states
    assert states.count("finished") >= 1
    before = progress(out)
    finish("sweep", study, "--out", out, "--workers", 1)
    assert before < RUNS
    assert everything(out) == undisturbed


def test_one_worker_gives_the_same_bits_and_a_second_sweep_is_refused(
    tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    out, study = tmp_path / "out", write_study(tmp_path)
    child = start("sweep", study, "--out", out, "--workers", 1)
    wait_for(out, 0.5, child)
    code, _, err = said("sweep", str(study), "--out", str(out), "--workers", "1")
    assert code == 2
    assert f"another sweep is running on {out}; wait for it, or choose another --out" in err
    assert "running" in said("list", str(out))[1]
    child.communicate()
    assert child.returncode == 0
    assert everything(out) == undisturbed


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "450k") as folder:
        yield folder


def test_a_full_disk_is_one_sentence_and_nothing_is_lost(
    tmp_path: Path, disk: Path, undisturbed: dict[str, Any]
) -> None:
    study = write_study(tmp_path)
    told = finish("sweep", study, "--out", disk / "out", "--workers", 2, code=2)
    assert told.splitlines()[-1].startswith("inexact-muon: cannot write ")
    assert told.splitlines()[-1].endswith("the disk is full; free some space and start again")
    ended = {run.id: run for run in store.runs(disk / "out") if run.state == "finished"}
    assert ended
    before = everything(disk / "out")
    assert all(before[run] == undisturbed[run] for run in ended)
    subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
    finish("sweep", study, "--out", disk / "out", "--workers", 1)
    assert everything(disk / "out") == undisturbed


def test_a_read_only_disk_is_one_sentence(tmp_path: Path, disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro,size=64m", disk], check=True)
    code, _, err = said("sweep", str(write_study(tmp_path)), "--out", str(disk / "out"))
    assert code == 2
    assert err.splitlines() == [
        f"inexact-muon: cannot write {disk / 'out'}: it is mounted read-only; choose another --out"
    ]
