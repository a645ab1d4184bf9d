"""The command: no torch, the numbers of the model, a picture, one sentence on bad input."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from inexact_muon import cli
from inexact_muon.plan import page
from inexact_muon.plan.estimate import LADDER, Machine, Plan, plan
from inexact_muon.plan.layout import Layout
from inexact_muon.plan.models import KNOWN
from inexact_muon.plan.strategies import all_strategies, title
from inexact_muon.schedules.oracles import parse

PAGE = (Path(__file__).parent.parent / "docs" / "plan.md").read_text()
TITLES = ("replicated", "owner-rank", "gram-reduced", "block-periodic, P=5", "compressed, rank 8")


def made(name: str = "gpt2-124m", layout: Layout = Layout(4, 2), machine: Machine = Machine()) -> Plan:  # noqa: B008
    return plan(KNOWN[name], layout, machine, parse("polar-express:5"), all_strategies(5, 8, 0.05))


def test_the_table_of_the_page() -> None:
    """Each row of docs/plan.md is what its command prints, and owner-rank is best in each."""
    found = re.findall(r"^\| `(\S+) --gpus (\d+)(?: --tp (\d+))?( --layout ddp)?` \|(.*)\|$", PAGE, flags=re.MULTILINE)
    assert {row[0] for row in found} == set(KNOWN)
    for name, gpus, tp, ddp, cells in found:
        p = made(name, Layout(int(gpus), int(tp or 1), not ddp))
        shares = {title(e.strategy): f"{100 * e.share:.2f}%" for e in p.strategies}
        assert [cell.strip() for cell in cells.split("|")] == [shares.get(name, "-") for name in TITLES]
        assert p.best is not None
        assert title(p.best.strategy) == "owner-rank"


def test_no_torch() -> None:
    call = "cli.COMMANDS['plan']('gpt2-124m', gpus=4)"
    code = f"import sys; from inexact_muon import cli; {call}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


def test_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    cli.COMMANDS["plan"]("gpt2-124m", gpus=8, layout="ddp")
    text = capsys.readouterr().out
    for expected in ("124,439,808 parameters", "84,934,656 of them in 72 matrices", "Nothing was timed on a GPU"):
        assert expected in text
    assert "gram-reduced: left out, no matrix is divided here." in text
    assert f"{7 / 8 * 84_934_656 * 2 / 1e6:.3g}" in text
    assert all(str(oracle) in text for oracle in LADDER)


def test_the_recommendation_names_what_is_best() -> None:
    p = made("llama3-8b", Layout(64, 8))
    assert p.best is not None
    said = page.recommendation(p)
    assert said.startswith(f"Recommendation: {title(p.best.strategy)} with polar-express(steps=5)")
    assert "polar-express(steps=6) lowers the error from 0.134 to 0.002" in said
    assert "No strategy with the same update fits 0.1 GB" in page.recommendation(made(machine=Machine(memory=0.1)))
    slow = page.recommendation(made("llama3-8b", Layout(64, 8), Machine(link=0.1)))
    assert "is another update" in slow


def test_a_slower_machine_never_takes_less() -> None:
    fast, slow, far = made(), made(machine=Machine(flops=100.0)), made(machine=Machine(link=1.0))
    for a, b, c in zip(fast.strategies, slow.strategies, far.strategies, strict=True):
        assert a.cost == b.cost == c.cost
        assert b.step > a.step
        assert c.step >= a.step


@pytest.mark.parametrize("x", [0.0, 0.01234, 1.0, 999.4, 999.6, 123456.7])
def test_numbers_are_read_back(x: float) -> None:
    text = page.number(x)
    assert float(text.replace(",", "")) == pytest.approx(x, rel=5e-3)
    assert "e" not in text


def test_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "plan.json"
    p = made()
    page.draw(p, path)
    bars = [v for panel in json.loads(path.read_text())["vconcat"] for v in panel["data"]["values"]]
    assert len(bars) == 3 * (len(p.strategies) + len(p.precisions))
    e = p.strategies[1]
    mine = {b["part"]: b["percent"] for b in bars if b["name"] == title(e.strategy)}
    assert sum(mine.values()) == pytest.approx(100 * (e.step - e.model) / e.model)


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--plot writes \.svg"):
        cli.COMMANDS["plan"]("gpt2-124m", plot=tmp_path / "plan.pdf")
    with pytest.raises(ValueError, match="tokens must lie between 1 and"):
        cli.COMMANDS["plan"]("gpt2-124m", tokens=0)
    call = [sys.executable, "-m", "inexact_muon.cli", "plan", "gpt2-124m", "--gpus", "8", "--tp", "3"]
    ended = subprocess.run(call, check=False, capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stderr == "inexact-muon: tp = 3 does not divide gpus = 8\n"
