"""The command: the counts of the recorder, a recommendation, a picture, one sentence on bad input."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from inexact_muon_lab import cli
from inexact_muon_lab.plan import page
from inexact_muon_lab.plan.choice import Candidate, Plan
from inexact_muon_lab.plan.models import KNOWN
from inexact_muon_lab.plan.pricing import Cost, Machine
from inexact_muon_lab.plan.step import Layout
from torch_features import needs_fake_collectives

CONFIG = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128}
CONFIG |= {"num_attention_heads": 2, "vocab_size": 100}
COST = Cost(100, 3, 6e6, 3e6, 1e12, 1e9, 1e8, 2e-3, 1e-3)


def candidate(strategy: str, seconds: float, exact: bool = True, held: int = 10**9) -> Candidate:
    return Candidate(strategy, exact, replace(COST, seconds=seconds), held, model=0.1, gradients=0.01)


def made(*candidates: Candidate, memory: float = 80.0) -> Plan:
    rest = ((), 72, 84_934_656)
    return Plan(KNOWN["gpt2-124m"], Layout(8), Machine(memory=memory), "auto", candidates, *rest)


@needs_fake_collectives
@pytest.mark.slow
def test_a_plan_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    tried = ("owner-rank", "replicated", "gram-reduced", "block-periodic:2", "low-rank:2")
    cli.COMMANDS["plan"](str(path), gpus=4, oracle="polar-express:3", strategies=tried, plot=tmp_path / "a" / "p.json")
    text = capsys.readouterr().out
    assert "14 matrices" in text
    assert "modelled" in text
    assert "Nothing was timed on a GPU" in text
    assert re.search(r"Recommendation: (owner-rank|replicated|gram-reduced): ", text)
    assert all(name in text for name in tried)
    assert ": left out" not in text
    bars = json.loads((tmp_path / "a" / "p.json").read_text())["data"]["values"]
    assert [bar["strategy"] for bar in bars[::2]] == list(tried)


@needs_fake_collectives
@pytest.mark.slow
def test_what_does_not_apply_is_left_out_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    cli.COMMANDS["plan"](str(path), gpus=2, layout="ddp", strategies=("gram-reduced", "owner-rank"))
    text = capsys.readouterr().out
    assert "gram-reduced: left out, no matrix is divided." in text
    assert "Recommendation: owner-rank" in text


def test_the_recommendation_names_what_is_best() -> None:
    fast, slow, other = candidate("fast", 1e-3), candidate("slow", 2e-3), candidate("other", 0.9e-3, exact=False)
    assert page.recommendation(made(slow, fast, other)).startswith("Recommendation: fast: 0.90% of the step")
    assert "No other update would shorten it by 1% or more" in page.recommendation(made(slow, fast, other))
    much = candidate("fast", 0.1)
    assert "other would shorten it by 47.2%, by another update" in page.recommendation(made(much, other))
    large = candidate("fast", 1e-3, held=10**12)
    assert page.recommendation(made(large, slow)).startswith("Recommendation: slow")
    assert "No strategy with the same update fits 0.5 GB; the least needs 1.1 GB" in page.recommendation(
        made(fast, slow, memory=0.5)
    )


def test_shares() -> None:
    c = candidate("any", 0.04)
    assert c.step == pytest.approx(0.15)
    assert c.share == pytest.approx(0.04 / 0.15)


@pytest.mark.parametrize("x", [0.0, 0.01234, 1.0, 999.4, 999.6, 123456.7])
def test_numbers_are_read_back(x: float) -> None:
    text = page.number(x)
    assert float(text.replace(",", "")) == pytest.approx(x, rel=5e-3)
    assert "e" not in text


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--plot writes \.svg"):
        cli.COMMANDS["plan"]("gpt2-124m", plot=tmp_path / "plan.pdf")
    with pytest.raises(ValueError, match="tokens must lie between 1 and"):
        cli.COMMANDS["plan"]("gpt2-124m", tokens=0)
    with pytest.raises(ValueError, match="did you mean 'owner-rank'"):
        cli.COMMANDS["plan"]("gpt2-124m", strategies=("owner-rang",))
    with pytest.raises(ValueError, match="copies = 3 does not divide the 8 parts of the batch"):
        cli.COMMANDS["plan"]("gpt2-124m", copies=3)
    call = [sys.executable, "-m", "inexact_muon_lab", "plan", "gpt2-124m", "--gpus", "8", "--tp", "3"]
    ended = subprocess.run(call, check=False, capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stderr == "inexact-muon: tp = 3 does not divide gpus = 8\n"
