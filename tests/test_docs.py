"""What the pages say is true: code runs, figures are those that the commands write."""

import doctest
import importlib
import json
import re
from pathlib import Path

import pytest

from inexact_muon import catalogue, polar

ROOT = Path(__file__).parent.parent
DOCTESTS = [f"inexact_muon.{name}" for name in ("inexactness", "lmo", "polar", "tune.carry", "tune.policy")]
README = (ROOT / "README.md").read_text()


def test_readme_code_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


@pytest.mark.parametrize("name", DOCTESTS)
def test_docstring_examples(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


def test_committed_table_is_what_the_command_writes() -> None:
    committed = json.loads((ROOT / "docs/figures/oracles.json").read_text())
    made = json.loads(json.dumps(catalogue.records(catalogue.rows())))
    assert [r["method"] for r in committed] == [r["method"] for r in made]
    for ours, theirs in zip(made, committed, strict=True):
        for key in ("delta", "gap", "overshoot"):
            assert ours[key] == pytest.approx(theirs[key], rel=1e-6, abs=1e-12), ours["method"]
        assert (ours["square"], ours["wide"]) == (theirs["square"], theirs["wide"])
    assert (ROOT / "docs/figures/oracles.md").read_text() == catalogue.markdown(catalogue.rows())


def test_readme_table() -> None:
    found = re.findall(r"\| `(\w+\(\d*\))` \| ([\d.]+) \| (-?[\d.]+), ([\d.]+) \| ([\d.]+)", README)
    assert len(found) >= 6
    for text, delta, gap, overshoot, products in found:
        row = catalogue.row(eval(text, vars(polar)))
        assert f"{row.delta['1e-03']:.3f}" == f"{float(delta):.3f}", text
        assert f"{row.gap['power-law']:.3f}" == f"{float(gap):.3f}", text
        assert f"{row.overshoot['power-law']:.3f}" == f"{float(overshoot):.3f}", text
        assert row.square == float(products), text


def test_number_of_rows_in_the_readme() -> None:
    assert f"all {len(catalogue.METHODS)} rows" in README


def test_the_benchmark_table_has_the_sizes_of_the_claims() -> None:
    rows = json.loads((ROOT / "benchmarks/results/estimate.json").read_text())
    useful = [r for r in rows if polar.parse(r["oracle"]).error_bound(1e-2) < 0.35]
    assert {r["shape"] for r in useful} >= {"64x64", "256x256", "512x512", "1024x1024"}
    for r in useful:
        assert abs(r["gap error"]) <= 0.02, r
        assert 0.9 <= r["delta ratio"] <= 1.1, r
