"""Scripts of the co-tuning and precision studies: what they say follows from the store, pages from the tables."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any

import pytest

from inexact_muon_lab.report import tables
from inexact_muon_lab.spec import study
from inexact_muon_lab.store import store
from inexact_muon_lab.tune import spectra
from pages import ROOT, load_module

FIGURES = ROOT / "docs" / "figures"
SOURCE = "polar-express(steps=5, normalise=frobenius)"
TINY = """
name = "tiny-grid"
seeds = [0, 1]
[base]
steps = 8
batch = 4
validation = 2
problem = { name = "nanogpt", layers = 1, width = 16, heads = 2, context = 16 }
optimizer.name = "muon"
[[grid]]
optimizer.polar = ["polar-express(steps=5, normalise=frobenius)", "polar-express(steps=1, normalise=frobenius)"]
optimizer.lr = [0.01, 0.1]
optimizer.momentum = [0.9, 0.5]
"""
PRECISION = (
    TINY.replace("tiny-grid", "tiny-precision").split("[[grid]]")[0]
    + """
[[grid]]
optimizer.polar = ["exact-svd", "polar-express(steps=2, lower=0.1)"]
"""
)


def script(path: str) -> ModuleType:
    return load_module(ROOT / "studies" / path)


def command(folder: Path, *arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def sweep(folder: Path, text: str, name: str) -> None:
    (folder / f"{name}.toml").write_text(text)
    command(folder, "-m", "inexact_muon_lab", "sweep", f"{name}.toml", "--out", name, "--workers", "1")


def losses(folder: Path) -> dict[tuple[Any, ...], float]:
    found = {}
    for run in store.runs(folder):
        assert run.outcome is not None
        options: Any = run.spec.optimizer
        found[options.polar, options.lr, options.momentum, run.spec.seed] = float(run.outcome.result["loss"] or 0.0)
    return found


@pytest.mark.slow
def test_tuned_pairs_are_carried_tried_and_judged(tmp_path: Path) -> None:
    sweep(tmp_path, TINY, "grid")
    command(tmp_path, str(ROOT / "studies/cotuning/carry.py"), "grid", "--out", "carried.toml")
    plan = study.load(tmp_path / "carried.toml")
    sweep(tmp_path, (tmp_path / "carried.toml").read_text(), "tried")
    arguments = ["--problem", "gpt", "--grid", "grid", "--carried", "tried", "--spectra", "carried.npz", "--out", "."]
    command(tmp_path, str(ROOT / "studies/cotuning/judge.py"), *arguments)
    grid, tried = losses(tmp_path / "grid"), losses(tmp_path / "tried")

    def best(oracle: str) -> tuple[float, float]:
        pairs = {(lr, mu) for o, lr, mu, _ in grid if o == oracle}
        return min(pairs, key=lambda pair: fmean(grid[(oracle, *pair, seed)] for seed in (0, 1)))

    part = json.loads((tmp_path / "cotuning-study.json").read_text())["problems"][0]
    tuned = best(SOURCE)
    assert (part["tuned"]["lr"], 1.0 - part["tuned"]["alpha"]) == pytest.approx(tuned)
    (target,) = part["targets"]
    keep = next(r for r in target["rules"] if r["rule"] == "keep")
    wanted = [
        tried[(target["target"], *tuned, s)] - grid[(target["target"], *best(target["target"]), s)] for s in (0, 1)
    ]
    assert keep["regrets"] == pytest.approx(wanted)
    assert {r["rule"] for r in target["rules"]} >= {"keep", "measured", "descent", "paper", "deterministic"}
    assert {run.optimizer.polar for run in plan.runs} == {SOURCE, target["target"]}  # type: ignore[union-attr]


@pytest.mark.slow
def test_precision_is_judged_against_the_exact_oracle_seed_by_seed(tmp_path: Path) -> None:
    sweep(tmp_path, PRECISION, "runs")
    spectra = str(ROOT / "studies/cotuning/gpt-carried.npz")
    command(tmp_path, str(ROOT / "studies/precision/judge.py"), "runs", "--spectra", spectra, "--out", ".")
    entries = json.loads((tmp_path / "precision-study.json").read_text())["problems"][0]["runs"]
    assert [e["kind"] for e in entries] == ["exact", "fixed"]
    rows = {r["policy"]: r for r in script("precision/judge.py").judged(entries)}
    exact, crude = entries
    wanted = fmean(a - b for a, b in zip(crude["loss"], exact["loss"], strict=True))
    assert rows[crude["policy"]]["worse"] == pytest.approx(wanted)


@pytest.mark.data
def test_the_committed_pages_are_those_of_the_committed_tables() -> None:
    sys.path.insert(0, str(ROOT / "studies/cotuning"))
    cotuning = json.loads((FIGURES / "cotuning-study.json").read_text())["problems"]
    assert script("cotuning/judge.py").markdown(cotuning) == (FIGURES / "cotuning-study.md").read_text()
    judge = script("precision/judge.py")
    entries = json.loads((FIGURES / "precision-study.json").read_text())["problems"][0]["runs"]
    least = judge.two_products(study.load(ROOT / "studies/precision/gpt.toml").runs[0])
    page = judge.markdown(judge.judged(entries), len(entries[0]["seeds"]), least)
    assert (FIGURES / "precision-study.md").read_text().startswith(page)
    sys.path.insert(0, str(ROOT / "studies/precision"))
    held = json.loads((FIGURES / "held-out.json").read_text())
    layers = spectra.load(ROOT / "studies/cotuning/gpt-carried.npz")
    page = script("precision/held_out.py").markdown(held, layers)
    assert page == (FIGURES / "held-out.md").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [(("nowhere", "--spectra", "x.npz"), "nowhere is not a store"), ((".", "--spectra", "x.npz"), "no file x.npz")],
)
def test_a_mistake_is_a_sentence(
    words: tuple[str, ...],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / store.INDEX).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["judge.py", *words, "--out", "tables"])
    with pytest.raises(SystemExit) as ended:
        script("precision/judge.py").arguments("")
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "tables").exists()


def test_the_report_reads_the_table_of_cotuning() -> None:
    assert tables.read(FIGURES).cotuning
