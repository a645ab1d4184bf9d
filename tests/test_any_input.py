"""Names, paths and numbers of any kind: shown as they are, or refused by one sentence; Ctrl-C is one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from inexact_muon import optim
from inexact_muon.sheet import Row, Sheet
from inexact_muon_lab import cli
from inexact_muon_lab.plan.models import Model, Weight
from inexact_muon_lab.spec import study
from inexact_muon_lab.store import store
from inexact_muon_lab.sweep.board import Board
from inexact_muon_lab.sweep.engines.worker import send
from inexact_muon_lab.terminal import console
from lab_stores import BASE, run_all

BRACKETS = "[/b] [bold]x :smile: \\["


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["inexact-muon", *words])
    code = 0
    try:
        cli.main()
    except SystemExit as error:
        code = int(error.code or 0)
    return code, *capsys.readouterr()


# text -----------------------------------------------------------------------------------------------------------------


def test_brackets_in_titles_and_paths_are_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = study.plan(study.Study(name="some", title=BRACKETS, base=BASE), "some.toml")
    folder = tmp_path / "[" / "b] [red]"
    run_all(folder, plan)
    code, out, _ = run(monkeypatch, capsys, "list", str(folder))
    assert code == 0
    assert BRACKETS in out
    code, out, _ = run(monkeypatch, capsys, "show", str(folder), plan.runs[0].id)
    assert code == 0
    assert f"{folder}/runs/{plan.runs[0].id}/outcome.json" in out
    code, out, _ = run(monkeypatch, capsys, "report", str(folder), "--out", str(tmp_path / "[/page]"))
    assert code == 0
    assert "[/page]/report.html" in out


def test_brackets_in_a_run_and_a_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = 'problem = { name = "matrix" }\nsteps = 2\nbatch = 2\nvalidation = 1\noptimizer.name = "sgd"\n'
    spec = tmp_path / "[red] [b].toml"
    spec.write_text(text)
    code, out, err = run(monkeypatch, capsys, "run", str(spec), "--out", str(tmp_path / "[/b]"))
    assert (code, err) == (0, "")
    assert f"inexact-muon show {tmp_path}/[/b] " in out


def test_brackets_in_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    Sheet("[/t]", ("[/b]", "n"), [Row(["[/c]", "1"])]).print(console(80))
    out = capsys.readouterr().out
    assert all(text in out for text in ("[/t]", "[/b]", "[/c]"))


def test_the_live_table_shows_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    base = {**BASE, "problem": {"name": "custom", "target": "a:b", "arguments": {"x": "[/b]"}}}
    grid = [{"problem": {"arguments": {"x": ["[/b]", "[/c]"]}}}]
    plan = study.plan(study.Study(name="s", base=base, grid=grid), "s.toml")
    board = Board(plan, console(120))
    board.running = {spec.id: (1, 0.5) for spec in plan.runs}
    board.console.print(board.render())
    assert "x=[/b]" in capsys.readouterr().out


def test_a_path_that_is_not_utf8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(monkeypatch, capsys, "list", str(tmp_path / "\udcff"))
    assert code == 2
    assert "is not a store" in err


# numbers --------------------------------------------------------------------------------------------------------------

OUT_OF_RANGE = [
    (("theory", "stochastic-iterations", "--set", "eps=1e-200"), "is outside the range of floating point numbers"),
    (("theory", "deterministic-iterations", "--set", "eps=1e-200"), "is outside the range of floating point numbers"),
    (("theory", "deterministic-optimal", "--set", "delta=nan"), "delta must be finite, got 'nan'"),
    (("plan", "gpt2-124m", "--gpus", "100000000"), "gpus must lie between 1 and 4,096, got 100000000"),
    (("plan", "gpt2-124m", "--link", "1e-300"), "link must be positive, between 1e-06 and 1e+12, got 1e-300"),
    (("plan", "gpt2-124m", "--flops", "inf"), "flops must be positive, between"),
    (("plan", "gpt2-124m", "--tokens", str(10**30)), "tokens must lie between 1 and 2^40"),
]


@pytest.mark.parametrize(
    ("words", "sentence"), OUT_OF_RANGE, ids=lambda value: " ".join(value)[:50] if isinstance(value, tuple) else ""
)
def test_a_number_out_of_range_is_one_sentence(
    words: tuple[str, ...], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(monkeypatch, capsys, *words)
    assert code == 2, err
    assert sentence in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("layers", [10**7, 10**400])
def test_a_configuration_of_too_many_layers(
    layers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    sizes = f'"n_embd": 8, "n_layer": {layers}, "n_positions": 8, "vocab_size": 8'
    path.write_text(f'{{"model_type": "gpt2", {sizes}}}')
    code, _, err = run(monkeypatch, capsys, "plan", str(path))
    assert code == 2, err
    assert "at most 5,000 can be planned" in err or "sizes go from 1 to 2^40" in err


def test_sizes_of_a_model_are_bounded() -> None:
    with pytest.raises(ValueError, match=r"sizes go from 1 to 2\^40"):
        Weight("w", (2**41, 8))
    with pytest.raises(ValueError, match="tokens must lie between"):
        Model("m", (), 0, "")


# arguments ------------------------------------------------------------------------------------------------------------

ARGUMENTS = [
    ({"betas": (0.9,)}, {}, r"betas must be two numbers in \[0, 1\), got \(0.9,\)"),
    ({"eps": None}, {}, "eps of AdamW must be positive and finite, got None"),
    ({"eps": float("nan")}, {}, "eps of AdamW must be positive and finite, got nan"),
    ({"eps": "1e-8"}, {}, "eps of AdamW must be positive and finite, got '1e-8'"),
    ({}, {"state_dtype": torch.int64}, "state_dtype must be None or one of"),
]


@pytest.mark.parametrize(("group", "argument", "sentence"), ARGUMENTS, ids=str)
def test_the_constructor_refuses_what_a_step_could_not_use(
    group: dict[str, Any], argument: dict[str, Any], sentence: str
) -> None:
    params = [{"params": [torch.nn.Parameter(torch.ones(2, 3))], **group}]
    with pytest.raises((TypeError, ValueError), match=sentence):
        optim.LMOOptimizer(params, 0.1, 0.9, ball="sign", **argument)


# Ctrl-C and the end of a sweep ----------------------------------------------------------------------------------------

SLOW_IMPORT = """
import time
print("importing", flush=True)
try:
    time.sleep(60)
