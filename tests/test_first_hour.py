"""The first hour of a new user: README's commands in order, with what each must print; README's picture."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from commands import said
from inexact_muon_lab.report.arms import comparisons
from inexact_muon_lab.report.claims import judge
from inexact_muon_lab.report.load import load
from inexact_muon_lab.spec import study
from inexact_muon_lab.spec.study import field_of
from pages import ROOT, load_module

README = (ROOT / "README.md").read_text()
STUDY = ROOT / "studies/first-hour"
picture = load_module(STUDY / "picture.py")


@pytest.mark.slow
def test_the_first_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    code = re.search(r"```python\n(import torch\nfrom torch.*?)```", README, flags=re.DOTALL)
    assert code
    exec(code[1], {})
    shown = capsys.readouterr().out
    answer = [line for line in shown.splitlines() if line][-3:]
    assert answer[0].startswith("Exact enough: ")
    assert answer[1].startswith("Keep it")
    assert answer[2].startswith("Why: ")
    status, out, err = said("delta", "--checkpoint", "checkpoint.pt")
    assert (status, err) == (0, "")
    assert out.splitlines()[:3] == answer, "the file and the live optimizer have one answer"
    rows = re.findall(r"│ +(-?\d\.\d{4}) │ +(\d\.\d{4}) │ +(\d\.\d{3}) │$", shown, flags=re.MULTILINE)
    assert all(value in out for row in rows for value in row)
    printed = re.findall(r"% +(-?\d\.\d{4}) +(\d\.\d{4}) +(\d\.\d{3})$", README, flags=re.MULTILINE)
    assert len(rows) == len(printed) == 2
    for row, page in zip(rows, printed, strict=True):
        assert list(map(float, row)) == pytest.approx(list(map(float, page)), abs=2e-3), "README's table"
    status, out, _ = said("delta", "--checkpoint", "checkpoint.pt", "--json")
    assert json.loads(out)["answer"]["lines"] == answer
    pytest.importorskip("altair")
    status, out, _ = said("delta", "jordan:5", "--checkpoint", "checkpoint.pt", "--plot", "momentum.svg")
    assert out.splitlines()[1].startswith('Use polar="')
    assert out.rstrip().endswith("written: momentum.svg")
    block = re.search(r"```sh\n(inexact-muon delta.*?)```", README, flags=re.DOTALL)
    assert block
    commands = [line.partition("#")[0].split()[1:] for line in block[1].splitlines()]
    assert len(commands) == len(PRINTED)
    for words, wanted in zip(commands, PRINTED, strict=True):
        status, out, err = said(*words)
        assert (status, err) == (0, ""), words
        assert re.match(wanted, out, flags=re.DOTALL), words


PRINTED = (
    r"polar-express\(steps=5\), .*gap .*overshoot .*lifted .*bound of .*cost for 768 x 3072",
    r"Exact enough: .*\nKeep it.*\nWhy: ",
    r'\{.*"answer": ',
    r"judged on checkpoint\.pt\n.*lr 0\.05, momentum 0\.95.*rule ",
    r"stochastic-optimal: Corollary 3.*K .*100000.*gamma",
    r"llama3-8b: a step of rank 0 with auto, modelled",
)
"""What each of README's commands prints, in their order."""


@pytest.mark.data
def test_the_curves_are_at_the_best_rates_of_the_tuning() -> None:
    best = picture.best(picture.runs_of("first-hour-tuning"))
    for run in study.load(STUDY / "curves.toml").runs:
        name = str(field_of(run, "optimizer.name"))
        assert {rate: field_of(run, f"optimizer.{rate}") for rate in best[name]} == best[name]
    settings = [name for name in picture.NAMES for run in study.load(STUDY / "tuning.toml").runs if _name(run) == name]
    assert {settings.count(name) for name in picture.NAMES} == {16}, "one budget for all"


def _name(run: object) -> str:
    return str(field_of(run, "optimizer.name"))  # type: ignore[arg-type]


@pytest.mark.data
def test_the_caption_follows_from_the_packed_runs() -> None:
    caption = picture.caption(picture.runs_of("first-hour-curves"))
    assert picture.between(README, {"first hour": caption}, picture.COMMAND) == README


@pytest.mark.data
def test_how_many_steps_are_enough_follows_from_the_packed_runs() -> None:
    ladders = [j for j in judge(load(ROOT / "studies/reference")) if j.claim.id == "goes-on"]
    eight = max((j.finding.interval for j in ladders), key=lambda interval: interval.n)
    (two,) = [c for c in comparisons(load(ROOT / "studies/controls")) if c.arm == "two Polar Express steps"]
    more, words = two.first.loss, " ".join(README.split())
    assert f"Five end where eight do ({eight.mean:.4f}, {eight.low:.4f} to {eight.high:+.4f})" in words
    assert f"two end {more.mean:.3f} ({more.low:.3f} to {more.high:.3f}) above a nearly exact one, each tuned" in words
