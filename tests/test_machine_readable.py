"""`--json` on every command that prints numbers is one JSON value that agrees with the API; pipes end quietly."""

from __future__ import annotations

import inspect
import json
import math
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from cases import BALLS
from inexact_muon import measure, transfer
from inexact_muon_lab import cli
from inexact_muon_lab.terminal import plain
from inexact_muon_lab.theory import BOUNDS
from inexact_muon_lab.train import environment
from report_cases import ladder, write
from test_catalogue import run

WITHOUT = {"demo", "run", "sweep", "pack"}
"""Commands that train or write files; `list --json` and `report --json` have their numbers."""


def test_every_command_that_prints_numbers_has_the_flag() -> None:
    flagged = {name for name, c in cli.COMMANDS.items() if inspect.signature(c).parameters.get("json")}
    assert flagged == set(cli.COMMANDS) - WITHOUT
    for name in flagged:
        assert inspect.signature(cli.COMMANDS[name]).parameters["json"].annotation == "bool", name


def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    code, out, _ = run(monkeypatch, capsys, *words, "--json")
    assert code == 0
    assert out.count("\n") == 1
    return json.loads(out)


def test_transfer_and_theory(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--lr", ".05", "--momentum", ".95", "--from", "polar-express:5", "--to", "polar-express:2")
    found = said(monkeypatch, capsys, "transfer", *words)
    carried = transfer(0.05, 0.95, "polar-express:5", "polar-express:2")
    assert (found["lr"], found["momentum"]) == (carried.lr, carried.momentum)
    assert set(found["rules"]) >= {"descent", "measured", "paper", "deterministic"}
    assert {s["name"] for s in said(monkeypatch, capsys, "theory", "list")} == set(BOUNDS)
    one = said(monkeypatch, capsys, "theory", "stochastic-optimal", "--set", "delta=0.1")
    assert one["values"]["delta"] == 0.1
    assert "delta" not in one["assumed"]
    assert all(math.isfinite(value) for value in one["result"].values() if not isinstance(value, bool))


def test_runs_and_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("altair", reason="the report needs the extra `lab`")
    folder = write(tmp_path / "store", ladder(seeds=3))
    found = said(monkeypatch, capsys, "report", str(folder), "--out", str(tmp_path / "page"))
    (lower,) = [row for row in found["claims"] if row["claim"] == "lower-loss"]
    assert (lower["verdict"], lower["n"], lower["counted"]) == ("confirmed", 3, True)
    assert lower["low"] < lower["mean"] < lower["high"]
    name = sorted(path.name for path in (folder / "runs").iterdir())[0]
    shown = said(monkeypatch, capsys, "show", str(folder), name)
    assert shown["id"] == name
    assert shown["outcome"]["result"]["loss"] == pytest.approx(2.0, abs=1.0)
    assert len(shown["curves"]) == 30


class Pair(NamedTuple):
    a: float
    b: float


def test_plain_data_is_what_json_has() -> None:
    value = {"x": math.inf, "y": np.array([1.0, math.nan]), "z": Pair(1.0, 2.0), "w": (True, None, Path("p"))}
    assert plain(value) == {"x": None, "y": [1.0, None], "z": {"a": 1.0, "b": 2.0}, "w": [True, None, "p"]}


@pytest.mark.slow
def test_a_pipe_that_has_seen_enough_ends_quietly() -> None:
    for words in (["theory", "list"], ["delta", "polar-express:5", "--json"], ["--help"]):
        made = subprocess.Popen(
            [sys.executable, "-m", "inexact_muon_lab", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert made.stdout is not None
        assert made.stderr is not None
        made.stdout.close()  # before it writes anything
        assert made.stderr.read() == b""
        made.stderr.close()
        assert made.wait() in (0, 141)


@pytest.mark.parametrize("size", [5.0, 0.01])
@pytest.mark.parametrize("shape", [(6, 4), (64, 96)])
@pytest.mark.parametrize("name", [name for name in BALLS if not name.startswith("euclidean")])  # there both are alike
def test_swapped_arguments_of_measure_are_one_sentence(name: str, shape: tuple[int, int], size: float) -> None:
    """Whatever the ball, for long and short momenta; in the right order nothing is said, whatever their length."""
    ball, m = BALLS[name], torch.randn(shape, generator=torch.Generator().manual_seed(0))
    m = size * m / ball.norm(m)
    with pytest.warns(UserWarning, match=r"write measure\(ball, m, d_hat\)") as caught:
        measure(ball, ball(m), m)
    assert "\n" not in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for momentum in (m, m / ball.norm(m)):
            measure(ball, momentum, ball(momentum))


def test_the_share_of_other_processes_is_between_none_and_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters of a machine whose cores were all busy, half busy and idle, beside a process that did nothing."""
    statistics = tmp_path / "stat"
    monkeypatch.setattr(environment, "STATISTICS", statistics)
    monkeypatch.setattr(environment.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(environment.os, "sysconf", lambda name: 100)
    monkeypatch.setattr(environment.time, "process_time", lambda: 0.0)
    seconds = iter([0.0, 10.0] * 3)
    monkeypatch.setattr(environment.time, "perf_counter", lambda: next(seconds))
    for busy, expected in ((2000, 1.0), (1000, 0.5), (0, 0.0)):
        statistics.write_text("cpu  100 0 50 9999 0 0 0 0 0 0\nintr 1\n")
        others = environment.OtherProcesses()
        statistics.write_text(f"cpu  {100 + busy} 0 50 {9999 + 2000 - busy} 0 0 0 0 0 0\nintr 1\n")
        assert others.share() == pytest.approx(expected)
    monkeypatch.setattr(environment, "STATISTICS", tmp_path / "missing")
    assert environment.OtherProcesses().share() is None
