"""The demo: every study is there, and one command ends in a page."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

pytest.importorskip("altair", reason="the page needs the extra `lab`")

from inexact_muon import cli, demo
from inexact_muon.lab import store, study, verify_study
from inexact_muon.report import tables
from inexact_muon.report.cotuning import paper_beats_keep
from report_tables import cotuning, precision, write_tables

ROOT = Path(__file__).parent.parent


def test_the_demo_trains_every_tiny_study() -> None:
    assert demo.studies() == ROOT / "studies" / "tiny"
    assert {path.stem for path in demo.studies().glob("*.toml")} == set(demo.STUDIES)
    assert set(demo.MORE) <= set(demo.STUDIES)


def test_the_wheel_holds_the_studies_and_the_tables() -> None:
    committed = [path.name for path in (ROOT / "docs" / "figures").glob("*-study.json")]
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    wanted = {f"docs/figures/{name}": f"inexact_muon/report/data/{name}" for name in committed}
    assert build["force-include"] == {"studies/tiny": "inexact_muon/studies/tiny"} | wanted


def test_runs_of_the_demo_are_those_of_a_sweep() -> None:
    for name in demo.STUDIES:
        swept = {spec.id for spec in study.load(demo.studies() / f"{name}.toml").runs}
        assert swept == {spec.id for spec in demo.plan(name, (0,)).runs}
        assert swept < {spec.id for spec in demo.plan(name, (0, 1)).runs}


def test_the_fast_theory_study_has_every_statement() -> None:
    fast, every = ({(name, row.func.__name__) for name, row in verify_study.cases(fast)} for fast in (True, False))  # type: ignore[attr-defined]
    assert fast < every
    assert {kind for _, kind in fast} == {kind for _, kind in every}


def test_lent_tables_say_so_and_replace_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = cotuning() | precision()
    place, out = tmp_path / "data", tmp_path / "out"
    write_tables(place, {name.replace(".", "-study."): content for name, content in made.items()})
    write_tables(out, {"precision-study.json": "mine"})
    monkeypatch.setattr(demo, "lent", lambda: sorted(place.glob("*.json")))
    demo.lend_tables(out)
    assert (out / "precision-study.json").read_text() == "mine"
    (found,) = tables.read(out).cotuning
    assert found.origin == tables.LENT
    assert tables.LENT in paper_beats_keep(found).evidence


def test_tables_that_come_with_the_package_can_be_read() -> None:
    for place in {path.parent for path in demo.lent()}:
        assert tables.read(place).problems == ()


@pytest.mark.slow
def test_one_command_ends_in_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "STUDIES", ("optimizers",))
    monkeypatch.setattr(demo, "MORE", ("optimizers",))
    monkeypatch.setattr(demo, "ENOUGH", 0.0)
    monkeypatch.setattr("sys.argv", ["inexact-muon", "demo", "--out", str(tmp_path)])
    cli.main()
    said = capsys.readouterr().out
    assert f"page: {tmp_path.resolve() / 'report.html'}" in said
    assert "5 runs" in said
    assert "no time for more seeds of optimizers" in said
    page = (tmp_path / "report.html").read_text()
    assert "zolotarev(poles=3)" in page
    assert "Every bound holds: confirmed" in said
    assert '"theory":[{' in page
    before = {run.id: run.ended for run in store.runs(tmp_path / "optimizers")}
    assert len(before) == 5
    monkeypatch.setattr(demo, "ENOUGH", 1e9)
    cli.main()
    after = {run.id: run.ended for run in store.runs(tmp_path / "optimizers")}
    assert len(after) == 15
    assert {run: after[run] for run in before} == before
