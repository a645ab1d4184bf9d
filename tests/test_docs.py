"""What the pages say is true: code runs, figures are those that the commands write."""

import doctest
import importlib
import json
import re
from pathlib import Path

import pytest

from inexact_muon import catalogue, explain, polar
from pages import load_module

ROOT = Path(__file__).parent.parent
DOCTESTS = [f"inexact_muon.{name}" for name in ("inexactness", "lmo", "polar", "tune.carry", "tune.policy")]
README = (ROOT / "README.md").read_text()
CHOOSE = load_module(ROOT / "benchmarks/choose.py")


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


def test_tables_of_oracles_are_what_the_command_writes() -> None:
    made = CHOOSE.table(*CHOOSE.load())
    for page in CHOOSE.PAGES:
        text = (ROOT / page).read_text()
        assert CHOOSE.written(text, made) == text, f"{page}: run python benchmarks/choose.py"


def test_the_answer_follows_the_figures() -> None:
    oracles, bench = CHOOSE.load()
    assert "| `polar-express(steps=5)` | 0.134 |" in CHOOSE.table(oracles, bench)
    for row in oracles:
        if row["method"] == "polar-express(steps=5)":
            row["delta"]["1e-03"] = 0.2
    assert "`polar-express(steps=5)`" not in CHOOSE.table(oracles, bench)


def test_the_readme_is_short_and_starts_with_the_page_of_the_demo() -> None:
    assert README.count("\n") < 250
    assert re.findall(r"!\[.*?\]\((.*?)\)", README)[0] == "docs/figures/report.png"
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
        assert line.last is not None
        assert row[9] == f"{line.delta:.3f}"
        near = [line.last.delta, line.last.gap, line.last.overshoot]
        assert [float(x) for x in row[10].split(",")] == pytest.approx(near, abs=0.02)


def test_the_file_tree_is_complete() -> None:
    package = {p.name.removesuffix("/") for p in (ROOT / "src/inexact_muon").iterdir()}
    parts = {n for n in package if not n.startswith("__") and n not in ("py.typed", "studies")}
    tree = README[README.index("src/inexact_muon/\n") :]
    assert not {part for part in parts if part not in tree}


def test_the_tables_of_speed_are_what_the_script_writes() -> None:
    speed = load_module(ROOT / "benchmarks/speed.py")
    assert speed.written(README, speed.tables()) == README


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


def test_the_benchmark_table_has_the_sizes_of_the_claims() -> None:
    rows = json.loads((ROOT / "benchmarks/results/estimate.json").read_text())
    useful = [r for r in rows if polar.parse(r["oracle"]).error_bound(1e-2) < 0.35]
    assert {r["shape"] for r in useful} >= {"64x64", "256x256", "512x512", "1024x1024"}
    for r in useful:
        assert abs(r["gap error"]) <= 0.02, r
        assert 0.9 <= r["delta ratio"] <= 1.1, r
