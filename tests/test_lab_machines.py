"""Several processes on one run, several machines on one study: the same bits, whoever is lost."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from inexact_muon_lab.errors import LabError
from inexact_muon_lab.store import store
from inexact_muon_lab.sweep.engines.remote import (
    TICKET,
    SlurmEngine,
    prepare,
    store_answer,
    train_in_job,
    train_remotely,
)
from inexact_muon_lab.sweep.events import Broken, Done
from inexact_muon_lab.train import checkpoint
from lab_cases import CNN, CUSTOM, run_spec
from lab_processes import everything, finish, kill, start, wait_for, write_study
from tiers import at_length

STUDY = """
name = "few"
[base]
steps = 120
batch = 32
record_every = 1
checkpoint_every = 10
validation = 2
problem.name = "cnn"
problem.widths = [8, 8, 8]
optimizer.name = "scion"
[[grid]]
optimizer.lr = [0.001, 0.002, 0.004]
"""
RUN = """
steps = 100
batch = 8
accumulate = 2
record_every = 1
checkpoint_every = 10
evaluate_every = 50
validation = 3
telemetry.every = 50
"""
GPT = RUN + 'problem = { name = "nanogpt", layers = 1, width = 16, heads = 2, context = 16 }\n'
BATCH_NORM = RUN + 'problem = { name = "cnn", widths = [4, 4, 4] }\n'


# a job of another machine, in this process ----------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False])
def test_files_come_back_from_a_machine_that_does_not_see_the_store(tmp_path: Path, shared: bool) -> None:
    spec = run_spec({"problem": CNN})
    folders = tmp_path / "store", tmp_path / "moved"
    folders[0].mkdir()
    job = prepare(spec, folders[0])
    if not shared:
        (folders[0] / TICKET).write_text("another machine's folder of the same name")
    answer = train_remotely(job)
    assert bool(answer) is not shared
    event = store_answer(spec.id, folders[0], answer)
    assert isinstance(event, Done)
    assert event.outcome == store.read_outcome(folders[0])
    assert event.outcome is not None
    assert event.outcome.state == "finished"
    assert (folders[0] / store.CURVES).stat().st_size > 0


def test_a_sentence_comes_back(tmp_path: Path) -> None:
    job = prepare(run_spec({"problem": {"name": "custom", "target": "nope:nope"}}), tmp_path)
    event = store_answer("x", tmp_path, train_remotely(job))
    assert isinstance(event, Broken)
    assert "there is no module 'nope'" in event.sentence


@pytest.mark.parametrize("shared", [True, False])
def test_a_cancelled_job_ends_with_a_checkpoint(tmp_path: Path, shared: bool) -> None:
    """Two signals come at step 6: Ctrl-C and submitit's own."""
    spec = run_spec({"problem": CUSTOM | {"arguments": {"interrupt_at": 6}}, "optimizer": {"name": "sgd"}})
    job = prepare(spec, tmp_path)
    if not shared:
        (tmp_path / TICKET).unlink()
    before = signal.getsignal(signal.SIGINT)
    event = store_answer(spec.id, tmp_path, train_in_job(job))
    assert event == Done(spec.id, None)
    assert signal.getsignal(signal.SIGINT) is before
    kept = checkpoint.load(tmp_path / store.CHECKPOINT, torch.device("cpu"))
    assert (kept and kept["step"]) == (7 if shared else None)


