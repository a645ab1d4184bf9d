"""The demo: every study is there, and one command ends in a page."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from rich.console import Console

pytest.importorskip("altair", reason="the page needs the extra `lab`")

from inexact_muon_lab import cli
from inexact_muon_lab.bounds import cases as bounds
from inexact_muon_lab.cli import demo
from inexact_muon_lab.report import load, tables
from inexact_muon_lab.report.claims import CLAIMS, WITHDRAWN, judge, overall
from inexact_muon_lab.report.rule_regrets import paper_beats_keep
from inexact_muon_lab.spec import study
from inexact_muon_lab.statistics import CONFIRMED, REFUTED, UNDECIDED
from inexact_muon_lab.store import store
from report_tables import cotuning, write_tables

ROOT = Path(__file__).parent.parent


def test_the_demo_trains_every_tiny_study() -> None:
    assert demo.studies() == ROOT / "studies" / "tiny"
    assert {path.stem for path in demo.studies().glob("*.toml")} == set(demo.STUDIES)


def test_the_wheel_holds_the_studies_and_the_evidence() -> None:
    committed = [path.name for path in demo.reference_files() if path.suffix == ".json"]
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    wanted = {f"docs/figures/{name}": f"inexact_muon_lab/report/data/{name}" for name in committed}
    wanted |= {f"studies/{name}": f"inexact_muon_lab/studies/{name}" for name in ("tiny", "reference")}
    assert build["force-include"] == wanted
    assert (ROOT / "studies" / "reference").is_dir()


def test_runs_of_the_demo_are_those_of_a_sweep_seed_by_seed() -> None:
    for name in demo.STUDIES:
        planned = demo.plan(name).runs
        assert {spec.id for spec in study.load(demo.file(name)).runs} == {spec.id for spec in planned}
        assert [spec.seed for spec in planned] == sorted(spec.seed for spec in planned)


def test_what_the_demo_tests_is_declared_as_one_family() -> None:
    declared = [found for name in demo.STUDIES if (found := demo.plan(name).decide)]
    assert len(declared) == 4
    assert len({one.family for one in declared}) == 1
    assert set(declared[0].family) <= {claim.id for claim in CLAIMS}
    assert {"lower-loss", "first-steps", "cnn-loss", "lr-moves"} <= {name for one in declared for name in one.width}
    assert all(len(one.pilot) >= 6 and max(one.pilot) < 100 for one in declared)  # seeds from 100 on chose the design


def test_the_fast_theory_study_has_every_statement() -> None:
    fast, every = ({(name, row.func.__name__) for name, row in bounds.cases(fast)} for fast in (True, False))  # type: ignore[attr-defined]
    assert fast < every
    assert {kind for _, kind in fast} == {kind for _, kind in every}


def test_evidence_that_comes_along_replaces_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = cotuning()
    place, out = tmp_path / "data", tmp_path / "out"
    write_tables(place, {name.replace(".", "-study."): content for name, content in made.items()})
    write_tables(out / "reference", {"cotuning-lent.json": "mine"})
    monkeypatch.setattr(demo, "reference_files", lambda: sorted(place.glob("*.json")))
    demo.copy_reference(out)
    assert (out / "reference" / "cotuning-lent.json").read_text() == "mine"
    assert tables.read(out).cotuning == ()
    reference = load.reference(out)
    assert reference is not None
    (found,) = reference.tables.cotuning
    assert "(reference)" in paper_beats_keep(found).evidence


def test_evidence_that_comes_with_the_package_can_be_read() -> None:
    assert len([path for path in demo.reference_files() if path.suffix == ".json"]) == 1
    for path in demo.reference_files():
        if path.suffix == ".pack":
            assert load.load(path).runs
    for place in {path.parent for path in demo.reference_files() if path.suffix == ".json"}:
        assert tables.read(place).problems == ()


@pytest.mark.data
def test_the_evidence_decides_eleven_claims(tmp_path: Path) -> None:
    """After Holm's correction, beside the demo's own runs and bounds"""
    demo.copy_reference(tmp_path)
    judged = judge(load.load(tmp_path / "reference"), WITHDRAWN)
    found = overall(judged)
    assert sum(verdict != UNDECIDED for verdict in found.values()) >= 11
    assert {found[name] for name in ("lr-moves", "lower-loss")} == {CONFIRMED}
    assert found["accuracy-gap"] == REFUTED
    assert found["best-accuracy"] == UNDECIDED, "its bests lie at the ends of the grids"


@pytest.mark.slow
def test_one_command_ends_in_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "STUDIES", ("matrix", "optimizers"))
    monkeypatch.setattr(demo, "ENOUGH", 0.0)
    monkeypatch.setattr("sys.argv", ["inexact-muon", "demo", "--out", str(tmp_path)])
    cli.main()
    said = capsys.readouterr().out
    assert f"page: {tmp_path.resolve() / 'report.html'}" in said
    assert "Digits: Muon, Scion, SignSGD, SGD and AdamW: 5 of 5 runs were cut" in said
    assert f"to go on: inexact-muon demo --out {tmp_path}" in said
    assert "Every bound holds: confirmed" in said
    monkeypatch.setattr(demo, "STUDIES", ("optimizers",))
    monkeypatch.setattr(demo, "ENOUGH", 1e9)
    cli.main()
    page = (tmp_path / "report.html").read_text()
    assert "zolotarev(poles=3)" in page
    assert '"theory":[{' in page
    before = {run.id: run.ended for run in store.runs(tmp_path / "optimizers")}
    assert len(before) == 5
    assert all(before.values())
    cli.main()
    assert {run.id: run.ended for run in store.runs(tmp_path / "optimizers")} == before


@pytest.mark.long
@pytest.mark.slow
def test_the_demo_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At least six claims after the correction, three of them headlines, from its own runs alone."""
    monkeypatch.setattr(demo, "ENOUGH", 1e9)  # how long it takes is measured on idle cores, not here
    demo.demo(tmp_path, Console(quiet=True))
    decided = {name for name, verdict in overall(judge(load.load(tmp_path))).items() if verdict != UNDECIDED}
    assert len(decided) >= 6
    assert len(decided & {"lower-loss", "first-steps", "cnn-loss", "lr-moves"}) >= 3