except KeyboardInterrupt:
    raise {} from None
"""


@pytest.mark.parametrize("module", ["tyro", "torch"])
@pytest.mark.parametrize("error", ["KeyboardInterrupt", "ImportError('initialisation failed')"])
def test_ctrl_c_during_imports_is_one_line(tmp_path: Path, module: str, error: str) -> None:
    """An import that takes a minute, and may turn Ctrl-C into an error of its own."""
    (tmp_path / f"{module}.py").write_text(SLOW_IMPORT.format(error))
    source = Path(cli.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{source}"}
    words = [sys.executable, "-m", "inexact_muon", "delta", "polar-express:5"]
    child = subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "importing\n"
    time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    err = child.communicate(timeout=60)[1]
    assert (child.returncode, err) == (130, "inexact-muon: interrupted\n")


ORPHAN = """
import multiprocessing, sys
from inexact_muon_lab.sweep.engines.worker import reporter
ours, theirs = multiprocessing.Pipe()
ours.close()
reporter(theirs, "run")(1, 0.5)
print("still here")
"""


def test_a_worker_whose_sweep_is_gone_ends_without_a_word() -> None:
    """It must not take the broken pipe for a failure of its run either."""
    ended = subprocess.run([sys.executable, "-c", ORPHAN], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "")
    assert send.__doc__


def test_a_warning_of_the_lab_is_a_sentence(tmp_path: Path) -> None:
    run_all(tmp_path)
    path = store.run_folder(tmp_path, store.runs(tmp_path)[0].id) / store.CURVES
    path.write_bytes(path.read_bytes()[:-1])
    words = [sys.executable, "-m", "inexact_muon", "show", str(tmp_path), path.parent.name]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0
    assert ended.stderr == f"inexact-muon: warning: {path} is damaged or cut off; the same sweep repeats the run\n"