def processes(*parts: bytes, file: str = "cmdline") -> list[int]:
    """The processes whose command line (or environment) has all of these parts."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            line = (folder / file).read_bytes()
            if all(part in line for part in parts) and int(folder.name) != os.getpid():
                found.append(int(folder.name))
    return found


# torchrun -------------------------------------------------------------------------------------------------------------


def torchrun(*words: object) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    line += ["-m", "inexact_muon_lab", "run", *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(line, env=os.environ | {"OMP_NUM_THREADS": "1"}, **pipes)  # type: ignore[call-overload, no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize("text", at_length([BATCH_NORM], GPT), ids=["batch norm", "gpt"])
def test_two_processes_resume_bit_for_bit(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    whole = torchrun(path, "--out", tmp_path / "whole")
    said = whole.communicate()[0]
    assert whole.returncode == 0, said
    (run,) = store.runs(tmp_path / "whole")
    assert run.outcome is not None
    assert run.outcome.environment["processes"] == "2"

    killed = torchrun(path, "--out", tmp_path / "parts")
    wait_for(tmp_path / "parts", 0.2, killed, steps=100)
    for pid in processes(str(tmp_path / "parts").encode()):  # the ranks are in sessions of their own
        kill(pid)
    killed.communicate()
    assert not (tmp_path / "parts" / "runs" / run.id / store.OUTCOME).exists()
    assert (tmp_path / "parts" / "runs" / run.id / store.CHECKPOINT).exists()
    resumed = torchrun(path, "--out", tmp_path / "parts")
    said = resumed.communicate()[0]
    assert resumed.returncode == 0, said
    assert everything(tmp_path / "parts") == everything(tmp_path / "whole")


@pytest.mark.slow
def test_two_processes_are_one_with_the_same_batch(tmp_path: Path) -> None:
    """To rounding: sums are taken in another order."""
    path = tmp_path / "run.toml"
    path.write_text(GPT.replace("steps = 100", "steps = 5"))
    two = torchrun(path, "--out", tmp_path / "two")
    said = two.communicate()[0]
    assert two.returncode == 0, said
    finish("run", path, "--out", tmp_path / "one")
    losses = [
        [r["loss"] for r in store.read_curves(tmp_path / name, store.runs(tmp_path / name)[0].id) if "loss" in r]
        for name in ("one", "two")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


# clusters -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("undisturbed")
    finish("sweep", write_study(folder, STUDY), "--out", folder / "out", "--workers", 2)
    return everything(folder / "out")


@pytest.fixture
def ray_cluster(tmp_path: Path) -> Iterator[str]:
    """A head without CPUs and two nodes of one CPU each; yields its address."""
    pytest.importorskip("ray", reason="ray is not installed: pip install 'inexact-muon[ray]'")
    ray = shutil.which("ray", path=str(Path(sys.executable).parent))
    assert ray is not None
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    port = 20000 + os.getpid() % 20000
    mark = f"LAB_TEST_CLUSTER={port}"  # Ray's processes change their command lines, not this
    environment = os.environ | dict([mark.split("=")]) | {"RAY_USAGE_STATS_ENABLED": "0"}
    head = [ray, "start", "--head", "--num-cpus=0", f"--port={port}", "--include-dashboard=false"]
    try:
        subprocess.run(head, check=True, env=environment, timeout=300, **quiet)
        for number in range(2):
            node = [ray, "start", f"--address=127.0.0.1:{port}", "--num-cpus=1", f"--node-name=node{number}"]
            subprocess.run(node, check=True, env=environment, timeout=300, **quiet)
        yield f"127.0.0.1:{port}"
    finally:
        for pid in processes(mark.encode(), file="environ"):
            kill(pid)


@pytest.mark.slow
def test_ray_finishes_although_a_node_is_killed(tmp_path: Path, ray_cluster: str, undisturbed: dict[str, Any]) -> None:
    out = tmp_path / "out"
    words = ["sweep", write_study(tmp_path, STUDY), "--out", out, "--engine", "ray", "--address", ray_cluster]
    child = start(*words)
    wait_for(out, 0.5, child, steps=120)
    port = int(ray_cluster.rpartition(":")[2])
    raylets = processes(f":{port}".encode(), b"raylet", b"node1")
    assert raylets
    for pid in raylets:
        kill(pid)
    said = child.communicate()[0]
    assert child.returncode == 0, said
    assert "few: 3 runs: 3 finished" in said
    assert everything(out) == undisturbed


def test_no_ray_cluster_is_one_sentence(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'inexact-muon[ray]'")
    said = finish(
        "sweep",
        write_study(tmp_path, STUDY),
        *("--out", tmp_path / "out", "--engine", "ray", "--address", "127.0.0.1:1"),
        code=2,
    )
    assert "inexact-muon: no Ray cluster at 127.0.0.1:1" in said.splitlines()[-1]
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_slurm_finishes_although_a_job_is_killed(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    """With submitit's own local executor in the place of SLURM."""
    pytest.importorskip("submitit", reason="submitit is not installed: pip install 'inexact-muon[slurm]'")
    out = tmp_path / "out"
    words = ["--out", out, "--engine", "slurm", "--address", "local", "--workers", "2"]
    child = start("sweep", write_study(tmp_path, STUDY), *words)
    wait_for(out, 0.5, child, steps=120)
    jobs = list(Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split())
    assert jobs
    grandchildren = Path(f"/proc/{jobs[0]}/task/{jobs[0]}/children").read_text().split()
    for pid in (*grandchildren, jobs[0]):
        kill(int(pid))
    said = child.communicate()[0]
    assert child.returncode == 0, said
    assert "was lost" in said
    assert everything(out) == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("group", at_length([True], False), ids=["Ctrl-C", "kill -INT"])
def test_slurm_stops_at_once_and_resumes(tmp_path: Path, undisturbed: dict[str, Any], group: bool) -> None:
    """Ctrl-C reaches the jobs of submitit's local executor too, which are in the group of the sweep."""
    pytest.importorskip("submitit", reason="submitit is not installed: pip install 'inexact-muon[slurm]'")
    out, study = tmp_path / "out", write_study(tmp_path, STUDY)
    child = start(
        *("sweep", study, "--out", out, "--engine", "slurm", "--address", "local", "--workers", 2),
        start_new_session=True,
    )
    wait_for(out, 0.5, child, steps=120)
    kill(-child.pid if group else child.pid, signal.SIGINT)
    said = child.communicate()[0]
    assert child.returncode == 130, said
    assert "Traceback" not in said
    assert "lost" not in said
    assert said.splitlines()[-1].endswith(f"finished runs are stored in {out}; the same command resumes")
    assert "running" not in [run.state for run in store.runs(out)]
    while processes(b"submitit", str(out).encode()):
        time.sleep(0.05)
    finish("sweep", study, "--out", out, "--workers", 2)
    assert everything(out) == undisturbed


def test_no_slurm_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit", reason="submitit is not installed: pip install 'inexact-muon[slurm]'")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LabError, match="no SLURM here"):
        SlurmEngine(None, tmp_path, "")
