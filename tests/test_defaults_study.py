"""The study behind the default lr of AdamW: its page follows from its table, its table from its grid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inexact_muon_lab.spec import study
from pages import ROOT, load_module, type_in

FIGURES = ROOT / "docs/figures"
SCRIPT = ROOT / "studies/defaults/table.py"
TINY = """
name = "tiny"
seeds = [0, 1]
[base]
steps = 3
batch = 4
validation = 2
problem = { name = "nanogpt", layers = 1, width = 16, heads = 2, context = 16 }
optimizer = { name = "muon", lr = 0.02, weight_decay = 0.1 }
[[grid]]
optimizer.adamw_lr = [1e-3, 1e-2]
"""


def cells(name: str = "defaults.json") -> list[Any]:
    made = load_module(SCRIPT).Cell
    return [made(**fields) for fields in json.loads((FIGURES / name).read_text())]


def cell(lr: float, adamw_lr: float, *losses: float, **changes: Any) -> Any:
    fields = {"model": "toy", "details": "nothing", "betas": [0.9, 0.95], "weight_decay": 0.1}
    by_seed = {str(seed): loss for seed, loss in enumerate(losses)}
    return load_module(SCRIPT).Cell(**{**fields, **changes}, lr=lr, adamw_lr=adamw_lr, losses=by_seed)


@pytest.mark.data
def test_the_committed_page_is_that_of_the_committed_table() -> None:
    table, page = load_module(SCRIPT), (FIGURES / "defaults.md").read_text()
    assert table.markdown(cells()) == page
    text = (ROOT / "docs/choose-lr.md").read_text()
    assert table.written(text, page) == text
    with pytest.raises(SystemExit, match="must have"):
        table.written("no marks", page)


@pytest.mark.data
def test_the_committed_table_is_that_of_the_packed_runs() -> None:
    table = load_module(SCRIPT)
    assert [vars(cell) for pack in table.PACKS for cell in table.read(pack)] == [vars(cell) for cell in cells()]
    grids = table.settings(cells())
    assert len(grids) == 6
    assert {tuple(sorted(row)) for row in grids.values()} == {(3e-4, 1e-3, 3e-3, 1e-2, 3e-2)}, "a full grid everywhere"


@pytest.mark.data
def test_the_advice_of_the_pages_follows_from_the_table() -> None:
    """3e-4 is worse than 1e-2 in every model and at every lr, by as much as the page says."""
    table = load_module(SCRIPT)
    plain = [c for c in cells() if c.betas == [0.9, 0.95] and c.weight_decay == 0.1]
    best = {(c.model, c.lr): c for c in plain if c.adamw_lr == 1e-2}
    more = [table.difference(c, best[c.model, c.lr]) for c in plain if c.adamw_lr == 3e-4]
    assert len({c.model for c in plain}) >= 2
    assert all(mean > half for mean, half in more)
    means = [mean for mean, _ in more]
    for page in ("README.md", "docs/choose-lr.md"):
        assert f"by {min(means):.2f} to {max(means):.2f}" in (ROOT / page).read_text()
    for page in ("README.md", "docs/choose-lr.md", "docs/tutorials/swap.md"):
        text = " ".join((ROOT / page).read_text().split())
        assert "3e-4 was too small in every model tried" in text.replace("3e-4 for AdamW's part", "3e-4"), page


@pytest.mark.data
def test_the_table_has_every_run_of_the_studies() -> None:
    describe, wanted = load_module(SCRIPT).describe, set()
    for path in (ROOT / "studies/defaults").glob("*.toml"):
        for run in study.load(path).runs:
            options: Any = run.optimizer
            rest = options.lr, options.adamw_lr, *options.betas, options.weight_decay, str(run.seed)
            wanted.add((*describe(run).values(), *rest))
    assert {
        (c.model, c.details, c.lr, c.adamw_lr, *c.betas, c.weight_decay, seed) for c in cells() for seed in c.losses
    } == wanted


def test_differences_are_paired() -> None:
    table = load_module(SCRIPT)
    mean, half = table.difference(cell(0.02, 1e-3, 2.1, 3.2, 4.3), cell(0.02, 1e-2, 2.0, 3.0, 4.0))
    assert mean == pytest.approx(0.2)
    assert half == pytest.approx(4.302653 * 0.1 / 3**0.5, rel=1e-5)  # t of two degrees of freedom


def test_the_recommended_value_loses_least_where_it_loses_most() -> None:
    table = load_module(SCRIPT)
    rows = [
        *(cell(0.02, 1e-3, 1.0, 1.0), cell(0.02, 3e-3, 1.1, 1.1), cell(0.02, 1e-2, 1.5, 1.5)),
        *(cell(0.05, 1e-3, 1.4, 1.4), cell(0.05, 3e-3, 1.1, 1.1), cell(0.05, 1e-2, 1.0, 1.0)),
        cell(0.05, 3e-2, 0.9, 0.9),  # not tried everywhere
        cell(0.02, 1e-2, 0.1, 0.1, weight_decay=0.0),  # not plain
    ]
    assert table.recommended(rows) == 3e-3
    page = table.markdown(rows)
    assert "| toy | 0.02 | -0.100 +- 0.000 | 1.100 | +0.400 +- 0.000 |  |" in page
    assert "| toy | 0.02 | 0.01 | weight_decay 0 | -1.400 +- 0.000 |" in page


@pytest.mark.slow
def test_the_command_reads_stores(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    type_in("inexact-muon sweep tiny.toml --out tiny --workers 1", tmp_path)
    said = type_in(f"python {SCRIPT} tiny --out tables", tmp_path)
    assert (tmp_path / "tables/defaults.md").read_text().strip() in said
    assert [c["adamw_lr"] for c in json.loads((tmp_path / "tables/defaults.json").read_text())] == [1e-3, 1e-2]
    with pytest.raises(AssertionError, match="nowhere holds no store; make one with"):
        type_in(f"python {SCRIPT} nowhere --out tables", tmp_path)
