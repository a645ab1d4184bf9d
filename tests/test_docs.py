"""What the pages say is true: code runs, figures are those that the commands write."""

import doctest
import importlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from inexact_muon import explain, polar
from inexact_muon_lab.cli import catalogue
from pages import load_module
from test_schedules_regenerate import POLAR_EXPRESS, SAFETY_2_PERCENT

ROOT = Path(__file__).parent.parent
DOCTESTS = [
    "inexact_muon.inexactness.measuring",
    "inexact_muon.lmo",
    "inexact_muon.polar",
    "inexact_muon_lab.tune.carry",
]
README = (ROOT / "README.md").read_text()
CHOOSE = load_module(ROOT / "benchmarks/choose.py")


@pytest.mark.parametrize("name", DOCTESTS)
def test_docstring_examples(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


def test_committed_table_is_what_the_command_writes() -> None:
    committed = json.loads((ROOT / "docs/figures/oracles.json").read_text())
    made = [asdict(row) for row in catalogue.rows()]
    assert [r["method"] for r in committed] == [r["method"] for r in made]
    for ours, theirs in zip(made, committed, strict=True):
        for key in ("delta", "gap", "overshoot"):
            assert ours[key] == pytest.approx(theirs[key], rel=1e-6, abs=1e-12), ours["method"]
        assert (ours["square"], ours["wide"]) == (theirs["square"], theirs["wide"])
    assert (ROOT / "docs/figures/oracles.md").read_text() == catalogue.markdown(catalogue.rows())


def test_every_promise_names_tests_that_exist() -> None:
    files = {path.name: path.read_text() for path in (ROOT / "tests").glob("test_*.py")}
    rows = [line for line in (ROOT / "docs/guarantees.md").read_text().splitlines() if line.startswith("| ")]
    promises = [row for row in rows if "test_" in row]
    assert len(promises) > 50
    for row in promises:
        for file, test in re.findall(r"`(?:(test_\w+\.py)(?:::)?)?(test_\w+)?`", row.rpartition(" | ")[2]):
            assert not file or file in files, row
            texts = [files[file]] if file else files.values()
            assert not test or any(f"def {test}(" in text for text in texts), row
            assert file or test, row


@pytest.mark.data
def test_tables_of_oracles_are_what_the_command_writes() -> None:
    for page, made in ((CHOOSE.PAGE, CHOOSE.table(*CHOOSE.load())), (CHOOSE.SHORT, CHOOSE.four(*CHOOSE.load()))):
        assert page == CHOOSE.PAGE or made.count("\n") == 6, "four rows"
        text = (ROOT / page).read_text()
        assert CHOOSE.written(text, made) == text, f"{page}: run python benchmarks/choose.py"


def test_the_links_of_the_readme_lead_somewhere() -> None:
    for name in re.findall(r"\]\(((?!http)[^)#]+)\)", README):
        assert (ROOT / name).exists(), name


def test_the_readme_shows_what_explain_prints(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    code = re.search(r"```python\n(import torch\nfrom torch.*?)```", README, flags=re.DOTALL)
    shown = re.search(r"```text\n(parameter .*?)```", README, flags=re.DOTALL)
    assert code
    assert shown
    space: dict[str, object] = {}
    exec(code[1], space)
    rows = [re.split(r" {2,}", line) for line in shown[1].splitlines()[1:]]
    lines = explain(space["optimizer"]).lines  # type: ignore[arg-type]
    assert [row[0] for row in rows] == [line.parameter for line in lines]
    for row, line in zip(rows, lines, strict=True):
        assert row[1] == "x".join(map(str, line.shape))
        if line.algorithm == "adamw":
            assert row[2:] == ["adamw", line.why, f"{line.lr:g}", f"{line.weight_decay:g}"]
            continue
        numbers = [f"{line.lr:g}", f"{line.weight_decay:g}"]
        assert row[2:8] == [line.matrices, line.algorithm, line.why, *numbers, line.oracle]
        found = line.inexactness
        assert found is not None
        assert [float(x) for x in row[9:12]] == pytest.approx([found.gap, found.overshoot, found.lifted], abs=0.05)


@pytest.mark.data
def test_the_tables_of_speed_are_what_the_script_writes() -> None:
    speed = load_module(ROOT / "benchmarks/speed.py")
    page = (ROOT / "docs/peers.md").read_text()
    assert speed.written(page, speed.tables()) == page
    least, most = speed.over_torch(speed.load())
    assert f"{least:.2f} to {most:.2f} of `torch.optim.Muon`'s time" in README


@pytest.mark.data
def test_figures_about_peers_are_the_measured_ones() -> None:
    """On a CPU with native bfloat16, an earlier run; and in float32 on one without."""
    page = (ROOT / "docs/peers.md").read_text()
    results = ROOT / "benchmarks/results"
    native = json.loads((results / "bench-bfloat16.json").read_text())["steps"]
    ours = {(r["set"], r["optimizer"]): f"{r['ours']:.2f}" for r in native}
    assert f"pytorch_optimizer.Muon: {ours['18 small matrices', 'pytorch_optimizer.Muon']} of our time" in page
    layer = {name: ours["GPT-2 layer", name] for _, name in ours}
    assert f"torch.optim.Muon {layer['torch.optim.Muon']}, pytorch_optimizer {layer['pytorch_optimizer.Muon']}" in page
    assert f"muon-optimizer {layer['muon.SingleDeviceMuon']}, heavyball {layer['heavyball.Muon']}" in page
    rows = json.loads((results / "bench.json").read_text())["steps"]
    for part in ("18 small matrices", "24 of width 256", "GPT-2 layer"):
        others = [r for r in rows if r["set"] == part and r["optimizer"].endswith(", in float32")]
        nearest = min(others, key=lambda r: r["auto:fast"]["time"])
        figures = f"{nearest['auto:fast']['time']:.2f} and {nearest['auto:accurate']['time']:.2f}"
        assert f"| {part} | {nearest['optimizer'].removesuffix(', in float32')} | {figures} |" in page
    assert f"| here | {polar.PolarExpress(5).error_bound(1e-3):.3f} |" in page


def five_steps(steps: Sequence[Sequence[float]], safety: float = 1.0, normaliser: float = 1.0) -> str:
    """Error on [1e-3, 1] of a list divided by a safety factor, on inputs divided by another one."""
    x = np.geomspace(1e-3, 1.0, 100_001) / normaliser
    for a, b, c in steps[:5]:
        x = a * x / safety + b * (x / safety) ** 3 + c * (x / safety) ** 5
    return f"{np.abs(1.0 - x).max():.3f}"


def test_every_oracle_that_the_page_recommends_can_be_read() -> None:
    """Texts such as `zolotarev:3` in its sentences, which no block of code runs."""
    page = (ROOT / "docs/choose-oracle.md").read_text()
    texts = re.findall(r"`([a-z][a-z-]*(?::\w+|\([^`]*\)))`", page)
    assert {"zolotarev:3", "jordan:5"} <= set(texts)
    for text in texts:
        assert isinstance(polar.parse(text), polar.PolarMethod)


def test_the_errors_of_lists_of_one_name_are_theirs() -> None:
    page = (ROOT / "docs/peers.md").read_text()
    for name, error in {
        "here": f"{polar.PolarExpress(5).error_bound(1e-3):.3f}",
        "modded-nanogpt, dion": five_steps(SAFETY_2_PERCENT, normaliser=1.02),
        "the first published script": five_steps(POLAR_EXPRESS, 1.01, 1.01),
        "gram-newton-schulz, DMuon": five_steps(POLAR_EXPRESS, 1.05),
    }.items():
        assert f"| {name} | {error} |" in page


@pytest.mark.data
def test_tables_about_many_ranks_are_the_measured_ones() -> None:
    page = (ROOT / "docs/distributed.md").read_text().partition("## What was measured")[2]
    rows = re.findall(r"^\|.*\|$", page, flags=re.MULTILINE)
    measured = (ROOT / "benchmarks/results/distributed.md").read_text().splitlines()
    assert rows
    for row in rows:
        assert row in measured, f"{row}: run python benchmarks/distributed.py"
